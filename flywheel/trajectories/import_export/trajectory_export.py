"""Trajectories out of the store, as files that other tools read and that come back as the same trajectories; and as a
table for spreadsheets.

A selection is streamed: it is walked by keyset, a few trajectories at a time, so that memory is bounded by the largest
of them and rows that arrive meanwhile shift nothing. Who took what is in the audit log before the first byte leaves.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from django.http import StreamingHttpResponse
from django.utils import timezone

from flywheel.accounts.access import KeyRequest, PageRequest, audit
from flywheel.core.traces import Trace
from flywheel.edge.refusals import Unreadable
from flywheel.system.sql import give_back
from flywheel.trajectories.formats.harnesses import atif
from flywheel.trajectories.formats.observability import otlp_documents
from flywheel.trajectories.formats.openai import openai_chat
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.import_export import spreadsheet
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search import list_columns
from flywheel.trajectories.search.query import parse
from flywheel.trajectories.store.stored_traces import traces_of

ROWS_AT_ONCE = 100
STEPS_AT_ONCE = 1000
"""Steps that are held at once, but for a single trajectory that has more."""
IDS_MAX = 500


class BadSelection(Unreadable):
    """There is no such format, or the filter cannot be understood."""


@dataclass(frozen=True, slots=True)
class Export:
    name: str
    label: str
    description: str
    line: Callable[[Trajectory, Trace, Sequence[str]], bytes]
    """Of a trajectory, with the attributes of these keys."""
    head: Callable[[Sequence[str]], bytes] = lambda _: b""
    """What the file begins with."""
    ending: str = "jsonl"
    media_type: str = "application/x-ndjson"

    def filename(self, stem: str) -> str:
        return f"{stem}.{self.name}.{self.ending}" if self.name != self.ending else f"{stem}.{self.ending}"


def _json(dump: Callable[[Trace], dict[str, Any]], place: str = "") -> Callable[..., bytes]:
    """A line of JSON; what attributes were chosen stands in the object of this name, where it is read back as metadata.
    Without one the format has no place for them."""

    def line(row: Trajectory, trace: Trace, keys: Sequence[str]) -> bytes:
        document = dump(trace)
        sent = {key: values for key in keys if (values := sent_attributes.values_of(row.attributes, key))}
        if place and sent:
            document.setdefault(place, {})["attributes"] = sent
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"

    return line


EXPORTS = {
    entry.name: entry
    for entry in (
        Export(
            "atif", "ATIF", "one trajectory a line, with token ids and log-probabilities", _json(atif.dump, "extra")
        ),
        Export(
            "otlp",
            "OTLP JSON",
            "one envelope of spans a line, for any OpenTelemetry backend",
            _json(otlp_documents.dump),
        ),
        Export(
            "openai",
            "OpenAI chat",
            "one conversation a line, with everything else beside it",
            _json(openai_chat.dump, "metadata"),
        ),
        Export(
            "openai-bare",
            "OpenAI chat, bare",
            "messages and tools alone, as fine-tuning services want them; cannot be read back whole",
            _json(lambda trace: openai_chat.dump(trace, bare=True)),
        ),
        Export(
            "csv",
            "CSV",
            "one trajectory a row, for spreadsheets: request, answer and figures without the steps between",
            spreadsheet.row_of,
            spreadsheet.head,
            "csv",
            "text/csv; charset=utf-8",
        ),
    )
}


def selection(project_id: int, q: str = "", ids: Iterable[str] = ()) -> QuerySet[Trajectory]:
    """The trajectories with these ids, or else those that the filter finds. Raises BadSelection."""
    rows = Trajectory.objects.filter(project=project_id)
    chosen = list(ids)
    if len(chosen) > IDS_MAX:
        raise BadSelection(f"id: {len(chosen)} of them, at most {IDS_MAX} are taken; use q")
    if chosen:
        return rows.filter(trace_id__in=chosen)
    query = parse(q)
    if query.problems:
        raise BadSelection(" ".join(query.problems))
    return query.apply(rows, project_id)


def answer(
    request: PageRequest | KeyRequest, *, format: str, q: str = "", ids: Iterable[str] = (), columns: Iterable[str] = ()
) -> StreamingHttpResponse:
    """A download of the selection, with the attributes among the columns. Raises BadSelection."""
    entry = EXPORTS.get(format)
    if entry is None:
        raise BadSelection(f"format: {format!r} is not one of {', '.join(EXPORTS)}")
    chosen = list(ids)
    rows, keys = selection(request.project.pk, q, chosen), attribute_keys(columns)

    def content() -> Iterator[bytes]:
        audit(request, "trajectories.export", f"as {entry.label}", q=q, ids=chosen[:20], format=format)
        yield entry.head(keys)
        yield from lines(rows, entry, keys)

    name = entry.filename(f"{request.project.slug}-{timezone.now():%Y%m%d-%H%M}")
    response = StreamingHttpResponse(content(), content_type=entry.media_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "no-store"
    return response


def attribute_keys(columns: Iterable[str]) -> list[str]:
    """The keys of attributes among columns of the list."""
    return [
        key.removeprefix(list_columns.ATTRIBUTE) for key in list_columns.attributes_in(list_columns.existing(columns))
    ]


def lines(rows: QuerySet[Trajectory], entry: Export, keys: Sequence[str] = ()) -> Iterator[bytes]:
    """One line for each trajectory, newest first."""
    for few in _batches(rows):
        traces = traces_of(few)
        give_back()  # a download may be slow, and there are more threads than connections
        for row in few:
            yield entry.line(row, traces.pop(row.pk), keys)


def _batches(rows: QuerySet[Trajectory]) -> Iterator[list[Trajectory]]:
    waiting: list[Trajectory] = []
    steps = 0
    for row in _walk(rows):
        if waiting and steps + row.step_count > STEPS_AT_ONCE:
            yield waiting
            waiting, steps = [], 0
        waiting.append(row)
        steps += row.step_count
    if waiting:
        yield waiting


_WIDE = ("claims", "version__endpoint", "version__system_prompt", "version__tools", "version__sampling")


def _walk(rows: QuerySet[Trajectory]) -> Iterator[Trajectory]:
    ordered = rows.select_related("version__agent", "agent").order_by("-started_at", "-id").defer(*_WIDE)
    beyond = Q()
    while page := list(ordered.filter(beyond)[:ROWS_AT_ONCE]):
        yield from page
        last = page[-1]
        if len(page) < ROWS_AT_ONCE:
            return
        older = Q(started_at__lt=last.started_at) | Q(started_at=last.started_at, id__lt=last.pk)
        beyond = Q(started_at__lte=last.started_at) & older
