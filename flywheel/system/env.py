"""Every environment variable that Flywheel reads, in one place.

A bad value is refused with its name, the value and what would be right. `docs/guides/operator.md` lists them all
(`tests/house/test_docs.py` holds the list and this module in step).
"""

import contextlib
import ipaddress
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
T = TypeVar("T")


class BadSetting(Exception):
    """An environment variable has a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    default: str
    hint: str
    """What a right value looks like; also the documentation's line."""


OWN_VLLM_URL = "http://127.0.0.1:8100"
"""Of the vLLM server that the supervisor keeps, where FLYWHEEL_VLLM_URL names no other port."""

VARIABLES = {
    v.name: v
    for v in [
        Variable(
            "FLYWHEEL_HOME",
            "var",
            "a directory that Flywheel may write to; its database, keys and artifacts live there",
        ),
        Variable("FLYWHEEL_PORT", "8000", "a TCP port from 1 to 65535"),
        Variable("FLYWHEEL_BIND", "127.0.0.1", "an address of this machine to listen on; loopback by default"),
        Variable(
            "FLYWHEEL_HOSTS",
            "127.0.0.1,localhost,[::1]",
            "host names that browsers and agents use, separated by commas",
        ),
        Variable("FLYWHEEL_HTTPS", "no", "yes or no; yes when a proxy in front speaks HTTPS: secure cookies, HSTS"),
        Variable("FLYWHEEL_DEBUG", "no", "yes or no; yes shows tracebacks in the browser, for development only"),
        Variable("FLYWHEEL_LEASE_SECONDS", "30", "seconds, 2 to 600, after which a silent job owner is taken for dead"),
        Variable("FLYWHEEL_GRPC_PORT", "", "a TCP port, usually 4317, for OTLP over gRPC; empty to switch it off"),
        Variable("FLYWHEEL_WEB_PROCESSES", "2", "processes that serve the web, 1 to 16; each of 32 threads"),
        Variable(
            "FLYWHEEL_PG_USER", "", "an existing unprivileged account for the embedded PostgreSQL, used only as root"
        ),
        Variable(
            "FLYWHEEL_SANDBOX_WITHOUT",
            "",
            "`namespaces`, to run verifiers on a machine that has none; empty for all layers",
        ),
        Variable(
            "FLYWHEEL_VLLM_URL",
            "",
            "http://host:port of the vLLM server that `make serve` started, which evals can be run on and training can "
            "sample from; empty for none",
        ),
        Variable(
            "FLYWHEEL_SERVE",
            "",
            "`vllm` for `make up` to start vLLM itself and watch it, with the base that an admin chooses under Evals › "
            "vLLM server; empty otherwise",
        ),
        Variable(
            "FLYWHEEL_SERVE_GPUS",
            "",
            "GPUs such as 0,1 that are vLLM's with FLYWHEEL_SERVE=vllm: a server with a base of its own on each, at "
            "ports one after the other; training leaves them alone. Empty for one server, which shares the GPUs",
        ),
        Variable(
            "FLYWHEEL_SERVED_MB",
            "500",
            "megabytes, 0 to 100000, of weights that a version may have for Flywheel to answer `agent@live` with it "
            "itself; 0 for none",
        ),
        Variable(
            "FLYWHEEL_HUB",
            "",
            "http(s)://host[:port] of a model hub from which `manage.py add_version --hub`, and workers for those who "
            "may create versions, may download, such as https://huggingface.co; empty for none",
        ),
        Variable(
            "FLYWHEEL_URL",
            "",
            "http(s)://host:port at which evaluated programs reach Flywheel; empty for this machine's own port",
        ),
        Variable(
            "FLYWHEEL_COMMANDS",
            "",
            "a directory in which workers start the commands of versions, which admins make: a command acts as the "
            "worker's account and can read all that it can read; empty to switch it off",
        ),
        Variable(
            "FLYWHEEL_MODEL_MEMORY",
            "80%",
            "memory for one process with a model: a share of this machine's such as 80%, or gigabytes such as 24G",
        ),
        Variable(
            "FLYWHEEL_DEVICES",
            "",
            "what this worker trains on, such as cpu:1, cuda:4, ray:2 or several with commas: runs at once on the CPU, "
            "GPUs to use, runs at once on the Ray cluster; empty for the GPUs that are there, else cpu:1",
        ),
        Variable(
            "FLYWHEEL_RAY_ADDRESS",
            "",
            "http://host:port of a Ray cluster's dashboard, whose machines share this Flywheel's code and "
            "FLYWHEEL_HOME by the same paths, or FLYWHEEL_RAY_STORAGE; runs may then train there. Empty for none",
        ),
        Variable(
            "FLYWHEEL_RAY_STORAGE",
            "",
            "a URL such as s3://bucket/flywheel or file:///mnt/flywheel, without a password, of a storage by which "
            "runs go to the Ray cluster and back; empty where its machines share FLYWHEEL_HOME",
        ),
        Variable(
            "FLYWHEEL_RAY_DEVICE",
            "cpu",
            "cpu or cuda: whether each process of a run on the Ray cluster asks for a core or for a GPU",
        ),
        Variable(
            "FLYWHEEL_PUBLIC_URL",
            "",
            "http(s)://host[:port] at which browsers reach Flywheel, for links in e-mails and messages; empty for this "
            "machine's own port",
        ),
        Variable(
            "FLYWHEEL_SMTP_URL",
            "",
            "smtps://user:password@host:465?from=flywheel@example.org: the mail server and the sender of notices by "
            "e-mail; also smtp+starttls:// or smtp://. Empty to send no e-mail",
        ),
        Variable(
            "FLYWHEEL_NOTICE_NETWORKS",
            "",
            "private networks to which notices may be sent, such as 10.0.0.0/8,127.0.0.1/32; empty for public "
            "addresses only",
        ),
        Variable(
            "FLYWHEEL_STORY_SEED", "20", "a number from 0 to 999: which customers `make demo` and `make turn` have"
        ),
        Variable("DATABASE_URL", "", "postgresql://user:password@host:port/name; empty starts the embedded PostgreSQL"),
        Variable("CELERY_BROKER_URL", "", "redis://…, amqp://…; empty uses the database itself (pgmq)"),
    ]
}


def _read(name: str, convert: Callable[[str], T]) -> T:
    variable = VARIABLES[name]
    value = os.environ.get(name) or variable.default
    try:
        return convert(value)
    except ValueError as error:
        shown = re.sub(r"(://[^/@]*:)[^/@]*@", r"\1***@", value)  # a URL may carry a password
        because = f" ({error})" if str(error) else ""
        raise BadSetting(f"{name}={shown!r} cannot be used{because}: it must be {variable.hint}") from None


def _yes(value: str) -> bool:
    if value.lower() in ("yes", "true", "1", "on"):
        return True
    if value.lower() in ("no", "false", "0", "off"):
        return False
    raise ValueError


def _between(low: int, high: int) -> Callable[[str], int]:
    def convert(value: str) -> int:
        number = int(value) if value.isascii() and value.isdigit() else low - 1
        if not low <= number <= high:
            raise ValueError
        return number

    return convert


def _one_of(*values: str) -> Callable[[str], str]:
    def convert(value: str) -> str:
        if value not in values:
            raise ValueError
        return value

    return convert


def _path(value: str) -> Path:
    if "\0" in value:
        raise ValueError
    path = Path(value).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise ValueError("it is not a directory")
    return path


def home() -> Path:
    return _read("FLYWHEEL_HOME", _path)


def prepare_home() -> Path:
    """The home, made where it is missing and closed to other accounts, as is what this process writes from now on.

    As root others may pass through it, but not list it: PostgreSQL may run under another account, and would otherwise
    need the right to read every file.
    """
    place, mode = home(), 0o711 if os.geteuid() == 0 else 0o700
    place.mkdir(mode=mode, parents=True, exist_ok=True)
    os.umask(0o077)
    _close(place, mode)
    for path in place.iterdir():  # an earlier version left some of them open
        with contextlib.suppress(FileNotFoundError):
            _close(path, 0o700)
    return place


def _close(path: Path, mode: int) -> None:
    """Take from the path's mode what goes beyond this one, where the path is ours."""
    found = path.lstat()
    if found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) & ~mode:
        path.chmod(found.st_mode & mode)


def port() -> int:
    return _read("FLYWHEEL_PORT", _between(1, 65535))


def bind() -> str:
    return _read("FLYWHEEL_BIND", str)


def hosts() -> list[str]:
    return _read("FLYWHEEL_HOSTS", lambda value: [host.strip() for host in value.split(",") if host.strip()])


def https() -> bool:
    return _read("FLYWHEEL_HTTPS", _yes)


def debug() -> bool:
    return _read("FLYWHEEL_DEBUG", _yes)


def lease_seconds() -> int:
    return _read("FLYWHEEL_LEASE_SECONDS", _between(2, 600))


def grpc_port() -> int | None:
    """None where OTLP is not taken over gRPC."""
    return _read("FLYWHEEL_GRPC_PORT", lambda value: _between(1, 65535)(value) if value else None)


def web_processes() -> int:
    return _read("FLYWHEEL_WEB_PROCESSES", _between(1, 16))


def story_seed() -> int:
    return _read("FLYWHEEL_STORY_SEED", _between(0, 999))


def sandbox_without() -> frozenset[str]:
    """The layers of the sandbox that an operator gave up. The others cannot be given up."""
    return frozenset({_read("FLYWHEEL_SANDBOX_WITHOUT", _one_of("", "namespaces"))} - {""})


def model_memory(machine: int) -> int:
    """Bytes that one process with a model may take on a machine that has so many."""

    def convert(value: str) -> int:
        match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)(%|G)", value)
        if match is None or not float(match[1]):
            raise ValueError
        return int(float(match[1]) * (machine / 100 if match[2] == "%" else 2**30))

    return _read("FLYWHEEL_MODEL_MEMORY", convert)


def devices() -> dict[str, int] | None:
    """Counts of the devices that the worker offers, by label; None where it shall look for itself."""

    def convert(value: str) -> dict[str, int] | None:
        found: dict[str, int] = {}
        for part in filter(None, value.replace(" ", "").split(",")):
            match = re.fullmatch(r"(cpu|cuda|ray):([0-9]{1,3})", part)
            if match is None or match[1] in found:
                raise ValueError
            found[match[1]] = int(match[2])
        return found or None

    return _read("FLYWHEEL_DEVICES", convert)


def _server(value: str) -> str:
    parts = urlsplit(value)
    plain = parts.scheme in ("http", "https") and parts.hostname and not parts.query and parts.username is None
    if value and (not plain or parts.path.strip("/")):
        raise ValueError
    _ = parts.port  # raises ValueError for one that is no number or too great
    return value.rstrip("/")


def vllm_url() -> str:
    """The address of the vLLM server, or of the first, without a slash at its end; empty for none."""
    return _read("FLYWHEEL_VLLM_URL", _server) or (OWN_VLLM_URL if serve() else "")


def serve() -> str:
    """`vllm` where the supervisor keeps vLLM servers; else empty."""
    return _read("FLYWHEEL_SERVE", _one_of("", "vllm"))


def serve_gpus() -> list[str]:
    """Names of the GPUs that are vLLM's alone, with a server on each; none for one server that shares them."""

    def convert(value: str) -> list[str]:
        found = [part.strip() for part in value.split(",") if part.strip()]
        if len(found) > 16 or len(set(found)) < len(found) or not all(re.fullmatch(r"[\w-]+", name) for name in found):
            raise ValueError
        return found

    names = _read("FLYWHEEL_SERVE_GPUS", convert)
    return names if serve() else []


def vllm_urls() -> list[str]:
    """The addresses of all vLLM servers of this installation, that of `vllm_url` first; none without one."""
    first = vllm_url()
    if not first:
        return []
    parts = urlsplit(first)
    more = range(1, len(serve_gpus()))
    return [first, *(f"http://{parts.hostname}:{(parts.port or 80) + place}" for place in more)]


def served_mb() -> int:
    """Megabytes of weights up to which a version is served by a process of this installation."""
    return _read("FLYWHEEL_SERVED_MB", _between(0, 100_000))


def ray_address() -> str:
    """The address of the Ray cluster's dashboard, without a slash at its end; empty for none."""
    return _read("FLYWHEEL_RAY_ADDRESS", _server)


def ray_storage() -> str:
    """The URL of the storage through which runs go to the Ray cluster, without a slash at its end; empty for none."""

    def convert(value: str) -> str:
        if value and not re.fullmatch(r"file:///[^?#]+|(?!file:)[a-z][a-z0-9+.-]*://[^/?#@]+(/[^?#]*)?", value):
            raise ValueError
        return value.rstrip("/")

    return _read("FLYWHEEL_RAY_STORAGE", convert)


def ray_device() -> str:
    """`cpu` or `cuda`."""
    return _read("FLYWHEEL_RAY_DEVICE", _one_of("cpu", "cuda"))


def hub() -> str:
    """The address of the model hub that weights may be fetched from, without a slash at its end; empty for none."""
    return _read("FLYWHEEL_HUB", _server)


def url() -> str:
    """The address of this Flywheel for programs, without a slash at its end."""
    return _read("FLYWHEEL_URL", _server) or f"http://127.0.0.1:{port()}"


def public_url() -> str:
    """The address of this Flywheel for people, without a slash at its end."""
    return _read("FLYWHEEL_PUBLIC_URL", _server) or f"http://127.0.0.1:{port()}"


def notice_networks() -> list[Network]:
    """Networks beside the public ones where targets of notices may be."""

    def convert(value: str) -> list[Network]:
        return [ipaddress.ip_network(part) for part in filter(None, value.replace(" ", "").split(","))]

    return _read("FLYWHEEL_NOTICE_NETWORKS", convert)


@dataclass(frozen=True, slots=True)
class MailServer:
    host: str
    port: int
    user: str
    password: str
    is_tls: bool
    """From the first byte on."""
    is_starttls: bool
    sender: str


_MAIL_PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}


def mail_server() -> MailServer | None:
    """The server that e-mails are handed to; None where none are sent."""

    def convert(value: str) -> MailServer | None:
        if not value:
            return None
        parts = urlsplit(value)
        options = dict(parse_qsl(parts.query))
        sender = options.pop("from", "")
        if parts.scheme not in _MAIL_PORTS or not parts.hostname or parts.path.strip("/") or options:
            raise ValueError
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", sender):
            raise ValueError("?from= is no e-mail address")
        return MailServer(
            host=parts.hostname,
            port=parts.port or _MAIL_PORTS[parts.scheme],
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            is_tls=parts.scheme == "smtps",
            is_starttls=parts.scheme == "smtp+starttls",
            sender=sender,
        )

    return _read("FLYWHEEL_SMTP_URL", convert)


def commands() -> Path | None:
    """Where workers start the commands that versions name; None where they start none."""

    def convert(value: str) -> Path | None:
        path = _path(value) if value else None
        if path is not None and not path.is_dir():
            raise ValueError("there is no such directory")
        return path

    return _read("FLYWHEEL_COMMANDS", convert)


def database_url() -> str:
    """The URL, or empty for the embedded PostgreSQL."""

    def convert(value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/")):
            raise ValueError
        _ = parts.port  # raises ValueError for one that is no number or too great
        return value

    return _read("DATABASE_URL", convert)


def broker_url() -> str:
    """The URL, or empty for the broker in the database."""

    def convert(value: str) -> str:
        if value and (not urlsplit(value).scheme or "://" not in value):
            raise ValueError
        return value

    return _read("CELERY_BROKER_URL", convert)


@dataclass(frozen=True, slots=True)
class Database:
    """A PostgreSQL URL taken apart. `host` may be the directory of a unix socket."""

    name: str
    user: str
    password: str
    host: str
    port: str
    options: dict[str, str]


def parse_database(url: str) -> Database:
    """Take a postgresql URL apart; a socket directory may be the percent-encoded host or `?host=`."""
    parts = urlsplit(url)
    options = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair)
    netloc_host = parts.netloc.rpartition("@")[2].rpartition(":")[0] or parts.netloc.rpartition("@")[2]
    host = unquote(options.pop("host", "")) or unquote(netloc_host if "%" in netloc_host else parts.hostname or "")
    return Database(
        name=unquote(parts.path.strip("/")),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=host,
        port=str(parts.port or options.pop("port", "")),
        options={key: unquote(value) for key, value in options.items()},
    )
