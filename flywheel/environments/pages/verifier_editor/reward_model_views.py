"""Reward models: the project's, and one of them with its canaries, where it comes from and who asks it."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, Project
from flywheel.agents import artifacts
from flywheel.agents.models import RewardModel
from flywheel.core.text.number_words import percent
from flywheel.edge.paging import page_at
from flywheel.environments.pages.verifier_editor.verifier_forms import Draft
from flywheel.environments.versions import reward_parts

LISTED = 50
"""Verifiers and recipes that ask a model; runs that made it."""
OFFERED = 100
"""Models that a form offers, the newest."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """Every reward model, newest first."""
    rows = RewardModel.objects.filter(project=request.project).select_related("base__agent", "created_by")
    return render(request, "environments/reward_models.html", {"page": page_at(request, rows)})


@require_GET
@requires(Permission.VIEW)
def reward_model(request: PageRequest, name: str, number: int) -> HttpResponse:
    """One model: what it ranks right, what it is made of, who asks it, and its weights."""
    rows = RewardModel.objects.filter(project=request.project).select_related("weights", "base__agent", "created_by")
    model = get_object_or_404(rows, name=name, number=number)
    runs = model.training_runs.select_related("dataset", "created_by").order_by("-pk")[:LISTED]
    lost = set(artifacts.missing(model.weights)) if runs else set()
    context = {
        "model": model,
        "runs": runs,
        "verifiers": reward_parts.verifiers_that_ask(model)[:LISTED],
        "recipes": reward_parts.recipes_that_ask(model)[:LISTED],
        "files": [
            {"name": f"final/{name}", **entry, "is_lost": name in lost}
            for name, entry in sorted(model.weights.manifest.items())
        ],
    }
    return render(request, "environments/reward_model.html", context)


def offered(project: Project, draft: Draft) -> list[dict[str, Any]]:
    """The models that a part of the draft can name: `ref`, a `label`, and whether it `failed` its canaries. One that a
    part names already is among them, whatever it is."""
    named = draft.reward_models
    if not named:
        return []
    rows = [_offered(model) for model in RewardModel.objects.filter(project=project)[:OFFERED]]
    others = {ref for ref in named if ref} - {row["ref"] for row in rows}
    return rows + [{"ref": ref, "label": ref, "failed": False} for ref in sorted(others)]


def _offered(model: RewardModel) -> dict[str, Any]:
    pairs, failed = model.canaries["pairs"], bool(model.problems)
    found = (
        "no pair scored" if pairs["mean"] is None else f"{percent(pairs['mean'])} of {pairs['n']} unseen pairs right"
    )
    return {"ref": str(model), "label": f"{model}, {found}", "failed": failed}
