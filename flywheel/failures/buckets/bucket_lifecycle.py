"""The life of a bucket: open, being fixed, fixed, closed, open again (docs/design/bucket-life.md).

What was made of it says how far it is: tasks, runs, and a version that went live and does better on them. People say
whose it is, how urgent, and that it is closed; that alone is stored (`BucketLife`). A failure that began after closing
opens it again, once, when a person confirms it. What detectors propose does not, but for the watch of a version that
had mended it: it opens the bucket where the claim of its promotion breaks, until a person says that it is not the same.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Max
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.edge.refusals import Missing, Refused, Stale, check_choice
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.models import BucketLife, Failure, Priority, Recurrence, Severity
from flywheel.failures.project_reviewers import named
from flywheel.trajectories.models import Source, Trajectory

REASON_LIMIT = 2_000


class State(StrEnum):
    OPEN = "open"
    FIXING = "fixing"
    """Tasks exist, or a run trains on them."""
    FIXED = "fixed"
    """A version that does better on its tasks is live, by the numbers of the comparison."""
    CLOSED = "closed"
    REOPENED = "reopened"
    """It came back after closing or after a fix, and nothing was made of that yet."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A version that went live, and what its comparison says of the bucket's tasks."""

    candidate: int
    version: Version
    at: datetime
    stands: bool
    """It was not rolled back."""
    difference: dict[str, Any]
    verdict: str
    """As `core.evidence.statistics.arm_comparison.SliceChange`: `better` is beyond chance, with all buckets accounted
    for."""

    @property
    def is_shown(self) -> bool:
        return self.stands and self.verdict == "better"


@dataclass(slots=True)
class Life:
    """A bucket's state, and what it follows from."""

    row: BucketLife
    tasks: int = 0
    newest_task: datetime | None = None
    runs: int = 0
    newest_run: datetime | None = None
    fixes: list[Fix] = field(default_factory=list)
    """The latest first."""

    @property
    def state(self) -> State:
        if self.row.is_closed:
            return State.CLOSED
        if any(fix.is_shown and self._is_new(fix.at) for fix in self.fixes):
            return State.FIXED
        if self._is_new(self.newest_task) or self._is_new(self.newest_run):
            return State.FIXING
        return State.REOPENED if self.row.came_back_at else State.OPEN

    def _is_new(self, moment: datetime | None) -> bool:
        """Made since the bucket was opened last: what was made before did not hold."""
        return moment is not None and (self.row.came_back_at is None or moment > self.row.came_back_at)


def of_project(project: Project, keys: Collection[str]) -> dict[str, Life]:
    """The lives of these buckets, in a handful of statements however many there are."""
    people = (
        "owner", "closed_by", "reopened_by", "reopened_for__trajectory", "reopened_by_watch__version__agent",
        "reopened_by_watch__answered_by",
    )  # fmt: skip
    rows = {row.bucket: row for row in project.bucket_lives.filter(bucket__in=keys).select_related(*people)}
    lives = {key: Life(rows.get(key) or BucketLife(project=project, bucket=key)) for key in keys}
    tasks = project.tasks.filter(bucket__in=keys, retired_at=None).order_by().values("bucket")
    for found in tasks.annotate(n=Count("pk"), newest=Max("created_at")):
        life = lives[found["bucket"]]
        life.tasks, life.newest_task = found["n"], found["newest"]
    trained = project.task_sets.filter(tasks__bucket__in=keys, training_runs__isnull=False).order_by()
    runs = trained.values(bucket=F("tasks__bucket")).annotate(
        n=Count("training_runs", distinct=True), newest=Max("training_runs__created_at")
    )
    for found in runs:
        life = lives[found["bucket"]]
        life.runs, life.newest_run = found["n"], found["newest"]
    for key, fix in _fixes(project):
        if key in lives:
            lives[key].fixes.append(fix)
    return lives


def of(project: Project, key: str) -> Life:
    return of_project(project, [key])[key]


def _fixes(project: Project) -> list[tuple[str, Fix]]:
    """(bucket, what went live for it), the latest first."""
    promoted = project.candidates.filter(promotions__kind="promote").order_by("-promotions__id")
    rows = list(promoted.annotate(slices=F("report__comparison__slices")).values_list("pk", "promotions__id", "slices"))
    if not rows:
        return []
    agents = [list(agent.promotions.all()) for agent in project.agents.prefetch_related("promotions__after__agent")]
    moves = {move.pk: move for log in agents for move in log}
    standing = {pk for log in agents for pk in standing_moves(log)}
    return [
        (
            each["name"],
            Fix(pk, moves[at].after, moves[at].created_at, at in standing, each["difference"], each["verdict"]),
        )
        for pk, at, slices in rows
        for each in slices or []
    ]


def standing_moves(moves: Iterable[Any]) -> list[int]:
    """The moves that brought an agent to its live version: what was rolled back is not among them."""
    path: list[Any] = []
    for move in sorted(moves, key=lambda move: int(move.generation)):
        if move.kind == "rollback" and any(earlier.after_id == move.after_id for earlier in path):
            while path[-1].after_id != move.after_id:
                path.pop()
        else:
            path.append(move)
    return [move.pk for move in path]


def since_closing(life: Life) -> int:
    """Count the trajectories that detectors propose for a closed bucket since: shown, not acted upon."""
    rows = Trajectory.objects.filter(project=life.row.project, label="", proposed_bucket=life.row.bucket)
    return rows.exclude(source__in=Source.ATTEMPTS).filter(started_at__gt=life.row.closed_at).count()


# What people decide


@transaction.atomic
def steer(
    *,
    project: Project,
    key: str,
    actor: Actor,
    owner: str | None = None,
    priority: str | None = None,
    severity: str | None = None,
) -> BucketLife:
    """Say whose it is, how urgent, how bad. None leaves it; an empty owner is nobody. Raises Refused."""
    row = _locked(project, key)
    changed: dict[str, str] = {}
    if owner is not None and owner != (row.owner.username if row.owner else ""):
        row.owner = named(project, [owner], field="owner")[0] if owner else None
        changed["owner"] = owner
    if priority is not None and priority != row.priority:
        check_choice(priority, Priority.values, field="priority")
        row.priority = changed["priority"] = priority
    if severity is not None and severity != row.severity:
        if severity not in ("", *Severity.values):
            raise Refused(
                f"{severity!r} is unknown; use one of {', '.join(Severity.values)}, or none", field="severity"
            )
        row.severity = changed["severity"] = severity
    if changed:
        row.save()
        _record(row, actor, "steer_bucket", **changed)
    return row


@transaction.atomic
def close(*, project: Project, key: str, actor: Actor, reason: str) -> BucketLife:
    """Say that this is done with, and why. Closing what is closed changes nothing. Raises Refused."""
    row = _locked(project, key)
    if row.is_closed:
        return row
    reason = _checked(reason)
    row.closed_at, row.closed_by, row.closed_because = timezone.now(), actor.user, reason
    row.reopened_at = row.reopened_by = row.reopened_for = row.reopened_by_watch = None
    row.save()
    _record(row, actor, "close_bucket", reason)
    return row


@transaction.atomic
def reopen(*, project: Project, key: str, actor: Actor, reason: str) -> BucketLife:
    """Open it again, and say why. What is open stays so. Raises Refused."""
    row = _locked(project, key)
    if not row.is_closed:
        return row
    reason = _checked(reason)
    row.reopened_at, row.reopened_by = timezone.now(), actor.user
    row.save()
    _record(row, actor, "reopen_bucket", reason)
    return row


def recur(failure: Failure, actor: Actor) -> bool:
    """Reopen the failure's bucket where it was closed before the failure began; answers whether it did.

    Of two labels at the same time one changes the row, and the other then finds it open.
    """
    trajectory = failure.trajectory
    if not failure.is_failure or trajectory.source in Source.ATTEMPTS:
        return False
    closed = BucketLife.objects.filter(project=failure.project_id, bucket=failure.bucket, reopened_at=None)
    reopened = closed.filter(closed_at__lt=trajectory.started_at).update(
        reopened_at=timezone.now(), reopened_by=failure.labelled_by, reopened_for=failure
    )
    if reopened:
        row = BucketLife.objects.get(project=failure.project_id, bucket=failure.bucket)
        came_back = f"trajectory {trajectory.trace_id} failed the same way after it was closed"
        _record(row, actor, "reopen_bucket", came_back, failure=failure.pk)
    return bool(reopened)


@transaction.atomic
def reopen_by_watch(recurrence: Recurrence) -> None:
    """Open the bucket that came back, not confirmed yet: what was made of it before did not last."""
    row = _locked(recurrence.project, recurrence.bucket)
    row.reopened_by_watch = recurrence
    row.save()


@transaction.atomic
def answer(*, recurrence: Recurrence, actor: Actor, is_same: bool, reason: str = "") -> None:
    """Say whether what the watch saw is the failure that was mended. Where it is not, for a reason, the bucket is as it
    was before. Raises Refused, and Stale where somebody has answered."""
    said = _checked(reason) if reason.strip() or not is_same else ""
    kind = Recurrence.Answer.SAME if is_same else Recurrence.Answer.NOT_SAME
    row = _locked(recurrence.project, recurrence.bucket)
    won = Recurrence.objects.filter(pk=recurrence.pk, answer=Recurrence.Answer.OPEN).update(
        answer=kind, answered_by=actor.user, answered_at=timezone.now(), answered_because=said
    )
    if not won:
        raise Stale("somebody has answered this already")
    if not is_same and row.reopened_by_watch_id == recurrence.pk:
        row.reopened_by_watch = None
        row.save()
    _record(row, actor, "answer_recurrence", said, is_same=is_same, recurrence=recurrence.pk)


def _locked(project: Project, key: str) -> BucketLife:
    """The row of a bucket, made when there is none; nobody else changes it until the transaction ends."""
    check_choice(key, every(project), field="bucket", error=Missing)
    BucketLife.objects.get_or_create(project=project, bucket=key)
    return BucketLife.objects.select_for_update(of=("self",)).select_related("owner").get(project=project, bucket=key)


def _checked(reason: str) -> str:
    reason = reason.strip()
    if not reason or len(reason) > REASON_LIMIT or "\0" in reason:
        raise Refused(f"expected between 1 and {REASON_LIMIT} characters", field="reason")
    return reason


def _record(row: BucketLife, actor: Actor, action: str, reason: str = "", **data: Any) -> None:
    actor.record(
        project=row.project, action=f"failures.{action}", subject=f"bucket {row.bucket}", reason=reason, **data
    )
