"""Calls of a model, as weights that are served here take them from either of OpenAI's APIs.

What cannot be done as it is asked for is refused with the field's name: an answer that was drawn in another way would
look like the one that was wanted.
"""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flywheel.agents.version_content import DEFAULT_SAMPLING, MAX_TOKENS
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Sampling
from flywheel.core.traces import Message, openai_messages

IGNORED = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options",
})  # fmt: skip
"""They are for the server of somebody else, and change no answer."""
Only = Mapping[str, tuple[Any, ...]]
"""What may be said only so, or not at all."""
Pieces = Iterator[tuple[str, ChatResponse | None]]
"""An answer's words as they come, and with the last of them the answer itself."""


class Refused(Exception):
    """A request that gets no answer; the rest is what OpenAI's error says."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code or None}}


@dataclass(frozen=True, slots=True)
class Asked(ABC):
    """A request as it was understood, which words its answer as its API does."""

    CONVERSATION: ClassVar[str]
    """The field that has the conversation."""

    model: str
    request: ChatRequest
    stop: tuple[str, ...] = ()
    is_streamed: bool = False
    template: Mapping[str, Any] | None = None
    """Settings of the chat template that the caller wants."""
    created: int = field(default_factory=lambda: int(time.time()))

    @abstractmethod
    def whole(self, answer: ChatResponse) -> dict[str, Any]:
        """The answer in one piece."""

    @abstractmethod
    def events(self, pieces: Pieces) -> Iterator[bytes]:
        """The answer as a stream's events. Raises Refused as `pieces` does, after the event that says so."""

    def refusal_of(self, answer: ChatResponse) -> Refused | None:
        """Why there is no answer; None where there is one. So is one that makes a call in a way that nobody reads here:
        its words are given as they stand."""
        if not answer.error or answer.tokens_out is not None:
            return None
        code = "context_length_exceeded" if answer.is_too_long else ""
        return Refused(400, answer.error, param=self.CONVERSATION, code=code)


# Requests -------------------------------------------------------------------------------------------------------------


def wrong(param: str, problem: str, code: str = "") -> Refused:
    return Refused(400, f"{param} {problem}", param=param, code=code)


def fields_of(body: Any, taken: Collection[str], only: Only) -> dict[str, Any]:
    """Return what the body says, without nulls. Raises Refused for what is not known here, or cannot be said so."""
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in taken or name in IGNORED:
            continue
        if name not in only:
            raise wrong(name, "is not known here", code="unknown_parameter")
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in only[name]):
            allowed = " or ".join(json.dumps(one) for one in only[name])
            raise wrong(name, f"can only be {allowed} for weights that Flywheel serves itself")
    if not isinstance(given.get("model"), str):
        raise wrong("model", "must be a string")
    return given


def flag(given: Mapping[str, Any], name: str, inside: str = "") -> bool:
    """Raises Refused, as do all below."""
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise wrong(f"{inside}{name}", "must be true or false")
    return value


def template(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    settings = given.get("chat_template_kwargs")
    if settings is not None and not isinstance(settings, dict):
        raise wrong("chat_template_kwargs", "must be an object")
    return settings


def seed(given: Mapping[str, Any]) -> int:
    value = given.get("seed")
    if value is None:
        return secrets.randbelow(2**31)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise wrong("seed", "must be a whole number of 64 bits")
    return value


def sampling(given: Mapping[str, Any], limits: Sequence[str]) -> Sampling:
    """The settings, where they are not given as an eval has them. `limits` are the names of the most tokens, the last
    of which wins."""
    values = dict(DEFAULT_SAMPLING)
    for name, most in {"temperature": 5.0, "top_p": 1.0}.items():
        value = given.get(name, values[name])
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise wrong(name, f"must be a number from 0 to {most:g}")
        values[name] = float(value)
    if not values["top_p"]:
        raise wrong("top_p", "must be above 0; for greedy answers use temperature 0")
    for name in limits:
        value = given.get(name, values["max_tokens"])
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
            raise wrong(name, f"must be a whole number from 1 to {MAX_TOKENS}")
        values["max_tokens"] = value
    return Sampling(values["temperature"], values["top_p"], int(values["max_tokens"]))


def words(at: str, content: Any, kind: str) -> str:
    """The text of a content, whose parts are of this kind."""
    if not isinstance(content, str | list):
        raise wrong(at, "must be a string, or a list of texts")
    for place, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise wrong(f"{at}[{place}]", f'must be {{"type": "{kind}", "text"}}: these weights read text alone')
    return openai_messages.text(content)


def string(at: str, row: Mapping[str, Any], name: str) -> str:
    """A text that may be missing."""
    text = row.get(name) or ""
    if not isinstance(text, str):
        raise wrong(f"{at}.{name}", "must be a string")
    return text


# Answers --------------------------------------------------------------------------------------------------------------


def named(prefix: str) -> str:
    """An id that nothing else has."""
    return f"{prefix}{secrets.token_hex(12)}"


def written_calls(answer: ChatResponse) -> list[dict[str, Any]]:
    """The calls under ids of their own: those that a reader gives are the same in every answer."""
    rows: list[dict[str, Any]] = Message("assistant", "", answer.tool_calls).to_openai().get("tool_calls", [])
    return [{**row, "id": named("call_")} for row in rows]


def event(value: Mapping[str, Any]) -> bytes:
    """One of a stream, under its type where it has one."""
    name = f"event: {value['type']}\n" if "type" in value else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()
