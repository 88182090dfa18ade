"""Pages of what will be learnt: rows in a base's tokens, chosen from a dataset's page or the launch form."""

from typing import Any

from django import forms
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.core.recipes import ALGORITHMS
from flywheel.edge import job_pages
from flywheel.edge.refusals import refusal_shown
from flywheel.environments.models import TaskSet
from flywheel.training.launch import preview_jobs
from flywheel.training.models import Dataset, TokenPreview
from flywheel.training.pages import launch_form

OFFERED = 50
"""Versions, and sets, that the form offers."""
EARLIER = 10
"""Previews of the dataset that the form links to."""


class PreviewForm(forms.Form):
    """Whose tokens, and for which algorithm."""

    base = forms.ModelChoiceField(Version.objects.none(), label="Base", empty_label=None)
    algorithm = forms.ChoiceField(label="Algorithm")
    task_set = forms.ModelChoiceField(
        TaskSet.objects.none(), label="Task set", empty_label=None, help_text="Prompts list its environment’s tools."
    )

    def __init__(self, dataset: Dataset, data: Any) -> None:
        super().__init__(data, label_suffix="")
        versions = Version.objects.filter(agent__project=dataset.project, weights__isnull=False)
        self._offer("base", versions.select_related("agent").order_by("-pk"))
        fitting = [(row.name, row.label) for row in ALGORITHMS.values() if row.data == dataset.kind]
        self.fields["algorithm"].choices = fitting  # type: ignore[attr-defined]
        if dataset.task_set is not None:
            del self.fields["task_set"]
        else:
            self._offer("task_set", TaskSet.objects.filter(project=dataset.project).order_by("-pk"))

    def _offer(self, name: str, rows: Any) -> None:
        newest = list(rows.values_list("pk", flat=True)[:OFFERED])
        self.fields[name].queryset = rows.filter(pk__in=newest)  # type: ignore[attr-defined]


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def choose_preview(request: PageRequest, name: str, version: int) -> HttpResponse:
    """Choose the base in whose tokens a dataset's rows are shown."""
    rows = Dataset.objects.select_related("task_set", "project")
    dataset = get_object_or_404(rows, project=request.project, name=name, version=version)
    form = PreviewForm(dataset, request.POST or None)
    if request.method == "POST" and form.is_valid():
        with refusal_shown(form):
            job, _ = preview_jobs.preview(dataset=dataset, actor=request.actor, **form.cleaned_data)
            return redirect("training:preview", request.project.slug, job.pk)
    earlier = dataset.previews.select_related("base__agent").order_by("-pk")[:EARLIER]
    context = {"dataset": dataset, "form": form, "earlier": earlier, "tab": "datasets"}
    return render(request, "training/choose_preview.html", context, status=422 if form.errors else 200)


@require_GET
@requires(Permission.VIEW)
def preview_page(request: PageRequest, preview: int) -> HttpResponse:
    """Show rows in tokens, or how far the worker is."""
    found = _preview(request, preview)
    context = _context(request, found) | {"preview": found.result, "launch": urlencode(_launched(found))}
    return render(request, "training/preview.html", context)


def _launched(job: TokenPreview) -> dict[str, str]:
    """The choices of the launch form that a preview stands for."""
    chosen = {"base": job.base, "task_set": job.task_set, "dataset": job.dataset, "algorithm": job.algorithm}
    return {name: str(value) for name, value in chosen.items()} | launch_form.settings_as_data(job.settings)


def _context(request: PageRequest, job: TokenPreview) -> dict[str, Any]:
    return {"job": job, "may_stop": Permission.TRAIN in request.permissions, "tab": "datasets"}


def _preview(request: PageRequest, pk: int) -> TokenPreview:
    rows = TokenPreview.objects.select_related("base__agent", "dataset", "task_set", "created_by", "project")
    return get_object_or_404(rows, project=request.project, pk=pk)


preview_live = job_pages.live(_preview, "training/_preview_live.html", requires(Permission.VIEW), _context)
cancel_preview = job_pages.cancel(_preview, "training:preview", requires(Permission.TRAIN))
resume_preview = job_pages.resume(_preview, "training:preview", requires(Permission.TRAIN))
