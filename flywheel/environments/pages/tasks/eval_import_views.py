"""Importing an eval of OpenAI's hosted service: choose its files, look at what is taken of it, make it."""

import io
from contextlib import ExitStack
from typing import Any, BinaryIO

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.refusals import refusal_shown
from flywheel.environments.exchange.eval_imports import (
    EvalImport,
    EvalTaken,
    import_eval,
    preview_eval,
    read_document,
    read_eval,
)
from flywheel.environments.exchange.task_files import AT_ONCE, MAX_BYTES
from flywheel.environments.models import Split
from flywheel.environments.pages.environments.environment_forms import NamedForm
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.uploads import Upload

FIRST = 5


class EvalForm(NamedForm):
    """The files of an eval, or what was kept of them at the last look."""

    eval = forms.FileField(
        required=False,
        label="Eval",
        help_text="Its object as JSON: name and testing_criteria; with its run, if you have it.",
    )
    text = forms.CharField(
        required=False,
        strip=False,
        label="Or the object itself",
        widget=forms.Textarea(attrs={"rows": 8, "class": "code", "spellcheck": "false"}),
    )
    rows = forms.FileField(
        required=False,
        label="Its data",
        help_text=f"Rows of items, at most {AT_ONCE:,}. Leave it out where the run's object holds them.",
    )
    request = forms.CharField(
        required=False,
        max_length=2_000,
        label="What the user asks",
        help_text="Such as {{item.question}}; empty to take it from the run, or from the likeliest field.",
    )
    held_out_share = forms.FloatField(
        min_value=0.05, max_value=1, initial=0.4, help_text="Of sources; 1 where nothing is to be trained on."
    )
    kept_eval = forms.CharField(required=False, widget=forms.HiddenInput())
    kept_rows = forms.CharField(required=False, widget=forms.HiddenInput())
    field_order = ("name", "eval", "text", "rows", "request", "held_out_share")

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for name in ("eval", "rows"):
            file = data.get(name)
            if isinstance(file, UploadedFile) and (file.size or 0) > MAX_BYTES:
                self.add_error(name, f"The file is larger than {MAX_BYTES // 1024**2} MiB.")
        if not (data.get("eval") or (data.get("text") or "").strip() or data.get("kept_eval")) and not self.errors:
            self.add_error("eval", "Choose the eval's file or paste its object.")
        return data

    def kept(self, request: PageRequest, name: str, text: str = "") -> Upload | None:
        """The file that was sent now, or else that of the last look."""
        file = self.cleaned_data.get(name)
        if isinstance(file, UploadedFile):
            return uploads.keep(request.project, request.user, file.name or name, file.file)  # type: ignore[arg-type]
        if text.strip():
            return uploads.keep(request.project, request.user, "pasted", io.BytesIO(text.encode()))
        return uploads.find(request.project, self.cleaned_data[f"kept_{name}"])


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def import_openai_eval(request: PageRequest) -> HttpResponse:
    """Look at an eval, as often as somebody likes; make its environment when that is asked for."""
    form = EvalForm(request.POST or None, request.FILES or None)
    context: dict[str, Any] = {"form": form}
    if request.method == "POST" and form.is_valid():
        about, data = form.kept(request, "eval", form.cleaned_data["text"]), form.kept(request, "rows")
        if about is None:
            form.add_error("eval", "It expired after a day; choose it again.")
        else:
            with refusal_shown(form):
                made = _carry_out(request, form, about, data, context)
                if "make" in request.POST:
                    for upload in filter(None, (about, data)):
                        upload.discard()
                    _tell(request, made)
                    return redirect("environments:environment", request.project.slug, made.environment.name)
                context |= {"taken": made, "first": made.report.tasks[:FIRST], "splits": _splits(made)}
            context["kept"] = {"eval": about, "rows": data}
    return render(request, "environments/import_eval.html", context, status=422 if form.errors else 200)


def _carry_out(
    request: PageRequest, form: EvalForm, about: Upload, data: Upload | None, context: dict[str, Any]
) -> EvalTaken:
    """Look, or make. Raises Refused; the graders are in the context even then."""
    wanted = form.cleaned_data
    with about.open() as file:
        document = read_document(file.read())
    hosted = read_eval(request.project, document, wanted["request"])
    context |= {"graders": hosted.graders, "left": hosted.left, "request_template": hosted.request}
    is_made = "make" in request.POST
    asked = EvalImport(
        name=wanted["name"],
        document=document,
        request=wanted["request"],
        held_out_share=wanted["held_out_share"],
        is_partial="partial" in request.POST or not is_made,
    )
    with ExitStack() as stack:
        rows: BinaryIO | None = stack.enter_context(data.open()) if data else None
        verb = import_eval if is_made else preview_eval
        return verb(project=request.project, actor=request.actor, wanted=asked, rows=rows)


def _splits(made: EvalTaken) -> list[tuple[str, dict[str, int]]]:
    return [(split.label, made.report.splits[split]) for split in Split if split in made.report.splits]


def _tell(request: PageRequest, made: EvalTaken) -> None:
    is_whole = not made.report.left_out and not made.hosted.left
    (messages.success if is_whole else messages.warning)(request, f"{made.environment} made: {made.report}.")
