"""Turns as HTML: what `transcript.py` reads, as every page that shows a conversation writes it.

In Python and by hand, as `cells.py` does it and for the same reason: a window has dozens of turns, of which a template
looked some fifty names up each. What an agent or a person wrote passes `said`.
"""

from collections.abc import Collection
from html import escape
from typing import Any
from urllib.parse import quote

from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString

from flywheel.templatetags.flywheel import count, duration, money, pretty, tokens
from flywheel.trajectories.detail.markup import said
from flywheel.trajectories.detail.turns import TEXT_SHOWN, Turn
from flywheel.trajectories.models import Step

_CLASSES = {"call": "tool", "error": "observation failing"}
_WHO = {"system": "System prompt", "user": "User", "assistant": "Agent"}
_EXPECTED = ("", "stop", "tool_calls")
"""Why a model usually stops."""


class Turns:
    """Writes the turns of one trajectory."""

    def __init__(
        self, slug: str, trace_id: str, *, failing: str, chosen: str, selectable: object = True, in_pane: bool = False
    ) -> None:
        """`selectable` as `_conversation.html` has it."""
        self.failing, self.chosen = failing, chosen
        self.in_pane = in_pane
        """Among what is said of one step, beside the conversation."""
        self.own = "&amp;own" if in_pane else ""
        self.then = self.own if selectable else f"{self.own}&amp;elsewhere"
        self.address = _address("trajectories:detail", slug, trace_id)
        self.turn_address = _address("trajectories:turn", slug, trace_id)
        """Empty where no trajectory is stored."""
        self.download = _address("trajectories:download", slug, trace_id)
        self.can_ask = bool(selectable is not False and self.turn_address)
        """Whether there is somebody to be asked for more of a turn."""

    def html(self, turns: Collection[Turn]) -> SafeString:
        if not turns:
            return SafeString('<li class="muted">Nothing is said in these steps; they are in the list of steps.</li>')
        return SafeString("\n".join([self._turn(turn) for turn in turns]))

    def _turn(self, turn: Turn) -> str:
        body = self._repeated(turn) if turn.kind == "system" or turn.same_as else self._whole(turn)
        cut = self._cut(turn) if turn.is_cut else ""
        end = "</ol></details></li>" if turn.closes else ""
        return f"{self._run(turn)}<li{self._attributes(turn)}>{body}{cut}</li>{end}"

    def _attributes(self, turn: Turn) -> str:
        kind = _CLASSES.get(turn.kind) or escape(turn.kind)
        failing = " failing" if turn.step and turn.span_id == self.failing else ""
        current = " current" if turn.step and turn.span_id == self.chosen and not self.in_pane else ""
        found = f' class="turn {kind}{failing}{current}"'
        if not self.in_pane:
            name = f' id="step-{escape(turn.span_id)}"' if turn.step else ""
            found += f'{name} data-at="{turn.position}"'
        if self.turn_address and turn.position >= 0:
            found += f' data-turn="{self._asked(turn)}{self.own}"'
        return found

    def _asked(self, turn: Turn) -> str:
        return f"{self.turn_address}?at={turn.position}&amp;n={turn.index}"

    def _run(self, turn: Turn) -> str:
        run = turn.opens
        if run is None:
            return ""
        is_open = " open" if self.failing in run.spans or self.chosen in run.spans else ""
        bad = f' <span class="chip bad">✕ {count(run.errors)} error{_s(run.errors)}</span>' if run.errors else ""
        took = f' <span class="muted num">{duration(run.took_ms)}</span>' if run.took_ms is not None else ""
        return (
            f'<li class="run"><details{is_open}><summary>{count(run.calls)} × <code>{said(run.name)}</code>{bad}{took}'
            '</summary><ol class="talk">'
        )

    def _repeated(self, turn: Turn) -> str:
        """One line that opens: a system prompt, or what was said before."""
        who = _WHO.get(turn.kind) or f"Result of <code>{said(turn.name)}</code>"
        what = f"{count(len(turn.text))} characters"
        if turn.same_as:
            what = f"same as step {count(turn.same_as.position + 1)}"
        return (
            f'<details><summary>{who} <span class="muted">{what}</span></summary>'
            f'<pre class="prose">{said(turn.shown)}</pre></details>'
        )

    def _whole(self, turn: Turn) -> str:
        reasoning = error = ""
        if turn.reasoning:
            reasoning = (
                f'<details class="reasoning"><summary>Reasoning <span class="muted">{count(len(turn.reasoning))}'
                f' characters</span></summary><pre class="prose">{said(turn.shown_reasoning)}</pre></details>'
            )
        if turn.step and turn.step.error and turn.kind != "error" and turn.step.error != turn.text:
            error = f'<p class="note bad"><b>Error.</b> {said(turn.step.error)}</p>'
        return f"<header>{self._head(turn)}</header>{reasoning}{_content(turn)}{error}"

    def _head(self, turn: Turn) -> str:
        parts = [_who(turn)]
        if turn.is_broken:
            parts.append('<span class="chip bad">✕ arguments are no JSON object</span>')
        if turn.step and not self.in_pane:
            if turn.span_id == self.failing:
                parts.append('<span class="chip bad">✕ fails here</span>')
            parts.append(self._facts(turn, turn.step))
        if self.can_ask and turn.has_tree:
            text, word = ("", "tree") if turn.as_text else ("&amp;text", "text")
            parts.append(
                f'<span class="verbs"><button type="button" class="btn link small"'
                f' hx-get="{self._asked(turn)}{text}{self.then}" hx-target="closest .turn" hx-swap="outerHTML">{word}'
                '</button><button type="button" class="btn link small" data-copy-value>copy</button></span>'
            )
        return " ".join(parts)

    def _facts(self, turn: Turn, step: Step) -> str:
        """What is known of a turn's step."""
        number, span = count(step.position + 1), escape(turn.span_id)
        facts = []
        if (took := step.duration_ms) is not None:
            facts.append(duration(took))
        if step.tokens_in is not None or step.tokens_out is not None:
            cached = f", {step.tokens_cached} of them cached" if step.tokens_cached else ""
            told = f"· {tokens(step.tokens_in)} → {tokens(step.tokens_out)} tokens"
            facts.append(f'<span title="tokens in and out{cached}">{told}</span>')
        if step.cost_usd is not None:
            facts.append(f"· {escape(money(step.cost_usd))}")
        if step.model:
            facts.append(f"· {said(step.model)}")
        if step.finish_reason not in _EXPECTED:
            facts.append(f'<span class="chip warn" title="why the model stopped">! {said(step.finish_reason)}</span>')
        link = (
            f'<a class="muted num" href="{self.address}?step={escape(quote(turn.span_id))}" data-step="{span}"'
            f' title="Step {step.position + 1}">{number}</a>'
        )
        error = ' <span class="chip bad">✕ error</span>' if step.status == "error" else ""
        return f'{link} <span class="muted num">{" ".join(facts)}</span>{error}'

    def _cut(self, turn: Turn) -> str:
        more = f", of {count(len(turn.text))} characters" if len(turn.text) > TEXT_SHOWN else ""
        if not turn.trace_id:
            return f'<p class="small muted">Only the beginning is shown{more}.</p>'
        button = ""
        if self.can_ask and not turn.is_whole:
            text = "&amp;text" if turn.as_text else ""
            button = (
                f' <button type="button" class="btn link small" hx-get="{self._asked(turn)}&amp;whole{text}{self.then}"'
                ' hx-target="closest .turn" hx-swap="outerHTML">Show all</button>'
            )
        link = f'<a href="{self.download}?step={escape(quote(turn.span_id))}" download>Download the whole step</a>'
        return f'<p class="small muted">Only the beginning is shown{more}.{button} {link}</p>'


def _who(turn: Turn) -> str:
    name = said(turn.name)
    match turn.kind:
        case "user" | "assistant":
            return _WHO[turn.kind]
        case "call":
            return f"Call <code>{name}</code>"
        case "observation":
            return f'Result <span class="muted">of <code>{name}</code></span>' if name else "Result"
        case "intervention":
            return f"A person {name}{f' <span class={_MUTED}>{said(turn.by)}</span>' if turn.by else ''}"
    return f"Error in {name}"


_MUTED = '"muted"'


def _content(turn: Turn) -> str:
    if turn.tree:
        return turn.tree.html
    match turn.kind:
        case "call" if turn.written:
            return f'<pre class="json">{escape(pretty(turn.written))}</pre>'
        case "call":
            return '<p class="none small">no arguments</p>'
        case "observation":
            return f'<pre class="json">{said(turn.shown) if turn.text else _EMPTY}</pre>'
        case "error":
            return f'<pre class="json">{said(turn.shown)}</pre>' if turn.text else ""
    if turn.text:
        return f'<pre class="prose">{said(turn.shown)}</pre>'
    return '<p class="none">wrote nothing</p>' if turn.kind == "assistant" and not turn.reasoning else ""


_EMPTY = '<span class="none">empty</span>'


def _address(name: str, slug: str, trace_id: str) -> str:
    """As it stands in an attribute; empty where there is none."""
    try:
        return escape(reverse(name, args=[slug, trace_id]))
    except NoReverseMatch:
        return ""


def _s(number: Any) -> str:
    return "" if number == 1 else "s"
