"""Previews of what would be learnt: the worker's side of `flywheel.training.launch.preview_jobs`.

A run directory is written as for a run, and a process of its own makes rows into tokens there: it has the libraries
that this one does without, and templates of models are programs that somebody else wrote.
"""

import shutil
import time
from pathlib import Path
from typing import Any

from django.conf import settings

from flywheel.core import digests
from flywheel.edge.jobs import Lease, LeaseLost
from flywheel.training.models import TokenPreview, TrainingRun
from flywheel.trajectories.formats.values.hostile_json import plain
from workers.jobs.training import training_runs
from workers.jobs.training.training_runs import TrainingFailed

MOST_ROWS = 1000
"""Rows that are made into tokens: the first ones."""
POLL_S = 0.1


def make_tokens(lease: Lease) -> None:
    """Make the preview that the lease holds."""
    of = ("project", "base__agent", "base__weights", "base__adapter", "dataset", "task_set__environment_version")
    job = TokenPreview.objects.select_related(*of).get(pk=lease.job.pk)
    place = Path(settings.RUNS_DIR) / f"preview-{job.pk}"
    shutil.rmtree(place, ignore_errors=True)
    try:
        _prepare(job, place)
        lease.update(result=plain(_made(lease, place)) | {"of": job.dataset.rows})
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _prepare(job: TokenPreview, place: Path) -> None:
    run = TrainingRun(
        project=job.project,
        base=job.base,
        dataset=job.dataset,
        task_set=job.task_set,
        algorithm=job.algorithm,
        settings=job.settings,
        tuning={"mode": "full"},
    )
    (place / "data").mkdir(parents=True)
    lines = training_runs.dataset_rows(run).splitlines(keepends=True)[:MOST_ROWS]
    rows = training_runs.write_rows(place / "data" / "train.jsonl", b"".join(lines), len(lines))
    spec = training_runs.spec_of(run, {"train": rows, "held_out": None})
    (place / "spec.json").write_bytes(digests.canonical(spec))


def _made(lease: Lease, place: Path) -> dict[str, Any]:
    """Return the preview when the process has ended. Raises TrainingFailed with its reason, Cancelled and LeaseLost."""
    process = training_runs.start("workers.programs.token_preview", place)
    try:
        while process.poll() is None:
            lease.go_on()
            if lease.lost:
                raise LeaseLost(f"{lease.job} has another owner")
            time.sleep(POLL_S)
    finally:
        training_runs.end(process)
    result = training_runs.result_of(place)
    if result.get("status") != "completed":
        died = f"its process died: {training_runs.last_words(place)}"
        raise TrainingFailed(result.get("kind", "preview_died"), result.get("message", died))
    preview: dict[str, Any] = result["preview"]
    return preview
