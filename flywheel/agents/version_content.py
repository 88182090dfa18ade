"""A version's content, and the checks of its endpoint, sampling and tools. Made where a person or a program says it.

Every refusal is a `Refused` whose message begins with the field: `endpoint.base_url: …`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from flywheel.agents.models import Artifact, Version
from flywheel.core.errors import FieldError
from flywheel.core.network import key_hosts
from flywheel.core.traces import call_forms, tooling
from flywheel.edge.refusals import Refused

TRANSFORMERS, OPENAI = "transformers", "openai"
KINDS = {
    TRANSFORMERS: "weights that this installation holds, asked beside its worker",
    OPENAI: "an OpenAI-compatible server",
}
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
}
"""What an engine takes beside what it needs: the range of a number, the choice of words, or any text."""
WHOLE = {"batch_size", "concurrency"}

_KEY_NAME = re.compile(r"[A-Z][A-Z0-9_]*_API_KEY")


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


def check_endpoint(value: Mapping[str, Any]) -> dict[str, Any]:
    """Check how the version is asked, and return it as `Version.endpoint` keeps it. Raises Refused.

    A key is named, never written down: the worker reads the variable. Its name must end in `_API_KEY`, so that nobody
    can have a database URL or another secret of the worker sent to a server of their choice, and the operator must have
    bound it to the server.
    """
    kind = value.get("kind")
    if kind not in KINDS:
        raise Refused(f"{kind!r} is unknown, one of {', '.join(KINDS)} is wanted", field="endpoint.kind")
    needed = {"kind"} if kind == TRANSFORMERS else {"kind", "base_url", "model", "api_key_env"}
    wanted = needed | set(OPTIONS[kind])
    if unknown := sorted(set(value) - wanted):
        raise Refused(
            f"is not part of a {kind} endpoint; {', '.join(sorted(wanted))} are", field=f"endpoint.{unknown[0]}"
        )
    options = {name: _option(kind, name, value[name]) for name in OPTIONS[kind] if value.get(name) is not None}
    if kind == TRANSFORMERS:
        return {"kind": kind, **options}
    endpoint = {
        "kind": kind,
        **options,
        "base_url": _base_url(value.get("base_url")),
        "model": _text(value.get("model")),
    }
    if name := value.get("api_key_env"):
        if not isinstance(name, str) or not _KEY_NAME.fullmatch(name):
            raise Refused(
                f"{name!r} is not the name of a variable that may hold a key, such as OPENAI_API_KEY; "
                "it must end in _API_KEY",
                field="endpoint.api_key_env",
            )
        if problem := key_hosts.refusal(name, endpoint["base_url"]):
            raise Refused(problem, field="endpoint.api_key_env")
        endpoint["api_key_env"] = name
    return endpoint


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


def _base_url(value: Any) -> str:
    text = value.strip().rstrip("/") if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        host = parts.hostname if parts.port != 0 else None  # reading the port raises for one that is none
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise Refused(
            f"{value!r} is not the address of a server, such as http://gpu-1:8000/v1", field="endpoint.base_url"
        )
    if parts.username or parts.password:
        raise Refused(
            "must not hold a login; name the key's variable in api_key_env instead", field="endpoint.base_url"
        )
    if parts.query or parts.fragment:
        raise Refused("must end with its path, without ? or #", field="endpoint.base_url")
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
