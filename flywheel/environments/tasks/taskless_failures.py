"""Labelled failures that no environment has a task of, and why Replay, which takes any failure, cannot take them yet.

What SQL can tell of all of them is counted; a reason is found by reading the run, for the rows of a page alone, and by
the functions that make tasks: it is what making one would be refused with.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, QuerySet

from flywheel.accounts.models import Project
from flywheel.core.envs.replay.episode_replay import KIND
from flywheel.edge.paging import about
from flywheel.environments.models import Task
from flywheel.environments.tasks.recorded_tasks import explain_refusal
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Source
from flywheel.trajectories.store.stored_traces import traces_of


@dataclass(frozen=True, slots=True)
class Taskless:
    """A failure without a task."""

    failure: Failure
    reason: str
    """Why it can be none now; empty where it can."""

    @property
    def can_be_made(self) -> bool:
        return not self.reason


def without_any_task(project: Project, *, bucket: str = "", corrected: bool | None = None) -> QuerySet[Failure]:
    """Confirmed failures of production and imports that no task of the project was made of, with or without a corrected
    action."""
    tasks = Task.objects.filter(project=project)
    rows = Failure.objects.filter(project=project, current=True).exclude(decision=Decision.REJECTED)
    rows = rows.exclude(trajectory__source__in=Source.ATTEMPTS)
    rows = rows.filter(bucket=bucket) if bucket else rows
    rows = rows if corrected is None else rows.filter(corrected__isnull=not corrected)
    return rows.filter(
        ~Exists(tasks.filter(failure=OuterRef("pk"))),
        ~Exists(Task.also.through.objects.filter(failure=OuterRef("pk"))),
    ).select_related("trajectory__result__task", "labelled_by")


def look_at(failures: Iterable[Failure], kind: str = KIND) -> list[Taskless]:
    """Each with its reason, in environments of the kind. The runs of those that have a corrected action are read."""
    failures = list(failures)
    traces = traces_of(failure.trajectory for failure in failures if failure.corrected)
    return [Taskless(each, explain_refusal(each, kind, traces.get(each.trajectory_id))) for each in failures]


def reasons_of(rows: Iterable[Taskless]) -> list[tuple[str, int]]:
    """Reasons with their number among these rows, the most common first."""
    return Counter(row.reason for row in rows if row.reason).most_common()


@dataclass(frozen=True, slots=True)
class Totals:
    """Failures without a task by the one thing that SQL can tell of them: their number, and whether that is a guess."""

    uncorrected: tuple[int, bool]
    corrected: tuple[int, bool]

    def of(self, corrected: bool | None) -> tuple[int, bool]:
        """Those with a corrected action, those without, or both."""
        if corrected is not None:
            return self.corrected if corrected else self.uncorrected
        return self.uncorrected[0] + self.corrected[0], self.uncorrected[1] or self.corrected[1]


def count(project: Project, bucket: str = "") -> Totals:
    without, having = (about(without_any_task(project, bucket=bucket, corrected=each)) for each in (False, True))
    return Totals(without, having)
