"""Previews of what would be learnt: the worker's side of `flywheel.training.launch.preview_jobs`.

A run directory is written as for a run, and a process of its own makes rows into tokens there: it has the libraries
that this one does without, and templates of models are programs that somebody else wrote.
"""

from pathlib import Path

from flywheel.core import digests
from flywheel.edge.jobs import Lease
from flywheel.training.models import TokenPreview, TrainingRun
from flywheel.trajectories.formats.values.hostile_json import plain
from workers.jobs.training import side_processes, training_runs

MOST_ROWS = 1000
"""Rows that are made into tokens: the first ones."""


def make_tokens(lease: Lease) -> None:
    """Make the preview that the lease holds."""
    of = ("project", "base__agent", "base__weights", "base__adapter", "dataset", "task_set__environment_version")
    job = TokenPreview.objects.select_related(*of).get(pk=lease.job.pk)
    with side_processes.directory(lease, "preview") as place:
        _prepare(job, place)
        made = side_processes.result(lease, "workers.programs.token_preview", place)
        lease.update(result=plain(made["preview"]) | {"of": job.dataset.rows})


def _prepare(job: TokenPreview, place: Path) -> None:
    run = TrainingRun(
        project=job.project,
        base=job.base,
        dataset=job.dataset,
        task_set=job.task_set,
        algorithm=job.algorithm,
        settings=job.settings | ({"rollouts": "trainer", "execution": "sync"} if "rollouts" in job.settings else {}),
        tuning={"mode": "full"},
    )
    (place / "data").mkdir(parents=True)
    lines = training_runs.dataset_rows(job.dataset).splitlines(keepends=True)[:MOST_ROWS]
    rows = training_runs.write_rows(place / "data" / "train.jsonl", b"".join(lines), len(lines))
    spec = training_runs.spec_of(run, {"train": rows, "held_out": None})
    (place / "spec.json").write_bytes(digests.canonical(spec))
