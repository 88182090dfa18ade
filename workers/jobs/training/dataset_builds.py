"""Building datasets of what comes from elsewhere: the worker's side of `flywheel.training.datasets.build_jobs`."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import Cancelled, Lease, State
from flywheel.edge.refusals import Refused
from flywheel.training.datasets import build_jobs, contamination_checks, dataset_files
from flywheel.training.datasets.build_jobs import Content
from flywheel.training.datasets.dataset_files import NoRoom, Rows
from flywheel.training.models import DatasetBuild

T = TypeVar("T")
TOLD_EVERY_S = 1.0
"""How often it says how far it is, and sees whether it shall go on."""


def build(lease: Lease) -> None:
    """Build it from the beginning, whoever began it before: what was not frozen is gone with its process."""
    job = lease.job
    assert isinstance(job, DatasetBuild)
    try:
        with build_jobs.opened(job) as content, dataset_files.scratch() as rows:
            _build(lease, job, content, rows)
    except NoRoom:
        raise
    except (Refused, Cancelled):
        build_jobs.discard(job)
        raise
    build_jobs.discard(job)


def _build(lease: Lease, job: DatasetBuild, content: Content, rows: Rows) -> None:
    watch = _Watch(lease, content)
    for row in content.rows(watch.tell):
        rows.add(row)
    watch.say("Comparing with held-out tasks")
    made = build_jobs.draft_of(job, content)
    found = contamination_checks.reports(job.project, watch.along(rows))
    watch.say("Storing")
    near, file = dataset_files.near(rows), dataset_files.store(rows)
    actor = Actor(job.created_by, job.through)
    with lease.guard():
        frozen = dataset_files.freeze(job.name, made, rows, file=file, near=near, actor=actor)
        contamination_checks.keep(frozen, found)
        lease.update(dataset=frozen, done=job.total)
        lease.finish(State.SUCCEEDED)


class _Watch:
    """Says how far a build is, and ends it when it shall not go on."""

    def __init__(self, lease: Lease, content: Content) -> None:
        self.lease, self.content = lease, content
        self._told_at, self._message = time.monotonic(), ""

    def tell(self) -> None:
        """Look at the clock. Raises Cancelled and LeaseLost."""
        if time.monotonic() - self._told_at >= TOLD_EVERY_S:
            self.say(self._message)

    def say(self, message: str) -> None:
        self._message = message
        self.lease.go_on()
        self.lease.update(done=self.content.done, report=self.content.report, message=message)
        self._told_at = time.monotonic()

    def along(self, rows: Iterable[T]) -> Iterator[T]:
        for row in rows:
            self.tell()
            yield row
