"""Search inside one trajectory: which steps say a text, in what was said, called and answered.

PostgreSQL picks the steps that hold the text at all; only those are read. Model calls repeat their history, so what a
step was told counts where it was told first, and what it wrote, called or answered counts every time.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast

from flywheel.core import traces
from flywheel.trajectories.models import Blob, Event, Step, Trajectory
from flywheel.trajectories.store.stored_traces import complete, step_of

MOST = 1_000
"""Matches that are answered."""
LONGEST = 500
"""Characters of what is looked for."""
AROUND = 60
"""Characters beside a match."""
BATCH = 100


@dataclass(frozen=True, slots=True)
class Match:
    """A step that says it."""

    position: int
    span_id: str
    place: str
    """`message`, `reasoning`, `call`, `arguments`, `result`, `error`, `name`"""
    excerpt: str


@dataclass(frozen=True, slots=True)
class Found:
    matches: list[Match]
    is_part: bool
    """There are more."""


def find(trajectory: Trajectory, text: str) -> Found:
    """The steps that say the text, in order, whatever its case; each once, by the first place that does."""
    wanted = text.strip()[:LONGEST].casefold()
    matches = list(islice(_matches(trajectory, wanted), MOST + 1)) if wanted else []
    return Found(matches[:MOST], is_part=len(matches) > MOST)


def _matches(trajectory: Trajectory, wanted: str) -> Iterator[Match]:
    told: set[str] = set()
    candidates, following = _candidates(trajectory, wanted), 0
    while rows := list(candidates.filter(position__gte=following)[:BATCH]):
        following = rows[-1].position + 1
        complete(rows, [trajectory])
        for row in rows:
            if (match := _match(row, step_of(row), wanted, told)) is not None:
                yield match


def _match(row: Step, step: traces.Step, wanted: str, told: set[str]) -> Match | None:
    first = None
    for place, text, is_own in _texts(row, step):
        at = text.casefold().find(wanted)
        if at < 0:
            continue
        if (is_own or text not in told) and first is None:
            first = Match(row.position, row.span_id, place, _excerpt(text, at, len(wanted)))
        told.add(text)
    return first


def _texts(row: Step, step: traces.Step) -> Iterator[tuple[str, str, bool]]:
    """Everything that a step says: where, what, and whether it is its own."""
    for messages, is_own in ((step.input, False), (step.output, True)):
        for message in messages:
            yield ("result" if message.role == "tool" else "message"), message.content, is_own
            yield "reasoning", message.reasoning, is_own
            for call in message.tool_calls:
                yield "call", call.name, is_own
                yield "arguments", _text(call.arguments), is_own
    yield "call", row.tool_name, True
    yield "arguments", _text(step.arguments), True
    yield "result", _text(step.result), True
    yield "error", row.error, True
    yield "name", row.name, True


def _candidates(trajectory: Trajectory, wanted: str) -> QuerySet[Step]:
    """Steps with the text in their columns, their body, or what is stored apart from it."""
    asked = Q(name__icontains=wanted) | Q(tool_name__icontains=wanted) | Q(error__icontains=wanted)
    held = reduce(or_, (Q(written__icontains=written) for written in _written(wanted)))
    asked |= held
    steps = trajectory.steps.alias(written=Cast("body", TextField())).order_by("position")
    if trajectory.event_count:
        events = Event.objects.filter(project=trajectory.project_id, trace_id=trajectory.trace_id)
        said = events.alias(written=Cast("body", TextField()))
        asked |= Q(span_id__in=said.filter(held).values("span_id"))
    digests = {digest for row in steps.exclude(blobs=None).values_list("blobs", flat=True) for digest in row or ()}
    if digests:
        blobs = Blob.objects.filter(project=trajectory.project_id, sha256__in=digests, content__icontains=wanted)
        asked |= Q(blobs__overlap=list(blobs.values_list("sha256", flat=True)))
    return steps.filter(asked)


def _written(wanted: str) -> set[str]:
    """As JSON writes it, and as JSON in a string of JSON does."""
    found = {wanted}
    for _ in range(2):
        found |= {json.dumps(each, ensure_ascii=is_ascii)[1:-1] for each in found for is_ascii in (False, True)}
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _excerpt(text: str, at: int, length: int) -> str:
    before, after = max(0, at - AROUND), at + length + AROUND
    return f"{'…' if before else ''}{text[before:after]}{'…' if after < len(text) else ''}"
