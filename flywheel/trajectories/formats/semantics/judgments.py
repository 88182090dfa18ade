"""Quality judgements in telemetry: GenAI evaluation events, OpenInference's annotations and evaluations.

https://github.com/Arize-ai/openinference/blob/main/spec/annotations_and_evaluations.md
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.core.traces import Outcome
from flywheel.trajectories.formats.otlp.spans import Span, unflatten
from flywheel.trajectories.formats.values.hostile_json import text

EVALUATION = "gen_ai.evaluation.result"
OUTCOME = "outcome"
"""The key whose value is the trajectory's outcome."""
INTERVENTION = "intervention"
"""The key of a person stepping in."""

MAX_KEY = 100
MAX_VALUE = 1000
MAX_COMMENT = 10_000

WORDS: dict[str, Outcome] = {
    **dict.fromkeys(("success", "pass", "passed", "correct", "true", "yes", "1", "up", "thumbs_up", "👍"), "success"),
    **dict.fromkeys(
        ("failed", "fail", "failure", "incorrect", "false", "no", "0", "down", "thumbs_down", "👎"), "failed"
    ),
}
"""Values that say an outcome, in lower case."""


@dataclass(frozen=True, slots=True)
class Judgment:
    trace_id: str
    span_id: str
    """Empty when it is about the whole trajectory."""
    key: str
    value: Any
    """A label or a number; None where there are only words."""
    score: float | None
    comment: str
    source: str
    """`human`, `end_user`, `model`, `code`"""
    by: str
    time_ns: int


def outcome_of(value: Any) -> Outcome | None:
    """The outcome that a value says, or None for one that says none."""
    if isinstance(value, bool):
        return "success" if value else "failed"
    if isinstance(value, int | float):
        return "success" if value == 1 else "failed" if value == 0 else None
    return WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def of_span(span: Span) -> list[Judgment]:
    """Return the span's judgements of itself, of its trace, or of the span that it links to."""
    found: list[Judgment] = []
    for event in span.events:
        if event.name == EVALUATION:
            found += evaluation(span.trace_id, span.span_id, event.attributes, event.time_ns or _time(span))
    attributes = span.attributes
    for first in FLAT:
        if first in attributes:
            return found + _flat(span)
    return found


def _flat(span: Span) -> list[Judgment]:
    found: list[Judgment] = []
    for scope in _SCOPES:
        found += _listed(span, scope, "annotation", span.trace_id, span.span_id)
        found += _listed(span, scope, "evaluation", *_target(span))
    return found


def evaluation(trace_id: str, span_id: str, attributes: Mapping[str, Any], time_ns: int) -> Iterator[Judgment]:
    """Read an event `gen_ai.evaluation.result`; yield nothing where it lacks its name or its result."""
    names = {name: attributes.get(f"gen_ai.evaluation.{key}") for name, key in _EVENT.items()}
    by_model = any(key in attributes for key in ("gen_ai.request.model", "gen_ai.response.model"))
    yield from _judged(names, trace_id, span_id, "model" if by_model else "code", time_ns)


_EVENT = {"name": "name", "score": "score.value", "label": "score.label", "explanation": "explanation"}
_SCOPES = ("", "trace.", "session.")
FLAT = tuple(f"{scope}{one}s.0.{one}.name" for scope in _SCOPES for one in ("annotation", "evaluation"))
_KINDS = {"HUMAN": "human", "LLM": "model", "CODE": "code"}


def _listed(span: Span, scope: str, one: str, trace_id: str, span_id: str) -> Iterator[Judgment]:
    rows = unflatten(span.attributes, f"{scope}{one}s")
    for row in rows if isinstance(rows, list) else ():
        fields = row.get(one) if isinstance(row, dict) else None
        if isinstance(fields, dict):
            source = _KINDS.get(str(fields.get("annotator_kind")).upper(), "code")
            yield from _judged(fields, trace_id, "" if scope else span_id, source, _time(span))


def _judged(fields: Mapping[str, Any], trace_id: str, span_id: str, source: str, time_ns: int) -> Iterator[Judgment]:
    name, label, score = fields.get("name"), fields.get("label"), _number(fields.get("score"))
    comment, by = fields.get("explanation"), fields.get("identifier")
    label = text(label)[:MAX_VALUE] if isinstance(label, str) and label else None
    comment = text(comment)[:MAX_COMMENT] if isinstance(comment, str) else ""
    if not isinstance(name, str) or not name or (label is None and score is None and not comment):
        return
    yield Judgment(
        trace_id,
        span_id,
        text(name)[:MAX_KEY],
        score if label is None else label,
        None if score is None else float(score),
        comment,
        source,
        text(by)[:200] if isinstance(by, str) else "",
        time_ns,
    )


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _time(span: Span) -> int:
    return span.end_ns or span.start_ns


def _target(span: Span) -> tuple[str, str]:
    """Return the target of an evaluator: the span that it links to, and never its parent."""
    if len(span.links) == 1:
        trace_id, span_id = span.links[0].get("trace_id"), span.links[0].get("span_id")
        if isinstance(trace_id, str) and isinstance(span_id, str) and trace_id:
            return trace_id, span_id
    return span.trace_id, span.span_id
