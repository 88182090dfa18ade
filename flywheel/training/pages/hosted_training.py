"""The roads for a hosted version: another version, a file for its provider, an open model."""

from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, audit, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.agents.references import find_version
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused, at_field, check_choice
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.models import EvalRun
from flywheel.training.datasets import dataset_builder, provider_files

OPEN_MODELS = 10
"""Versions that can be trained and are offered instead."""


def roads(base: Version, task_set: TaskSet) -> dict[str, Any]:
    """Return what the page shows: a file of each format with its rows or why there are none, and trainable versions."""
    versions = Version.objects.filter(agent__project=task_set.project, weights__isnull=False).select_related("agent")
    attempts = _attempts(base, task_set)
    drafts = {
        kind: _draft(kind, task_set, attempts) for kind in {kind for kind, _, _ in provider_files.FORMATS.values()}
    }
    return {
        "files": [
            {"name": name, "label": label, "rows": drafts[kind][0], "problem": drafts[kind][1]}
            for name, (kind, label, _) in provider_files.FORMATS.items()
        ],
        "attempts": attempts,
        "open_models": [str(version) for version in versions.order_by("-pk")[:OPEN_MODELS]],
    }


def _attempts(base: Version, task_set: TaskSet) -> EvalRun | None:
    """Find the version's newest finished eval on the train split: its passing and failing attempts give rows too."""
    runs = EvalRun.objects.filter(version=base, task_set=task_set, split=Split.TRAIN, state=State.SUCCEEDED)
    return runs.order_by("-pk").first()


def _draft(kind: str, task_set: TaskSet, attempts: EvalRun | None) -> tuple[int, str]:
    """Return how many rows a dataset of this kind has, or why it has none."""
    try:
        return len(dataset_builder.draft(kind=kind, task_set=task_set, rollouts=attempts).rows), ""
    except Refused as refused:
        return 0, refused.problem


@require_GET
@requires(Permission.TRAIN)
def provider_file(request: PageRequest, format: str) -> HttpResponse:
    """The train split's rows in the provider's format, as JSON Lines. Agents wrote them: never a page."""
    check_choice(format, provider_files.FORMATS, field="format")
    with at_field("base"):
        base = find_version(request.project, request.GET.get("base", ""))
    with at_field("task_set"):
        task_set = find_task_set(request.project, request.GET.get("task_set", ""))
    kind, _, _ = provider_files.FORMATS[format]
    draft = dataset_builder.draft(kind=kind, task_set=task_set, rollouts=_attempts(base, task_set))
    try:
        content = list(provider_files.lines(format, draft.rows, base.tools))
    except ValueError as error:
        raise Refused(str(error), field="tools") from None
    if not content:
        raise Refused("no row ends with a user's message, as reinforcement items must", field="format")
    audit(request, "training.download", base, format=format, task_set=str(task_set), rows=len(content))
    answer = HttpResponse(b"".join(content), content_type="application/x-ndjson")
    answer["Content-Disposition"] = f'attachment; filename="{base.agent.name}-{base.number}-{format}.jsonl"'
    return answer
