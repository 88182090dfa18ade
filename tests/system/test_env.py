"""Every environment variable: what is taken, and what is refused with its name, its value and what would be right."""

from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from flywheel.system import env
from flywheel.system.env import BadSetting, Database, parse_database

READERS: dict[str, Callable[[], Any]] = {
    "FLYWHEEL_HOME": env.home,
    "FLYWHEEL_PORT": env.port,
    "FLYWHEEL_BIND": env.bind,
    "FLYWHEEL_HOSTS": env.hosts,
    "FLYWHEEL_HTTPS": env.https,
    "FLYWHEEL_DEBUG": env.debug,
    "FLYWHEEL_LEASE_SECONDS": env.lease_seconds,
    "FLYWHEEL_STORY_SEED": env.story_seed,
    "FLYWHEEL_SERVED_MB": env.served_mb,
    "FLYWHEEL_WEB_PROCESSES": env.web_processes,
    "FLYWHEEL_GRPC_PORT": env.grpc_port,
    "FLYWHEEL_SANDBOX_WITHOUT": env.sandbox_without,
    "FLYWHEEL_VLLM_URL": env.vllm_url,
    "FLYWHEEL_SERVE": env.serve,
    "FLYWHEEL_SERVE_GPUS": env.serve_gpus,
    "FLYWHEEL_HUB": env.hub,
    "FLYWHEEL_URL": env.url,
    "FLYWHEEL_COMMANDS": env.commands,
    "FLYWHEEL_DEVICES": env.devices,
    "FLYWHEEL_RAY_ADDRESS": env.ray_address,
    "FLYWHEEL_RAY_DEVICE": env.ray_device,
    "FLYWHEEL_RAY_STORAGE": env.ray_storage,
    "FLYWHEEL_MODEL_MEMORY": lambda: env.model_memory(1000),
    "FLYWHEEL_PUBLIC_URL": env.public_url,
    "FLYWHEEL_SMTP_URL": env.mail_server,
    "FLYWHEEL_NOTICE_NETWORKS": env.notice_networks,
    "DATABASE_URL": env.database_url,
    "CELERY_BROKER_URL": env.broker_url,
}

GOOD = [
    ("FLYWHEEL_PORT", "1", 1),
    ("FLYWHEEL_PORT", "65535", 65535),
    ("FLYWHEEL_BIND", "0.0.0.0", "0.0.0.0"),
    ("FLYWHEEL_HOSTS", " a.example , b.example,", ["a.example", "b.example"]),
    ("FLYWHEEL_HTTPS", "Yes", True),
    ("FLYWHEEL_HTTPS", "off", False),
    ("FLYWHEEL_DEBUG", "1", True),
    ("FLYWHEEL_LEASE_SECONDS", "600", 600),
    ("FLYWHEEL_STORY_SEED", "7", 7),
    ("FLYWHEEL_SERVED_MB", "0", 0),
    ("FLYWHEEL_WEB_PROCESSES", "16", 16),
    ("FLYWHEEL_GRPC_PORT", "4317", 4317),
    ("FLYWHEEL_GRPC_PORT", "", None),
    ("FLYWHEEL_SANDBOX_WITHOUT", "namespaces", frozenset({"namespaces"})),
    ("FLYWHEEL_VLLM_URL", "http://127.0.0.1:8100/", "http://127.0.0.1:8100"),
    ("FLYWHEEL_SERVE", "vllm", "vllm"),
    ("FLYWHEEL_HUB", "https://huggingface.co/", "https://huggingface.co"),
    ("FLYWHEEL_URL", "https://flywheel.example:8443/", "https://flywheel.example:8443"),
    ("FLYWHEEL_COMMANDS", "/", Path("/")),
    ("FLYWHEEL_PUBLIC_URL", "https://flywheel.example/", "https://flywheel.example"),
    (
        "FLYWHEEL_SMTP_URL",
        "smtps://ada:a%40b@mail.example?from=fly@example.org",
        env.MailServer("mail.example", 465, "ada", "a@b", True, False, "fly@example.org"),
    ),
    (
        "FLYWHEEL_SMTP_URL",
        "smtp+starttls://mail.example:2525/?from=fly%2Bwheel@example.org",
        env.MailServer("mail.example", 2525, "", "", False, True, "fly+wheel@example.org"),
    ),
    ("FLYWHEEL_NOTICE_NETWORKS", "10.0.0.0/8, ::1", [ip_network("10.0.0.0/8"), ip_network("::1")]),
    ("FLYWHEEL_RAY_ADDRESS", "http://ray:8265/", "http://ray:8265"),
    ("FLYWHEEL_RAY_DEVICE", "cuda", "cuda"),
    ("FLYWHEEL_RAY_STORAGE", "s3://bucket/flywheel/", "s3://bucket/flywheel"),
    ("FLYWHEEL_RAY_STORAGE", "file:///mnt/a b", "file:///mnt/a b"),
    ("FLYWHEEL_DEVICES", "cpu:1, cuda:8", {"cpu": 1, "cuda": 8}),
    ("FLYWHEEL_MODEL_MEMORY", "50%", 500),
    ("FLYWHEEL_MODEL_MEMORY", "120%", 1200),
    ("FLYWHEEL_MODEL_MEMORY", "1.5G", 1_610_612_736),
    ("DATABASE_URL", "postgres://u@h/n", "postgres://u@h/n"),
    ("CELERY_BROKER_URL", "redis://h:6379/0", "redis://h:6379/0"),
]
BAD = [
    ("FLYWHEEL_PUBLIC_URL", "flywheel.example", "http(s)://host"),
    ("FLYWHEEL_SMTP_URL", "mail.example:25", "smtps://user:password"),
    ("FLYWHEEL_SMTP_URL", "https://mail.example/", "smtps://user:password"),
    ("FLYWHEEL_SMTP_URL", "smtp://mail.example", "?from= is no e-mail address"),
    ("FLYWHEEL_SMTP_URL", "smtp://mail.example?from=a&b=c", "smtps://user:password"),
    ("FLYWHEEL_NOTICE_NETWORKS", "intranet", "such as 10.0.0.0/8"),
    ("FLYWHEEL_NOTICE_NETWORKS", "10.0.0.1/8", "such as 10.0.0.0/8"),
    ("FLYWHEEL_PORT", "0", "from 1 to 65535"),
    ("FLYWHEEL_PORT", "65536", "from 1 to 65535"),
    ("FLYWHEEL_GRPC_PORT", "65536", "a TCP port"),
    ("FLYWHEEL_PORT", "-1", "from 1 to 65535"),
    ("FLYWHEEL_PORT", "8000.0", "from 1 to 65535"),
    ("FLYWHEEL_PORT", "٨٠٠٠", "from 1 to 65535"),
    ("FLYWHEEL_PORT", "http", "from 1 to 65535"),
    ("FLYWHEEL_HTTPS", "maybe", "yes or no"),
    ("FLYWHEEL_DEBUG", "2", "yes or no"),
    ("FLYWHEEL_COMMANDS", "/nowhere/at/all", "no such directory"),
    ("FLYWHEEL_LEASE_SECONDS", "1", "2 to 600"),
    ("FLYWHEEL_STORY_SEED", "1000", "from 0 to 999"),
    ("FLYWHEEL_SERVED_MB", "0.5", "0 to 100000"),
    ("FLYWHEEL_LEASE_SECONDS", "601", "2 to 600"),
    ("FLYWHEEL_LEASE_SECONDS", "1e1", "2 to 600"),
    ("FLYWHEEL_WEB_PROCESSES", "0", "1 to 16"),
    ("FLYWHEEL_SANDBOX_WITHOUT", "seccomp", "`namespaces`, to run verifiers on a machine that has none"),
    ("FLYWHEEL_VLLM_URL", "127.0.0.1:8100", "http://host:port"),
    ("FLYWHEEL_SERVE", "yes", "`vllm`"),
    ("FLYWHEEL_SERVE_GPUS", "0,0", "GPUs such as 0,1"),
    ("FLYWHEEL_SERVE_GPUS", "0;1", "GPUs such as 0,1"),
    ("FLYWHEEL_VLLM_URL", "http://h:8100/v1", "http://host:port"),
    ("FLYWHEEL_VLLM_URL", "http://h:8100?x=y", "http://host:port"),
    ("FLYWHEEL_VLLM_URL", "http://h:x", "http://host:port"),
    ("FLYWHEEL_RAY_ADDRESS", "ray://h:10001", "http://host:port"),
    ("FLYWHEEL_RAY_DEVICE", "gpu", "cpu or cuda"),
    ("FLYWHEEL_RAY_STORAGE", "/mnt/shared", "such as s3://bucket/flywheel"),
    ("FLYWHEEL_RAY_STORAGE", "file://mnt/shared", "such as s3://bucket/flywheel"),
    ("FLYWHEEL_RAY_STORAGE", "s3://key@bucket/flywheel", "without a password"),
    ("FLYWHEEL_RAY_STORAGE", "s3://", "such as s3://bucket/flywheel"),
    ("FLYWHEEL_DEVICES", "gpu:1", "such as cpu:1, cuda:4"),
    ("FLYWHEEL_DEVICES", "cpu:1,cpu:2", "such as cpu:1, cuda:4"),
    ("FLYWHEEL_MODEL_MEMORY", "0%", "such as 80%, or gigabytes such as 24G"),
    ("FLYWHEEL_MODEL_MEMORY", "24", "such as 80%, or gigabytes such as 24G"),
    ("FLYWHEEL_MODEL_MEMORY", "-1G", "such as 80%, or gigabytes such as 24G"),
    ("FLYWHEEL_MODEL_MEMORY", "nan%", "such as 80%, or gigabytes such as 24G"),
    ("DATABASE_URL", "mysql://h/n", "postgresql://user:password@host:port/name"),
    ("DATABASE_URL", "postgresql://host", "postgresql://user:password@host:port/name"),
    ("DATABASE_URL", "postgresql://host/", "postgresql://user:password@host:port/name"),
    ("DATABASE_URL", "postgresql://host:port/name", "postgresql://user:password@host:port/name"),
    ("DATABASE_URL", "postgresql://host:99999/name", "postgresql://user:password@host:port/name"),
    ("DATABASE_URL", "flywheel", "postgresql://user:password@host:port/name"),
    ("CELERY_BROKER_URL", "localhost:6379", "redis://"),
    ("CELERY_BROKER_URL", "://host", "redis://"),
]


@pytest.mark.parametrize(("name", "value", "meant"), GOOD)
def test_a_good_value_is_taken(name: str, value: str, meant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert READERS[name]() == meant


@pytest.mark.parametrize(("name", "value", "wanted"), BAD)
def test_a_bad_value_is_refused_with_its_name_and_what_would_be_right(
    name: str, value: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadSetting) as refused:
        READERS[name]()
    message = str(refused.value)
    assert message.startswith(f"{name}={value!r}")
    assert wanted in message


@pytest.mark.parametrize("name", sorted(READERS))
def test_an_empty_value_means_the_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    unset = READERS[name]()
    monkeypatch.setenv(name, "")
    assert READERS[name]() == unset


def test_every_variable_is_read_by_a_function_of_the_module() -> None:
    assert set(READERS) | {"FLYWHEEL_PG_USER"} == set(env.VARIABLES)


def test_a_refused_url_does_not_tell_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://ada:hush@db/n")
    with pytest.raises(BadSetting, match=r"mysql://ada:\*\*\*@db/n") as refused:
        env.database_url()
    assert "hush" not in str(refused.value)


def test_a_home_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setenv("FLYWHEEL_HOME", str(path))
    with pytest.raises(BadSetting, match="it is not a directory"):
        env.home()


def test_a_home_is_made_absolute_and_may_start_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", "~/flywheel")
    assert env.home() == Path.home() / "flywheel"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("postgresql://ada:secret@db:5433/flywheel", Database("flywheel", "ada", "secret", "db", "5433", {})),
        ("postgresql:///flywheel", Database("flywheel", "", "", "", "", {})),
        ("postgresql://db/n", Database("n", "", "", "db", "", {})),
        ("postgresql://ada@[::1]:5432/n", Database("n", "ada", "", "::1", "5432", {})),
        ("postgresql://a%40b:p%3A%2F%40w@db/n%20m", Database("n m", "a@b", "p:/@w", "db", "", {})),
        (
            "postgresql://flywheel@%2Fsrv%2FFly%20Wheel%2Fsocket:5432/n",
            Database("n", "flywheel", "", "/srv/Fly Wheel/socket", "5432", {}),
        ),
        ("postgresql://flywheel@%2Frun%2Fpg/n", Database("n", "flywheel", "", "/run/pg", "", {})),
        ("postgresql:///n?host=/run/pg&port=6000", Database("n", "", "", "/run/pg", "6000", {})),
        (
            "postgresql://u@h/n?sslmode=require&application_name=a%20b",
            Database("n", "u", "", "h", "", {"sslmode": "require", "application_name": "a b"}),
        ),
    ],
)  # fmt: skip
def test_a_database_url_is_taken_apart(url: str, parts: Database) -> None:
    assert parse_database(url) == parts
