"""A version's content, and the checks of its endpoint, sampling and tools. Made where a person or a program says it.

Every refusal is a `Refused` whose message begins with the field: `endpoint.base_url: …`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from flywheel.accounts.project_settings import provider_keys
from flywheel.accounts.project_settings.server_addresses import KEY_NAME, is_host
from flywheel.agents.models import Artifact, Version
from flywheel.core.errors import FieldError
from flywheel.core.network.link_local import is_metadata
from flywheel.core.traces import call_forms, tooling
from flywheel.edge.refusals import Refused

TRANSFORMERS, OPENAI, PROGRAM = "transformers", "openai", "program"
KINDS = {
    TRANSFORMERS: "weights stored here, run by the worker",
    OPENAI: "an OpenAI-compatible server",
    PROGRAM: "your own program, which calls its model through the gateway",
}
WAYS = {
    "http": "Flywheel sends each task to its address",
    "command": "a worker starts it for each task",
    "pull": "it asks the API for work, from behind a firewall",
}
"""How a program comes by its tasks."""
DEFAULT_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 128}
MAX_TOKENS = 1_000_000
MAX_TOOLS = 256

OPTIONS: dict[str, dict[str, tuple[float, float] | tuple[str, ...]]] = {
    TRANSFORMERS: {
        "batch_size": (1, 4096),
        "device": (),
        "dtype": ("auto", "float32", "bfloat16", "float16"),
    },
    OPENAI: {
        "timeout_s": (0.001, 86_400),
        "concurrency": (1, 1024),
        "price_in": (0, 10_000),
        "price_out": (0, 10_000),
    },
    PROGRAM: {
        "timeout_s": (1, 86_400),
        "concurrency": (1, 256),
        "price_in": (0, 10_000),
        "price_out": (0, 10_000),
    },
}
"""What an engine takes beside what it needs: the range of a number, the choice of words, or any text."""
WHOLE = {"batch_size", "concurrency"}
TEMPLATE_SETTINGS_MAX = 20
_OF_TEMPLATES = frozenset(
    (
        *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    )
)
"""Arguments of `apply_chat_template` that are no settings of a template."""

_CODE = re.compile(r"[0-9a-f]{7,64}|(?:[\w./:-]{1,200}@)?sha256:[0-9a-f]{64}", re.ASCII)
"""A commit, or an image by its digest: what can be moved, such as a branch or a tag, names no code."""
ARGUMENTS_MAX = 64
"""Of a command; each of 4,000 characters at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionContent:
    """A version's content as somebody says it, unchecked: all that tells it from others."""

    base_model: str
    endpoint: Mapping[str, Any]
    weights: Artifact | None = None
    adapter: Artifact | None = None
    system_prompt: str = ""
    tools: Any = field(default_factory=list)
    """Tool definitions, as in `flywheel.core.traces.tooling`."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    form: str | None = None
    """A form of `core.traces.call_forms`, empty where any is read; None for the one that is likely."""

    @classmethod
    def of(cls, version: Version) -> "VersionContent":
        """Return that of a version, for another one to be like it."""
        return cls(**{name: getattr(version, name) for name in cls.__dataclass_fields__})


def check_endpoint(value: Mapping[str, Any], project_id: int) -> dict[str, Any]:
    """Check how the version is asked, and return it as `Version.endpoint` keeps it. Raises Refused.

    A key is named, never written down: the worker reads the project's key of this name, or the variable. Its name must
    end in `_API_KEY`, so that nobody can have a database URL or another secret of the worker sent to a server of their
    choice, and it must be bound to the server (`provider_keys`).
    """
    kind = value.get("kind")
    if kind not in KINDS:
        raise Refused(f"{kind!r} is unknown; use one of {', '.join(KINDS)}", field="endpoint.kind")
    needed = {"kind"} if kind == TRANSFORMERS else {"kind", "base_url", "model", "api_key_env"}
    wanted = needed | set(OPTIONS[kind])
    wanted |= {"way", "code", *_place(value.get("way"))} if kind == PROGRAM else {"chat_template_kwargs"}
    if unknown := sorted(set(value) - wanted):
        raise Refused(
            f"is not part of a {kind} endpoint; {', '.join(sorted(wanted))} are", field=f"endpoint.{unknown[0]}"
        )
    options = {name: _option(kind, name, value[name]) for name in OPTIONS[kind] if value.get(name) is not None}
    if kind != PROGRAM:
        options |= _template_settings(value.get("chat_template_kwargs"))
    if kind == TRANSFORMERS:
        return {"kind": kind, **options}
    if kind == PROGRAM:
        return {"kind": kind, **options, **_program(value), **_program_model(value, project_id)}
    return {"kind": kind, **options, **_server(value, project_id)}


def _template_settings(value: Any) -> dict[str, Any]:
    """Settings of the model's chat template by name, such as `{"enable_thinking": false}`. Raises Refused."""
    if value in (None, "", {}):
        return {}
    is_object = isinstance(value, dict) and len(value) <= TEMPLATE_SETTINGS_MAX
    if not is_object or not all(_is_template_setting(*pair) for pair in value.items()):
        raise Refused(
            f"expected an object of at most {TEMPLATE_SETTINGS_MAX} true, false, numbers or texts by name, such as "
            '{"enable_thinking": false}',
            field="endpoint.chat_template_kwargs",
        )
    if taken := sorted(set(value) & _OF_TEMPLATES):
        raise Refused(f"{taken[0]} is set by Flywheel itself", field="endpoint.chat_template_kwargs")
    return {"chat_template_kwargs": value}


def _is_template_setting(name: str, value: Any) -> bool:
    """Whether a template can have it, and the database keep it: it takes neither NUL nor numbers that are none."""
    is_number = isinstance(value, int | float) and abs(value) < math.inf
    is_text = isinstance(value, str) and len(value) <= 1000 and "\0" not in value
    return name.isidentifier() and len(name) <= 100 and (is_number or is_text)


def _server(value: Mapping[str, Any], project_id: int) -> dict[str, Any]:
    """An OpenAI-compatible server, the model there, and its key."""
    endpoint = {"base_url": _base_url(value.get("base_url")), "model": _text(value.get("model"))}
    if name := value.get("api_key_env"):
        if not isinstance(name, str) or not KEY_NAME.fullmatch(name):
            raise Refused(
                f"{name!r} is not the name of a key variable: it must end in _API_KEY, for example OPENAI_API_KEY",
                field="endpoint.api_key_env",
            )
        if problem := provider_keys.refusal(project_id, name, endpoint["base_url"]):
            raise Refused(problem, field="endpoint.api_key_env")
        endpoint["api_key_env"] = name
    return endpoint


def _place(way: Any) -> set[str]:
    """Return what a program of this way names beside its code. Raises Refused."""
    if way not in WAYS:
        raise Refused(f"{way!r} is unknown; use one of {', '.join(WAYS)}", field="endpoint.way")
    return {"http": {"url"}, "command": {"command"}}.get(way, set())


def _program(value: Mapping[str, Any]) -> dict[str, Any]:
    """A program: where it is, and which code it runs."""
    found: dict[str, Any] = {"way": value["way"]}
    if value["way"] == "http":
        found["url"] = _base_url(value.get("url"), field="endpoint.url", example="http://agent:9000/run")
        if is_metadata(urlsplit(found["url"]).hostname or ""):
            raise Refused("is link-local, where clouds keep credentials; no program runs there", field="endpoint.url")
    if value["way"] == "command":
        words: Any = value.get("command")
        is_list = isinstance(words, list) and 0 < len(words) <= ARGUMENTS_MAX
        if not is_list or not all(isinstance(word, str) and len(word) <= 4000 and "\0" not in word for word in words):
            raise Refused(
                f'is a list of 1 to {ARGUMENTS_MAX} texts, the program first: ["python", "agent.py"], no shell',
                field="endpoint.command",
            )
        if not words[0].strip():
            raise Refused("begins with the program to start", field="endpoint.command")
        found["command"] = list(words)
    code = value.get("code")
    if not isinstance(code, str) or not _CODE.fullmatch(code.strip()):
        raise Refused(
            f"{code!r} is not a fixed version of the code: expected a commit (7 to 64 hexadecimal digits) or an "
            f"image's sha256:… digest, since a branch or a tag can move",
            field="endpoint.code",
        )
    return found | {"code": code.strip()}


def _program_model(value: Mapping[str, Any], project_id: int) -> dict[str, Any]:
    """The model that the gateway calls for a program: its own server, or a name at the project's upstream, or neither,
    where the program names the model itself."""
    if value.get("base_url"):
        return _server(value, project_id)
    if value.get("api_key_env"):
        raise Refused("goes with base_url, the server that the key is for", field="endpoint.api_key_env")
    return {"model": _text(value["model"])} if value.get("model") else {}


def check_sampling(value: Mapping[str, Any]) -> dict[str, Any]:
    """Those of temperature, top_p and max_tokens that are given. Raises Refused."""
    for name in value:
        if name not in DEFAULT_SAMPLING:
            raise Refused(f"is unknown, {', '.join(DEFAULT_SAMPLING)} are known", field=f"sampling.{name}")
    most = {"temperature": 5.0, "top_p": 1.0}
    checked: dict[str, Any] = {name: _between(name, value[name], 0.0, most[name]) for name in most if name in value}
    if checked.get("top_p") == 0:
        raise Refused("0 leaves nothing to choose from; for greedy answers use temperature 0", field="sampling.top_p")
    if "max_tokens" in value:
        tokens = value["max_tokens"]
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MAX_TOKENS:
            raise Refused(f"{tokens!r} is not a whole number from 1 to {MAX_TOKENS}", field="sampling.max_tokens")
        checked["max_tokens"] = tokens
    return checked


def check_tools(value: Any) -> list[dict[str, Any]]:
    """Tool definitions as a version keeps them, from any shape that `tooling.definitions` knows. Raises Refused."""
    value = tooling.definitions(value)
    if problems := tooling.check_definitions(value):
        raise Refused("; ".join(problems[:5]), field="tools")
    if len(value) > MAX_TOOLS:
        raise Refused(f"{len(value)} definitions; at most {MAX_TOOLS} can be given", field="tools")
    names = [tool["name"] for tool in value]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(f"{twice[0]!r} is defined twice", field="tools")
    return list(value)


def check_form(value: str) -> str:
    """The name of a form, `core.traces.call_forms`; empty where any is read. Raises Refused."""
    try:
        return call_forms.check(value)
    except FieldError as error:
        raise Refused(error.problem, field="form") from error


def _option(kind: str, name: str, value: Any) -> Any:
    """An option's value as it is kept; numbers of dollars and seconds as floats, so that 1 and 1.0 are one version."""
    allowed = OPTIONS[kind][name]
    field = f"endpoint.{name}"
    if not allowed or isinstance(allowed[0], str):
        if not isinstance(value, str) or not value or (allowed and value not in allowed):
            raise Refused(f"{value!r} is not {' or '.join(map(str, allowed)) or 'a text'}", field=field)
        return value
    low, high = allowed
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    kinds = int if name in WHOLE else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise Refused(
            f"{value!r} is not a {'whole ' if name in WHOLE else ''}number from {low:g} to {high:g}", field=field
        )
    return value if name in WHOLE else float(value)


def _base_url(value: Any, field: str = "endpoint.base_url", example: str = "http://gpu-1:8000/v1") -> str:
    text = value.strip().rstrip("/") if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        host = parts.hostname if parts.port != 0 else None  # reading the port raises for one that is none
    except ValueError:
        host = None
    is_plain = text.isascii() and text.isprintable() and " " not in text
    if not host or parts.scheme not in ("http", "https") or not is_plain or not is_host(host):
        raise Refused(f"{value!r} is not the address of a server, such as {example}", field=field)
    if parts.username or parts.password:
        raise Refused("must not hold a login; name the key's variable in api_key_env instead", field=field)
    if parts.query or parts.fragment:
        raise Refused("must end with its path, without ? or #", field=field)
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Refused("is missing: the name under which the server knows the model", field="endpoint.model")
    return value.strip()


def _between(name: str, value: Any, low: float, high: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high:
        raise Refused(f"{value!r} is not a number from {low:g} to {high:g}", field=f"sampling.{name}")
    return float(value)
