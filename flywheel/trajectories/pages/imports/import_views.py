"""The import: upload a file, say what the columns of a table mean, see what was kept and what was left out."""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO
from urllib.parse import urlencode

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, audit, requires
from flywheel.accounts.models import Permission
from flywheel.core.traces import Trace
from flywheel.edge.numbers import form_key, key, number
from flywheel.trajectories.detail.turns import Turn
from flywheel.trajectories.formats.files import file_values, table_rows
from flywheel.trajectories.formats.files.file_formats import FORMATS, TABLE
from flywheel.trajectories.formats.files.file_limits import Bounds, TooMuch
from flywheel.trajectories.formats.files.table_rows import FIELDS, Mapped
from flywheel.trajectories.formats.values.hostile_json import FormatError
from flywheel.trajectories.import_export import import_jobs, uploads
from flywheel.trajectories.import_export.trajectory_import import (
    MAX_BYTES,
    SECONDS_WAITED_FOR,
    Report,
    TooLarge,
    bounds_of_waiting,
    door,
    import_file,
    label_of,
)
from flywheel.trajectories.import_export.uploads import Upload
from flywheel.trajectories.ingest.admission import Busy
from flywheel.trajectories.models import Batch, Import
from flywheel.trajectories.pages.imports.import_form import ImportForm

BATCHES_SHOWN = 20
JOBS_SHOWN = 5
ROWS_SHOWN = 5
ROWS_TRIED = 50
"""Rows that the preview reads to say how many can be read."""
PREVIEWED = 3
TURNS_SHOWN = 12
COLUMNS_SHOWN = 40
CELL_SHOWN = 300
COMMON = 9
"""How many of the fields are shown at once; the others are folded away."""


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def import_page(request: PageRequest) -> HttpResponse:
    """Upload a file; what was kept and what was left out is read from the ledger, so that a reload shows it again.
    A large one is left to a worker and has a page of its own."""
    form = ImportForm(request.POST or None, request.FILES or None, initial={"format": "auto"})
    if request.method == "POST" and form.is_valid():
        try:
            return _take(request, form.cleaned_data["file"], form.cleaned_data["format"])
        except (FormatError, TooLarge) as error:
            form.add_error("file", str(error))
    batches = Batch.objects.filter(project=request.project).select_related("key")
    chosen = [pk for text in request.GET.getlist("batch") if (pk := key(text))]
    imported = list(batches.filter(pk__in=chosen).order_by("id")) if chosen else []
    context = {
        "form": form,
        "key": form_key(request.POST.get("key", "")),
        "formats": FORMATS.values(),
        "imported": imported,
        "sums": _sums(imported),
        "told": sum(len(batch.problems) for batch in imported),
        "read_as": _read_as(request.GET),
        "notes": number(request.GET.get("notes", "")) or 0,
        "jobs": Import.objects.filter(project=request.project)[:JOBS_SHOWN],
        "batches": batches.order_by("-id")[:BATCHES_SHOWN],
    }
    return render(request, "trajectories/import.html", context, status=422 if form.errors and request.htmx else 200)


def _take(request: PageRequest, file: "UploadedFile[Any]", format: str) -> HttpResponse:
    """Import the file, or have it imported, or ask first what the columns of a table mean."""
    size = file.size or 0
    if size > MAX_BYTES:
        raise TooLarge(MAX_BYTES)
    source: Any = file.file
    content = file_values.read(source, Bounds(seconds=SECONDS_WAITED_FOR))
    if content.is_table:
        rows = [item.value for item in islice(content.items, ROWS_SHOWN) if not item.error]
        is_known = any(entry.detect(table_rows.decoded(row)) for row in rows[:1] for entry in FORMATS.values())
        if format == TABLE or (format == "auto" and not is_known):
            upload = uploads.keep(request.project, request.user, file.name or "table", source)
            return redirect("trajectories:map", request.project.slug, upload.token)
    if not import_jobs.is_small(source, size):
        next(content.items, None)  # a file that cannot be read at all says so here
    elif report := _imported(request, source, format=format):
        return _back_with_report(request, file.name or "", report)
    upload = uploads.keep(request.project, request.user, file.name or "file", source)
    return _left_to_a_worker(request, upload, form_key(request.POST.get("key", "")), format=format)


def _imported(request: PageRequest, source: BinaryIO, **more: Any) -> Report | None:
    """None when it takes longer than a person should wait: a few kilobytes may unpack to any number of rows. A worker
    then begins again, and what is in is not stored twice."""
    source.seek(0)
    with suppress(TooMuch, Busy), door.admit():
        return import_file(request.project, source, bounds=bounds_of_waiting(), **more)
    return None


def _left_to_a_worker(request: PageRequest, upload: Upload, key: uuid.UUID, **more: Any) -> HttpResponse:
    job = import_jobs.submit(project=request.project, actor=request.actor, upload=upload, key=key, **more)
    return redirect("trajectories:import_job", request.project.slug, job.pk)


def _back_with_report(request: PageRequest, name: str, report: Report) -> HttpResponse:
    """Back to the page, which says what became of the file."""
    if not report.batches:
        raise FormatError(f"{name} holds no lines; nothing was changed.")
    audit(request, "trajectories.import", f"file {name}", steps=report.steps, formats=report.formats)
    shown = [("batch", str(batch.pk)) for batch in report.batches[-BATCHES_SHOWN:]]
    shown += [("read", f"{name}:{count}") for name, count in report.formats.items()]
    if report.notes:
        shown.append(("notes", str(report.notes)))
    return redirect(f"{reverse('trajectories:import', args=[request.project.slug])}?{urlencode(shown)}")


def _read_as(parameters: QueryDict) -> list[tuple[str, int]]:
    """Read the detected formats and the number of files of each out of the address."""
    found = []
    for text in parameters.getlist("read"):
        name, _, count = text.partition(":")
        if name in {*FORMATS, TABLE} and (files := number(count)):
            found.append((label_of(name), files))
    return found


def _sums(batches: list[Batch]) -> dict[str, int]:
    names = ("trajectories", "inserted", "updated", "duplicate", "rejected")
    return {name: sum(getattr(batch, name) for batch in batches) for name in names}


# Tables


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def map_page(request: PageRequest, token: str) -> HttpResponse:
    """Say what the columns mean, and import. The address holds the mapping."""
    upload = _upload(request, token)
    preview = _preview(upload, request.POST if request.method == "POST" else request.GET)
    if request.method == "POST":
        preview.is_guess = False
        if not preview.problem:
            try:
                with upload.open() as file:
                    is_small = import_jobs.is_small(file, upload.size)
                    report = _imported(request, file, format=TABLE, mapping=preview.mapping) if is_small else None
                if report is None:
                    chosen = {"format": TABLE, "mapping": preview.mapping.to_json()}
                    return _left_to_a_worker(request, upload, uuid.UUID(upload.token), **chosen)
                answer = _back_with_report(request, upload.name, report)
                upload.discard()
                return answer
            except FormatError as error:
                preview.problem = str(error)
    status = 422 if request.method == "POST" else 200
    return render(request, "trajectories/map.html", _context(upload, preview), status=status)


@require_GET
@requires(Permission.BUILD)
def map_preview(request: PageRequest, token: str) -> HttpResponse:
    """Fragment: the first trajectories as this mapping makes them."""
    upload = _upload(request, token)
    context = _context(upload, _preview(upload, request.GET))
    return render(request, "trajectories/_map_preview.html", context)


@require_POST
@requires(Permission.BUILD)
def discard(request: PageRequest, token: str) -> HttpResponse:
    """Delete the upload without importing it."""
    upload = _upload(request, token)
    upload.discard()
    messages.success(request, f"{upload.name} was deleted; nothing was imported.")
    return redirect("trajectories:import", request.project.slug)


def _upload(request: PageRequest, token: str) -> Upload:
    upload = uploads.find(request.project, token)
    if upload is None:
        raise Http404
    return upload


@dataclass(slots=True)
class Preview:
    """The first rows as a mapping reads them."""

    mapping: Mapped
    columns: tuple[str, ...] = ()
    kind: str = ""
    rows: list[dict[str, str]] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)
    tried: int = 0
    readable: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)
    problem: str = ""
    """Why the mapping itself cannot be."""
    is_guess: bool = False


def _preview(upload: Upload, given: QueryDict) -> Preview:
    with upload.open() as file:
        try:
            content = file_values.read(file, Bounds(seconds=SECONDS_WAITED_FOR))
            items = list(islice(content.items, ROWS_TRIED))
        except FormatError as error:
            return Preview(Mapped(), problem=str(error))
        rows = [item.value for item in items if not item.error]
        preview = Preview(Mapped(), content.columns, content.kind)
        preview.rows = [{key: _cell(value) for key, value in row.items()} for row in rows[:ROWS_SHOWN]]
        try:
            preview.is_guess = not given
            preview.mapping = table_rows.guess(content.columns, rows) if not given else _chosen(given, content.columns)
            if not preview.mapping.is_usable:
                raise FormatError("Choose the column that holds the messages, the input or the output.")
        except FormatError as error:
            preview.problem = str(error)
            return preview
        preview.tried = len(items)
        for item in items:
            try:
                if item.error:
                    raise FormatError(item.error)
                trace = table_rows.trace_of(item.value, preview.mapping)
            except FormatError as error:
                preview.problems.append({"at": item.at, "reason": str(error)})
                continue
            preview.readable += 1
            if len(preview.traces) < PREVIEWED:
                turns = list(_turns(trace))
                shown = {"turns": turns[:TURNS_SHOWN], "more": max(0, len(turns) - TURNS_SHOWN)}
                preview.traces.append({"at": item.at, "trace": trace, **shown})
    return preview


def _chosen(given: QueryDict, columns: tuple[str, ...]) -> Mapped:
    row: dict[str, Any] = {name: given[name] for name in FIELDS if given.get(name)}
    row["metadata"] = table_rows.ALL if given.get("rest") == "all" else given.getlist("metadata")
    try:
        return table_rows.read_mapping(row, columns)
    except FormatError as error:
        if not {"messages", "input", "output"} & set(row):
            return Mapped()
        raise error


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= CELL_SHOWN else f"{text[:CELL_SHOWN]}…"


def _turns(trace: Trace) -> Iterator[Turn]:
    for message in trace.conversation():
        if message.role == "tool":
            yield Turn("observation", "", "", text=message.content, name=message.name)
            continue
        if message.content or message.reasoning or not message.tool_calls:
            yield Turn(message.role, "", "", text=message.content, reasoning=message.reasoning)
        for call in message.tool_calls:
            yield Turn("call", "", "", name=call.name, arguments=call.arguments)


def _context(upload: Upload, preview: Preview) -> dict[str, Any]:
    chosen = preview.mapping
    choices = [(item, chosen.columns.get(item.name, "")) for item in FIELDS.values()]
    return {
        "upload": upload,
        "preview": preview,
        "choices": choices[:COMMON],
        "rarer": choices[COMMON:],
        "has_rarer": any(column for _, column in choices[COMMON:]),
        "columns": preview.columns[:COLUMNS_SHOWN],
        "metadata": set(preview.columns) - set(chosen.columns.values()) if chosen.metadata is None else chosen.metadata,
        "keeps_rest": chosen.metadata is None,
        "ready": not preview.problem and preview.readable > 0,
    }
