"""For programs: the tasks of a set × the versions that were evaluated on it."""

from typing import Any

from django.http import HttpRequest, QueryDict
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery
from flywheel.edge.refusals import check_choice
from flywheel.edge.schemas import Schema
from flywheel.environments.models import Split
from flywheel.environments.task_sets import leaks
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.comparisons import task_grid as grids
from flywheel.evals.runs.rollout_looks import note_looks
from flywheel.evals.serving import version_isolation

router = Router(tags=["evals"])


class GridQuery(ListQuery):
    split: str = Split.HELD_OUT.value
    """`held_out` or `train`."""
    version: list[str] = Field(
        default_factory=list, description="`agent@number`, repeatable; by default the versions with the newest evals."
    )
    show: str = Field("all", description="`all`, `failures`, `differ` or `disputed`.")


class TrainedOnOut(Schema):
    """The training data of a version and its ancestors, compared with the tasks that measure the version."""

    verdict: str
    """`clean`; `warned`; `contaminated`: a score on these tasks means nothing; `unchecked`; or `none`: it was trained
    on no dataset."""
    blocked: list[str]
    """Tasks that it was trained on."""
    datasets: list[str]
    """Datasets that contain them."""


class ColumnOut(Schema):
    eval: int
    version: str
    samples: int
    success: dict[str, Any] | None
    contamination: TrainedOnOut | None
    """Whether the version was trained on these tasks; null for train tasks."""


class CellOut(Schema):
    eval: int = Field(alias="run.pk")
    attempts: int
    """0 if the eval has not run the task."""
    scored: int
    passed: int
    disputed: bool = Field(alias="is_disputed")
    """Reviewers disagree with the verifier."""


class LineOut(Schema):
    task: str
    bucket: str
    cells: list[CellOut]
    """One per column, in the same order."""


class GridOut(Schema):
    task_set: str
    split: str
    columns: list[ColumnOut]
    """The newest successful eval of each version, oldest version first."""
    not_shown_apart: list[list[str]]
    """Pairs of versions that no self-test has shown the vLLM server to keep apart. Differences between them mean
    nothing."""
    counts: dict[str, int]
    """Number of tasks for each choice of `show`."""
    items: list[LineOut]
    next: str | None


@router.get("/task-sets/{name}/{int:version_number}/grid", response=GridOut, auth=Key(Scope.READ))
def get_task_grid(request: HttpRequest, name: str, version_number: int, asked: Query[GridQuery]) -> dict[str, Any]:
    """Return the results of several versions on each task of a split."""
    given = keyed(request)
    task_set = find_task_set(given.project, f"{name}@{version_number}")
    check_choice(asked.split, grids.SPLITS, field="split")
    check_choice(asked.show, grids.SHOW, field="show")
    columns = grids.choose(grids.measured(task_set, asked.split), asked.version)
    found = grids.grid(
        columns,
        task_set=task_set,
        split=asked.split,
        show=asked.show,
        cursor=asked.cursor,
        limit=asked.limit,
        query=QueryDict(),
    )
    note_looks(columns, given.actor)
    learnt = leaks.trained_on([run.version for run in columns], task_set) if asked.split == Split.HELD_OUT else {}
    return {
        "task_set": str(task_set),
        "split": asked.split,
        "columns": [
            {
                "eval": run.pk,
                "version": str(run.version),
                "samples": run.samples,
                "success": run.success,  # type: ignore[attr-defined]  # annotated
                "contamination": learnt.get(run.version_id),
            }
            for run in columns
        ],
        "not_shown_apart": [[str(version) for version in pair] for pair in version_isolation.unshown(columns)],
        "counts": found.counts,
        "items": [{"task": str(task), "bucket": task.bucket, "cells": cells} for task, cells in found.lines],
        "next": found.page.next_cursor or None,
    }
