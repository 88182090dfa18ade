"""Turns as HTML: whatever stands in any field of a turn, it is text."""

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from django.template.context import Context

from flywheel.accounts.models import Project
from flywheel.trajectories.detail.turns import Run, Turn
from flywheel.trajectories.models import Step
from flywheel.trajectories.templatetags.turns import write
from tests import hostile

KINDS = ("system", "user", "assistant", "call", "observation", "intervention", "error")
OURS = {"li", "ol", "ul", "details", "summary", "header", "span", "pre", "code", "p", "b", "a", "button"}
TRACE = "ab" * 16


class Read(HTMLParser):
    """What a browser would make of it: names of tags and of attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def turns(text: str) -> Iterator[Turn]:
    for kind in KINDS:
        step = Step(span_id=text[:64], position=4, status="error", error=f"{text}!", model=text, finish_reason=text)
        fields: dict[str, Any] = {"text": text, "name": text, "by": text, "reasoning": text, "step": step}
        yield Turn(kind, TRACE, text[:64], 4, **fields)
        yield Turn(kind, TRACE, text[:64], 4, arguments={text: [text, {"b": text}]}, opens=Run(text, 5), **fields)
        yield Turn(kind, TRACE, text[:64], 4, arguments=text, closes=True, **fields)


def html(turns: list[Turn], **context: Any) -> str:
    return write(Context({"project": Project(slug="acme"), "turns": turns, **context}))


@pytest.mark.parametrize("text", [*hostile.PAYLOADS, hostile.MIXED], ids=range(len(hostile.PAYLOADS) + 1))
def test_what_a_turn_says_is_text(text: str) -> None:
    for in_pane in (False, True):
        written = html(list(turns(text)), failing=text[:64], chosen=text[:64], selectable=True, in_pane=in_pane)
        assert "<script" not in written.lower()
        read = Read(written)
        assert read.tags <= OURS
        assert not {"pwn", "style", "src"} & read.attributes
        assert not any(name.startswith("on") for name in read.attributes)
        assert "\u202e" not in read.text


def test_where_no_trajectory_is_stored_nobody_is_asked_for_more() -> None:
    said = [Turn("user", "", "a", 0, text="x" * 30_000), Turn("call", "", "a", 0, arguments={"a": 1})]
    assert "hx-get" not in html(said)
    assert "Only the beginning is shown, of 30" in html(said)
    assert "No messages in these steps" in html([])
