"""Answers that are told while their tokens are drawn.

What is told is certain: whole characters, which the rest of the answer does not take back. Held back is what may begin
a text at which the answer ends, and what may be a call, which the reader of calls takes out of the text when all of it
is there (`tool_calls`).
"""

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, replace
from typing import Any

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse

CALL = "<tool_call>"
"""What stands before a call that Qwen and Hermes models write."""
MARKS = "{[<"
"""What an answer begins with that may be a call, in the ways of writing them that response templates read."""
BROKEN = "\ufffd"
"""What a part of a character is decoded as."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose answer is told as it comes."""

    key: int
    """Its own in the process that asks, and greater than those of all calls before it."""
    request: ChatRequest
    stop: tuple[str, ...] = ()
    """Texts before which the answer ends."""
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """More of a call's answer: text that was not told yet, in whole characters; in the end all that is known of it."""

    key: int
    text: str = ""
    answer: ChatResponse | None = None


class StreamedAnswer:
    """One answer, from its first token to its end."""

    def __init__(self, tokenizer: Any, call: Call, tell: Callable[[Heard], None], gone: Container[int]) -> None:
        self._tokenizer, self._call, self._tell, self._gone = tokenizer, call, tell, gone
        is_read_by_template = getattr(tokenizer, "response_template", None) is not None
        self._added = frozenset(tokenizer.added_tokens_decoder) if is_read_by_template else None
        self.limit = call.request.sampling.max_tokens
        self.tokens: list[int] = []
        self.is_over = False
        self._before, self._read = 0, 0
        """Tokens that are decoded again with the next ones, whose text depends on them; and how many are decoded."""
        self._text, self._told = "", ""
        self._is_held = self._is_stopped = False
        self._marks = (*call.stop, CALL)

    def hear(self, token: int) -> bool:
        """Take the next token, which ends nothing by itself; whether no more are wanted."""
        self.tokens.append(token)
        if self._call.key in self._gone:
            return True
        if not (self._call.is_streamed or self._call.stop):
            return False
        self._decode()
        if self._call.is_streamed:
            self._speak(token)
        self._is_stopped = _first(self._text, self._call.stop) is not None
        return self._is_stopped

    def conclude(self, answer: ChatResponse) -> None:
        """Tell what is left to be told, and that it is the end; once."""
        if self.is_over:
            return
        self.is_over = True
        place = _first(answer.text, self._call.stop)
        if place is not None or self._is_stopped:
            answer = replace(answer, text=answer.text[:place], finish_reason="stop")
        self._tell(Heard(self._call.key, self._rest(answer.text) if self._call.is_streamed else "", answer))

    def _decode(self) -> None:
        known = self._tokenizer.decode(self.tokens[self._before : self._read], skip_special_tokens=True)
        longer = self._tokenizer.decode(self.tokens[self._before :], skip_special_tokens=True)
        if len(longer) > len(known) and not longer.endswith(BROKEN):
            self._text += longer[len(known) :]
            self._before, self._read = self._read, len(self.tokens)

    def _speak(self, token: int) -> None:
        """Tell what has become certain."""
        if self._added is not None:  # the template says what of the text is content
            begins = self._text.lstrip()[:1]
            self._is_held |= token in self._added or (begins != "" and begins in MARKS)
        if self._is_held:
            return
        place = _first(self._text, self._marks)
        certain = self._text[: _certain(self._text, self._marks) if place is None else place]
        if len(certain) > len(self._told):
            piece, self._told = certain[len(self._told) :], certain
            self._tell(Heard(self._call.key, piece))

    def _rest(self, text: str) -> str:
        """Return what of the whole text was not told. A reader may have taken spaces away around it."""
        for told in (self._told, self._told.strip()):
            if text.startswith(told):
                return text[len(told) :]
        return ""


def _first(text: str, marks: Collection[str]) -> int | None:
    """Return where the first of these texts begins."""
    places = [place for mark in marks if (place := text.find(mark)) >= 0]
    return min(places, default=None)


def _certain(text: str, marks: Collection[str]) -> int:
    """Return how much of a text ends before what may become one of these."""
    longest = max(map(len, marks)) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        if any(mark.startswith(text[start:]) for mark in marks):
            return start
    return len(text)
