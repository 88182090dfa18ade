"""Conversations and tool calls as chat templates write them, and calls as models write them: one writing and one
reading for engines and trainers, so that what is learnt is what is asked and an answer is worth the same everywhere.

A chat template that TRL knows comes with a response template, by which transformers reads what the model wrote. Of any
other the calls are read that Qwen and Hermes models write; an answer that calls something in a way that nobody here
reads is an error, and so unscored: it would be judged as words otherwise.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.digests import read_json, repeats_a_key
from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.core.traces import Message, ToolCall, call_forms

_ASKED = [{"role": "user", "content": "What is on friday?"}]
_NAME = "look_up"
_CALL = {"id": "call00000", "type": "function", "function": {"name": _NAME, "arguments": {"day": "friday"}}}
_TOOLS = [{"type": "function", "function": {"name": _NAME, "description": "Look a day up.", "parameters": {}}}]
SHORTEST_MARK = 4
"""Characters of what begins a call, so that plain words hold none by chance."""


def prompt_text(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = (), *, is_asked: bool = True
) -> str:
    """Write a conversation as the tokenizer's chat template does, up to where the model answers if it `is_asked`.
    Raises ValueError where the template refuses."""
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=is_asked, tokenize=False
            )
        )
    except MemoryError:
        raise
    except Exception as error:  # Jinja raises what it likes, and templates raise on purpose
        raise ValueError(f"the model's chat template refuses the conversation: {error}") from error


def prompt_tokens(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = (), *, is_asked: bool = True
) -> list[int]:
    """Return the token ids of `prompt_text`."""
    ids: list[int] = tokenizer.encode(
        prompt_text(tokenizer, messages, tools, is_asked=is_asked), add_special_tokens=False
    )
    return ids


def read_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split an answer into its text and its `<tool_call>{"name", "arguments"}</tool_call>` blocks. A block that
    does not parse stays text."""
    read = call_forms.read(Message("assistant", text), "hermes")
    return read.content, read.tool_calls


def answer_of(
    tokenizer: Any,
    prompt: Sequence[int],
    tokens: Sequence[int],
    ends: Collection[int],
    latency_ms: float,
    tools: Sequence[Any] = (),
) -> ChatResponse:
    """Read the answer to a prompt in generated tokens, up to the first of `ends`; without one the answer was cut off.
    `tools` say of which type arguments are that a template writes without one."""
    end = next((place for place, token in enumerate(tokens) if token in ends), None)
    kept = list(tokens[:end])
    text, calls, error = _read(tokenizer, list(prompt), kept, [_function(tool) for tool in tools])
    return ChatResponse(
        text=text,
        tool_calls=calls,
        finish_reason="length" if end is None else "stop",
        tokens_in=len(prompt),
        tokens_out=len(kept) + (end is not None),
        latency_ms=latency_ms,
        error=error,
    )


@dataclass(frozen=True, slots=True)
class Written:
    """An answer as a server gives it: tokens of the prompt and of the answer, and the tools that were on offer."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    tools: tuple[Any, ...] = ()


class AnswerReader:
    """Reads what a server's model wrote as `answer_of` reads what is generated here."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def read(self, answers: Sequence[Written]) -> list[ChatResponse]:
        """Their text, calls and errors; everything else of a response is the server's to say."""
        return [self._response(answer) for answer in answers]

    def close(self) -> None:
        """Nothing to end: an answer is read in no time."""

    def _response(self, answer: Written) -> ChatResponse:
        kept = list(answer.tokens)
        if kept and kept[-1] in self._tokenizer.all_special_ids:  # the end, which a server gives with the answer
            kept.pop()
        tools = [_function(tool) for tool in answer.tools]
        text, calls, error = _read(self._tokenizer, list(answer.prompt), kept, tools)
        return ChatResponse(text=text, tool_calls=calls, error=error)


def _read(
    tokenizer: Any, prompt: list[int], kept: list[int], tools: list[Any]
) -> tuple[str, tuple[ToolCall, ...], str]:
    """Return the text, the calls, and why the answer cannot be read."""
    plain: str = tokenizer.decode(kept, skip_special_tokens=True)
    if getattr(tokenizer, "response_template", None) is not None:
        if repeats_a_key(plain):  # the template's reader would keep the last value, and say nothing
            return plain, (), ""
        try:
            row = tokenizer.parse_response(kept, prefix=prompt, tools=tools or None)
            calls = [_made(at, call["function"]) for at, call in enumerate(row.get("tool_calls") or ())]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
            return plain, (), ""  # what the model wrote is broken, which a judge of its words finds out
        return row.get("content") or "", tuple(calls), ""
    text, written = read_tool_calls(plain)
    mark = getattr(tokenizer, "unread_mark", "")
    if mark and not written and mark in tokenizer.decode(kept):
        return (
            plain,
            (),
            f"a tool call cannot be read: nobody here knows the chat template that writes {mark!r}",
        )
    return text, written, ""


def _made(place: int, function: Mapping[str, Any]) -> ToolCall:
    """The call that a response template found. Raises KeyError or TypeError where it names no tool, or has arguments
    that are none."""
    call = _called(function)
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        raise TypeError("a call's name is text, and its arguments are an object")
    return ToolCall(f"call-{place}", name, arguments)


def templated(tokenizer: Any, settings: Mapping[str, Any] | None = None) -> Any:
    """The tokenizer, whose chat template is from now on shown calls and tools as templates expect them, whoever asks,
    and `settings` of its own, such as `{"enable_thinking": False}`.

    Arguments are an object: a text of JSON, as in the OpenAI shape and in the rows of datasets, would be written as a
    quoted text, which nobody reads as a call. Tools are functions, as servers show them.
    """
    apply = tokenizer.apply_chat_template

    def apply_chat_template(conversation: Any, tools: Any = None, **options: Any) -> Any:
        shown = [_function(tool) for tool in tools or ()] or None
        return apply(_shown(conversation), tools=shown, **{**(settings or {}), **options})

    tokenizer.apply_chat_template = apply_chat_template
    _learn_to_read(tokenizer)
    return tokenizer


def _learn_to_read(tokenizer: Any) -> None:
    """Give the tokenizer the response template of its chat template, or note what it cannot read of one."""
    template = tokenizer.chat_template
    if not isinstance(template, str) or "tools" not in template:
        return
    if response_template_of(tokenizer) is None:
        tokenizer.unread_mark = _unread_mark(tokenizer)


def response_template_of(tokenizer: Any) -> Any:
    """The template by which transformers reads what a model writes with this tokenizer's chat template: the tokenizer's
    own, or else TRL's, which the tokenizer has from then on; None where neither knows one."""
    if getattr(tokenizer, "response_template", None) is None:
        from trl.chat_template_utils import add_response_schema  # takes a second, for models that call tools

        with contextlib.suppress(ValueError):  # one that TRL does not know
            add_response_schema(tokenizer)
    return getattr(tokenizer, "response_template", None)


def _unread_mark(tokenizer: Any) -> str:
    """Return what stands before a call of this chat template; empty where its calls are read, or it has none."""
    try:
        asked = tokenizer.apply_chat_template(_ASKED, tools=_TOOLS, add_generation_prompt=True, tokenize=False)
        said = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
        whole = tokenizer.apply_chat_template([*_ASKED, said], tools=_TOOLS, tokenize=False)
    except Exception:  # Jinja raises what it likes, and templates raise on purpose
        return ""
    answer = whole.removeprefix(asked) if whole.startswith(asked) else ""
    mark = answer.partition(_NAME)[0].strip() if _NAME in answer and not read_tool_calls(answer)[1] else ""
    return mark if len(mark) >= SHORTEST_MARK else ""


def _shown(conversation: Sequence[Any]) -> list[Any]:
    """A conversation, or many of them."""
    return [_shown(row) if isinstance(row, list) else _message(row) for row in conversation]


def _message(row: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = row.get("tool_calls") or ()
    return {**row, "tool_calls": [{**call, "function": _called(call["function"])} for call in calls]} if calls else row


def _called(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    try:
        value = read_json(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):  # what a model wrote there is no JSON: it is shown as it stands
        value = None
    return {**function, "arguments": value if isinstance(value, dict) else arguments}


def _function(tool: Any) -> Any:
    is_bare = isinstance(tool, Mapping) and "function" not in tool
    return {"type": "function", "function": dict(tool)} if is_bare else tool
