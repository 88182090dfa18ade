"""Spans of attempts: a version's own program tells of itself over OTLP while it is evaluated.

A span is an attempt's by its trace id, which the program was given as `traceparent`, by the attribute
`flywheel.attempt` of the span or its resource, or because the attempt's own key brings it. It is no production then,
and becomes a part of the attempt's one trajectory. An attempt that has its answer takes no more.
"""

import json
from collections.abc import Sequence

from django.utils import timezone

from flywheel.accounts.access import KeyRefused
from flywheel.accounts.models import Project
from flywheel.agents.models import AttemptKey, AttemptSpan
from flywheel.agents.models.attempt_keys import TRACE_MARK, is_attempts, parts_of
from flywheel.core.traces import Step
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.values.hostile_json import plain, text
from flywheel.trajectories.store.batch_ledger import Problem

ATTRIBUTE = "flywheel.attempt"
MOST = 500
"""Spans of its own that are kept for an attempt."""
SIZE_MAX = 256 * 1024
"""Characters of one, as JSON."""


def key_of(token: str) -> AttemptKey | None:
    """The attempt's key that this is; None for a token of another kind. Raises KeyRefused."""
    if not is_attempts(token):
        return None
    public, hashed = parts_of(token)
    key = AttemptKey.objects.select_related("version__agent__project").filter(public=public, hashed=hashed).first()
    if key is None or key.is_over:
        raise KeyRefused(401, "this attempt is over: send its spans before its answer")
    return key


def set_aside(project: Project, spans: list[Span]) -> tuple[list[Span], list[Problem]]:
    """Keep those of attempts for them; the others, and what could not be kept."""
    rest: list[Span] = []
    named: dict[str, list[Span]] = {}
    for span in spans:
        name = _attempt_of(span)
        (named.setdefault(name, []) if name else rest).append(span)
    if not named:
        return spans, []
    keys = AttemptKey.objects.filter(public__in=named, version__agent__project=project)
    found = {key.public: key for key in keys}
    problems: list[Problem] = []
    for name, theirs in named.items():
        if (key := found.get(name)) is not None:
            problems += keep(key, theirs)
        else:  # of an attempt that is over, mostly: what it was asked may be held out, and is never production
            problems += _left(theirs, "it is of no attempt that is under way in this project")
    return rest, problems


def keep(key: AttemptKey, spans: Sequence[Span]) -> list[Problem]:
    """Keep the spans for the attempt, each once; what could not be kept."""
    if key.is_over:
        return _left(spans, "its attempt is over: send spans before the answer")
    room = MOST - AttemptSpan.objects.filter(key=key, is_own=True).count()
    rows: list[AttemptSpan] = []
    problems = _left(spans[max(0, room) :], f"its attempt has {MOST} spans already")
    for span in spans[: max(0, room)]:
        content = plain(otlp_traces.to_json(span) | {"parent_id": span.parent_id, "turn": key.public})
        if len(json.dumps(content)) > SIZE_MAX:
            problems += _left([span], f"it has more than {SIZE_MAX} characters as JSON")
            continue
        began = otlp_traces.moment_of(span.start_ns) or timezone.now()
        rows.append(AttemptSpan(key=key, span_id=span.span_id, started_at=began, is_own=True, content=content))
    AttemptSpan.objects.bulk_create(rows, ignore_conflicts=True)
    return problems


def step_of(row: AttemptSpan) -> Step:
    """Read a span that was kept as the step that it is."""
    content = row.content
    return otlp_traces.step_of(
        otlp_traces.from_json(content, trace_id=turn_of(row), span_id=row.span_id, parent_id=content["parent_id"])
    )


def turn_of(row: AttemptSpan) -> str:
    """The public part of the key that the program had; a further turn has another."""
    return str(row.content["turn"])


def _attempt_of(span: Span) -> str:
    """The attempt that it names, by chance once in four thousand million trace ids; empty where it names none."""
    return _says(span) or (span.trace_id[len(TRACE_MARK) :] if span.trace_id.startswith(TRACE_MARK) else "")


def _says(span: Span) -> str:
    said = span.attributes.get(ATTRIBUTE) or span.resource.get(ATTRIBUTE)
    return text(said)[:64] if isinstance(said, str) else ""


def _left(spans: Sequence[Span], reason: str) -> list[Problem]:
    return [Problem(f"span {span.span_id}", reason) for span in spans]
