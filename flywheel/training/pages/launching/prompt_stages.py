"""The page on which a pipeline begins with a new prompt; the launch form goes on with the stages that train."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django import forms
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, Project
from flywheel.agents.models import Version
from flywheel.agents.references import find_version
from flywheel.edge.refusals import Missing, at_field, refusal_shown
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.runs.submission import MAX_SAMPLES, MAX_SEED
from flywheel.training.models import FixDraft
from flywheel.training.pages.fixes.fix_forms import offered, prompt_field
from flywheel.training.pages.launch_form import first_base, first_set
from flywheel.training.pages.launching import stage_forms
from flywheel.training.pipelines import prompt_stages
from flywheel.training.pipelines.prompt_stages import SAMPLES, VALIDATION_SHARE, PromptRequest

OFFERED = 20
"""Drafts of fix trials, the newest."""


class PromptForm(forms.Form):
    """A draft or a text, and how it is tried; `parent` and `task_set` are chosen above it."""

    draft = forms.CharField(required=False)
    system_prompt = prompt_field()
    samples = forms.IntegerField(
        min_value=1, max_value=MAX_SAMPLES, label="Samples per task (k)", help_text="Of both versions."
    )
    validation_share = forms.FloatField(
        min_value=0,
        max_value=0.5,
        label="Validation share",
        help_text="The gate after it looks at the tasks of this share of the training sources, 0 to 0.5.",
    )
    seed = forms.IntegerField(
        min_value=0,
        max_value=MAX_SEED,
        help_text="Stages that train with this seed and share keep the same tasks aside.",
    )

    def __init__(self, project: Project, data: Mapping[str, str]) -> None:
        """Raises Missing for a version or a set that is none of the project's."""
        self.parent, self.task_set = _chosen(project, data)
        usual = {"samples": f"{SAMPLES}", "validation_share": f"{VALIDATION_SHARE}", "seed": "1"}
        prompt = {"system_prompt": self.parent.system_prompt} if self.parent else {}
        super().__init__({**usual, **prompt, **data})

    @property
    def drafts(self) -> list[tuple[Version, str]]:
        """The newest that were tried with this version, each with its name, and the one that is chosen."""
        rows = FixDraft.objects.filter(trial__parent=self.parent).select_related("version__agent", "trial")
        found = {row.version: f"{row.name}, {row.trial}" for row in rows.order_by("-pk")[:OFFERED]}
        chosen = self["draft"].data
        if chosen and self.parent and chosen not in map(str, found):
            with suppress(Missing):
                found[find_version(self.parent.agent.project, chosen)] = ""
        return list(found.items())

    @property
    def fields_below(self) -> list[forms.BoundField]:
        return [self[name] for name in ("samples", "validation_share", "seed")]

    def request(self) -> PromptRequest | None:
        """The stage that is asked for; None while a field is wrong. Raises Refused."""
        if not self.is_valid() or self.parent is None or self.task_set is None:
            return None
        asked = self.cleaned_data
        with at_field("draft"):
            draft = find_version(self.parent.agent.project, asked["draft"]) if asked["draft"] else None
        return PromptRequest(
            base=self.parent,
            task_set=self.task_set,
            draft=draft,
            system_prompt=None if draft else asked["system_prompt"].replace("\r\n", "\n"),
            settings={name: asked[name] for name in ("samples", "validation_share")},
            seed=asked["seed"],
        )


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def prompt_stage(request: PageRequest) -> HttpResponse:
    """Choose or write the prompt; then the launch form, as for any further stage."""
    form = PromptForm(request.project, (request.POST if request.method == "POST" else request.GET).dict())
    if request.method == "POST":
        with refusal_shown(form):
            if wanted := form.request():
                stage = prompt_stages.freeze(1, wanted, wanted.base, request.actor)
                address = reverse("training:launch", args=[request.project.slug])
                return redirect(f"{address}?{stage_forms.after_prompt(wanted, stage)}")
    context = {"form": form, "tab": "pipelines", **offered(request.project, form.parent)}
    status = 422 if request.method == "POST" else 200
    return render(request, "training/prompt_stage.html", context, status=status)


def _chosen(project: Project, data: Mapping[str, str]) -> tuple[Version | None, Any]:
    """The version and the set that are named, else those that a launch proposes. Raises Missing."""
    version, task_set = data.get("version", ""), data.get("task_set", "")
    parent = find_version(project, version) if version else first_base(project)
    return parent, find_task_set(project, task_set) if task_set else first_set(project, parent)
