"""Importing tasks from a page: upload or paste, look at what they would become, import."""

import io
from typing import Any, BinaryIO

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.envs.replay import episode_replay
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.task_files import AT_ONCE, KINDS, MAX_BYTES, Taken, import_tasks, look
from flywheel.environments.models import Environment, Split
from flywheel.environments.proofs.proof_jobs import is_for_a_worker
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.uploads import Upload


class TasksForm(forms.Form):
    """A file, or the same pasted."""

    file = forms.FileField(
        required=False,
        label="File",
        help_text=f"JSON Lines, JSON, CSV or Parquet, at most {AT_ONCE:,} rows and {MAX_BYTES // 1024**2} MiB.",
        widget=forms.FileInput(attrs={"accept": ".jsonl,.ndjson,.json,.csv,.tsv,.parquet,.gz"}),
    )
    text = forms.CharField(
        required=False,
        strip=False,
        label="Or the lines themselves",
        widget=forms.Textarea(attrs={"rows": 6, "class": "code", "spellcheck": "false"}),
    )

    match = forms.ChoiceField(
        required=False,
        label="Answers in words are right",
        choices=[
            ("words", "when they say the same facts"),
            ("exact", "when they are exactly the wanted text"),
            ("number", "when their last number is the wanted one"),
        ],
    )

    def __init__(self, *args: Any, kind: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if kind != episode_replay.KIND:
            del self.fields["match"]

    def clean(self) -> dict[str, object]:
        data = super().clean() or {}
        file, text = data.get("file"), (data.get("text") or "").strip()
        if bool(file) == bool(text) and not self.errors:
            raise forms.ValidationError("Choose a file or paste its lines, not both.")
        if isinstance(file, UploadedFile) and (file.size or 0) > MAX_BYTES:
            self.add_error("file", f"The file is larger than {MAX_BYTES // 1024**2} MiB; send it in parts.")
        return data

    @property
    def source(self) -> tuple[str, BinaryIO]:
        """Its name, and what it holds."""
        file = self.cleaned_data["file"]
        if isinstance(file, UploadedFile):
            return file.name or "file", file.file  # type: ignore[return-value]
        return "pasted lines", io.BytesIO(self.cleaned_data["text"].encode())


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def choose(request: PageRequest, name: str) -> HttpResponse:
    """Upload a file, or paste it. Nothing becomes a task before it was looked at."""
    row = _environment(request, name)
    form = TasksForm(request.POST or None, request.FILES or None, kind=row.kind)
    if request.method == "POST" and form.is_valid():
        upload = uploads.keep(request.project, request.user, *form.source)
        found = redirect("environments:look_at_tasks", request.project.slug, row.name, upload.token)
        match = form.cleaned_data.get("match") or "words"
        return redirect(f"{found.url}?match={match}") if match != "words" else found
    context = {"environment": row, "form": form}
    return render(request, "environments/import.html", context, status=422 if request.method == "POST" else 200)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def look_at(request: PageRequest, name: str, token: str) -> HttpResponse:
    """Preview an import of the lines; a POST carries it out."""
    row, upload = _environment(request, name), _upload(request, token)
    problem, report, match = "", Taken(), request.GET.get("match", "words")
    try:
        with upload.open() as lines:
            if request.method == "POST":
                report = import_tasks(environment=row, lines=lines, actor=request.actor, match=match)
            else:
                report = look(environment=row, lines=lines, match=match)
    except Refused as error:
        problem = str(error)
    if request.method == "POST" and not problem:
        upload.discard()
        (messages.warning if report.left_out else messages.success)(request, f"{upload.name}: {report}.")
        return redirect("environments:environment", request.project.slug, row.name)
    context = {
        "environment": row,
        "upload": upload,
        "report": report,
        "problem": problem,
        "splits": [(split.label, report.splits.get(split, {"tasks": 0, "clusters": 0})) for split in Split],
        "first": list(zip(report.lines, report.tasks, strict=True))[:5],
        "by_a_worker": is_for_a_worker(row.latest, report.made),
    }
    return render(request, "environments/import_look.html", context, status=422 if problem else 200)


@require_POST
@requires(Permission.BUILD)
def discard(request: PageRequest, name: str, token: str) -> HttpResponse:
    """Delete the upload; nothing becomes a task."""
    row, upload = _environment(request, name), _upload(request, token)
    upload.discard()
    messages.success(request, f"{upload.name} was deleted; nothing was imported.")
    return redirect("environments:import_tasks", request.project.slug, row.name)


def _environment(request: PageRequest, name: str) -> Environment:
    """One whose kind takes other people's tasks."""
    return get_object_or_404(Environment, project=request.project, name=name, kind__in=KINDS)


def _upload(request: PageRequest, token: str) -> Upload:
    upload = uploads.find(request.project, token)
    if upload is None:
        raise Http404
    return upload
