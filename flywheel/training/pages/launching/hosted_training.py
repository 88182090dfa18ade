"""The roads for a hosted version: another version, a file for its provider, an open model."""

import sys
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.agents.references import find_version
from flywheel.edge.refusals import Missing, Refused, check_choice
from flywheel.environments.models import TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.training.datasets import contamination_checks, dataset_builder, provider_files

OPEN_MODELS = 10
"""Versions that can be trained and are offered instead."""


def roads(base: Version, task_set: TaskSet) -> dict[str, Any]:
    """Return what the page shows: a file of each format with its rows or why there are none, and trainable versions."""
    versions = Version.objects.filter(agent__project=task_set.project, weights__isnull=False).select_related("agent")
    return {
        "files": [
            {"name": name, "label": label, **_standing(name, base, task_set)}
            for name, (_, label, _) in provider_files.FORMATS.items()
        ],
        "open_models": [str(version) for version in versions.order_by("-pk")[:OPEN_MODELS]],
    }


def _standing(name: str, base: Version, task_set: TaskSet) -> dict[str, Any]:
    """Return how many rows a file would have, or why there is none."""
    try:
        return {"rows": len(_content(name, base, _rows(name, base, task_set))), "problem": ""}
    except Refused as refused:
        return {"rows": 0, "problem": refused.problem}


def _rows(name: str, base: Version, task_set: TaskSet) -> list[dict[str, Any]]:
    """Return what people wrote alone: what a verifier passed would want an audit first. Raises Refused."""
    kind, _, _ = provider_files.FORMATS[name]
    return dataset_builder.draft(kind=kind, task_set=task_set, version=base).rows


def _content(name: str, base: Version, rows: list[dict[str, Any]]) -> list[bytes]:
    """Return the file's lines. Raises Refused where there are none."""
    try:
        content = list(provider_files.lines(name, rows, base.tools))
    except ValueError as error:
        raise Refused(str(error), field="tools") from None
    if not content:
        raise Refused("no row ends with a user's message, as reinforcement items must", field="format")
    return content


def _refuse_leaks(rows: list[dict[str, Any]], task_set: TaskSet) -> None:
    """Raise Refused where the rows have anything of a held-out task, as a launch does: what is trained elsewhere comes
    back as a version of which nobody knows what it learnt from."""
    for held_out, report in (contamination_checks.preview(rows, task_set, most=sys.maxsize) or {}).items():
        if problem := contamination_checks.refusal(report, held_out):
            raise Refused(problem, field="task_set")


@require_GET
@requires(Permission.TRAIN)
def provider_file(request: PageRequest, format: str) -> HttpResponse:
    """The train split's rows in the provider's format, as JSON Lines. Agents wrote them: never a page."""
    check_choice(format, provider_files.FORMATS, field="format", error=Missing)
    base = find_version(request.project, request.GET.get("base", ""))
    task_set = find_task_set(request.project, request.GET.get("task_set", ""))
    rows = _rows(format, base, task_set)
    content = _content(format, base, rows)
    _refuse_leaks(rows, task_set)
    request.actor.record(
        project=request.project,
        action="training.provider_file",
        subject=task_set,
        format=format,
        version=str(base),
        rows=len(content),
    )
    answer = HttpResponse(b"".join(content), content_type="application/x-ndjson")
    answer["Content-Disposition"] = f'attachment; filename="{base.agent.name}-{base.number}-{format}.jsonl"'
    return answer
