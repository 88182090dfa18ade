"""Jobs: rows that a worker must carry out.

The row is the truth; the Celery message is only a wake-up, sent after commit, and re-sent by the sweeper when nobody
came. An owner holds a lease with a fence token: it renews the lease while it works, and every write goes through
`Lease.guard`, which refuses an owner that has been replaced. Correctness never depends on the broker.

    queued ──claim──▶ running ──▶ succeeded | failed | cancelled
       ▲                 │
       └── lease ran out, taken over by the next claim, at most `MAX_ATTEMPTS` times

Map: `Job` (abstract row), `JobEvent` (abstract, append-only log of one job), `Lease` (an owner's hold), `sweep`.
"""

import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Self

from django.apps import apps
from django.conf import settings
from django.db import IntegrityError, connection, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from flywheel import broker

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
RUN_TASK = "workers.run_job"
RENUDGE_AFTER = timedelta(seconds=5)
"""A queued job that nobody claimed for this long is announced again."""


class State(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class LeaseLost(Exception):
    """Another owner has the job, or it is over. Stop at once; nothing more may be written."""


class StaleState(Exception):
    """The job was no longer in the state that this move starts from."""


class Job(models.Model):
    """A row that a worker must carry out. Subclasses say what, and register a handler in `workers.tasks`."""

    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=16, choices=State, default=State.QUEUED)
    idempotency_key = models.UUIDField(default=uuid.uuid4)
    """Minted by the form, so that a double click, the back button or a retry make one job."""
    fence = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)
    attempt = models.PositiveSmallIntegerField(default=0)
    nudged_at = models.DateTimeField(default=timezone.now)
    owner = models.CharField(max_length=200, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    error_kind = models.CharField(max_length=64, blank=True)
    error = models.TextField(blank=True)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(null=True, blank=True)
    message = models.CharField(max_length=300, blank=True)
    created_by = models.ForeignKey("accounts.User", on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    events: "models.Manager[Any]"

    class Meta:
        abstract = True
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "idempotency_key"], name="%(class)s_one_per_key"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="%(class)s_state_is_known"),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(
                fields=["state", "lease_until"],
                name="%(class)s_open",
                condition=Q(state__in=[State.QUEUED, State.RUNNING]),
            ),
        ]

    @classmethod
    def submit(cls, *, key: uuid.UUID, **fields: Any) -> tuple[Self, bool]:
        """Save the job once for its key and wake a worker after commit. Returns the job and whether it is new.

        `fields` are the row's; `project` and `created_by` are among them.
        """
        try:
            with transaction.atomic():
                job = cls(idempotency_key=key, **fields)
                job.save(force_insert=True)
        except IntegrityError:
            existing = cls._default_manager.filter(project=fields["project"], idempotency_key=key).first()
            if existing is None:
                raise
            return existing, False
        transaction.on_commit(job.nudge, robust=True)
        return job, True

    @property
    def label(self) -> str:
        return self._meta.label

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    @property
    def is_cancelling(self) -> bool:
        return self.state == State.RUNNING and self.cancel_requested_at is not None

    def nudge(self) -> None:
        """Tell the workers that the job waits. A broker that is away costs nothing: the sweeper tells them again."""
        try:
            broker.app().send_task(RUN_TASK, [self._meta.label, self.pk], retry=False)
        except Exception:
            log.warning("no wake-up for %s %s: the broker does not answer", self._meta.label, self.pk, exc_info=True)

    def cancel(self) -> None:
        """Ask for an end. A queued job ends now, a running one when its owner sees the request.

        Raises StaleState when the job is over already.
        """
        now = timezone.now()
        mine = type(self)._default_manager.filter(pk=self.pk)
        if mine.filter(state=State.QUEUED).update(state=State.CANCELLED, finished_at=now, cancel_requested_at=now):
            return
        if mine.filter(state=State.RUNNING).update(cancel_requested_at=now):
            return
        raise StaleState("the job is over already")

    def requeue(self) -> None:
        """Put a failed or cancelled job back into the queue, to go on from where it stood.

        Raises StaleState when it is not failed or cancelled.
        """
        moved = (
            type(self)
            ._default_manager.filter(pk=self.pk, state__in=[State.FAILED, State.CANCELLED])
            .update(
                state=State.QUEUED,
                attempt=0,
                cancel_requested_at=None,
                error="",
                error_kind="",
                finished_at=None,
                lease_until=None,
                nudged_at=timezone.now(),
            )
        )
        if not moved:
            raise StaleState("only a failed or cancelled job can be resumed")
        transaction.on_commit(self.nudge, robust=True)

    @classmethod
    def claim(cls, pk: int) -> "Lease | None":
        """Take the job if it waits or its owner's lease ran out; None when there is nothing to take.

        A takeover beyond `MAX_ATTEMPTS` fails the job with the reason instead. A unique constraint of the subclass
        (one trainer per slot) also makes a claim wait.
        """
        open_to_all = Q(state=State.QUEUED) | Q(state=State.RUNNING, lease_until__lt=Now())
        rows = cls._default_manager.filter(open_to_all, pk=pk)
        if rows.filter(state=State.RUNNING, cancel_requested_at__isnull=False).update(
            state=State.CANCELLED, finished_at=Now(), fence=F("fence") + 1
        ):
            return None
        if rows.filter(attempt__gte=MAX_ATTEMPTS).update(
            state=State.FAILED,
            finished_at=Now(),
            fence=F("fence") + 1,
            error_kind="worker_lost",
            error=f"its worker died {MAX_ATTEMPTS} times; nothing that it had saved is lost. Resume it to try again.",
        ):
            return None
        try:
            with transaction.atomic():
                won = rows.update(
                    state=State.RUNNING,
                    fence=F("fence") + 1,
                    attempt=F("attempt") + 1,
                    lease_until=_lease_end(),
                    owner=f"{socket.gethostname()}:{os.getpid()}",
                    started_at=models.functions.Coalesce(F("started_at"), Now()),
                )
        except IntegrityError:
            return None
        if not won:
            return None
        return Lease(cls._default_manager.get(pk=pk))


class JobEvent(models.Model):
    """One line of a job's log, append-only. Subclasses add `job`, a foreign key with `related_name="events"`."""

    at = models.DateTimeField(default=timezone.now)
    level = models.CharField(max_length=8, default="info")
    text = models.TextField()

    class Meta:
        abstract = True
        ordering: ClassVar[list[str]] = ["id"]


class Lease:
    """An owner's hold on a running job. A thread renews it until `release` or until it is lost.

    Use it as a context manager: a body that ends well makes the job succeed unless it called `finish` itself; what it
    raises fails the job with its reason (`error.kind`, when the exception has one, is kept as the kind).
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.fence = job.fence
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._renew_forever, name=f"lease-{job.pk}", daemon=True)

    @property
    def cancelled(self) -> bool:
        """A person asked for an end; save what is worth saving and call `finish(State.CANCELLED)`."""
        return self._cancelled.is_set()

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A transaction that only the present owner can commit. Raises LeaseLost for any other.

        The row is locked inside, so a takeover waits until the writes are in, or comes first and they are refused.
        """
        with transaction.atomic():
            held = (
                type(self.job)
                ._default_manager.select_for_update()
                .filter(pk=self.job.pk, fence=self.fence, state=State.RUNNING)
                .exists()
            )
            if not held:
                self._lost.set()
                raise LeaseLost(f"{self.job.label} {self.job.pk} has another owner or is over")
            yield

    def update(self, **fields: Any) -> None:
        """Write columns of the job. Raises LeaseLost."""
        with self.guard():
            type(self.job)._default_manager.filter(pk=self.job.pk).update(**fields)
        for name, value in fields.items():
            setattr(self.job, name, value)

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        self.update(done=done, message=message[:300], **({} if total is None else {"total": total}))

    def log(self, text: str, level: str = "info") -> None:
        """Append to the job's event log. Raises LeaseLost."""
        with self.guard():
            self.job.events.create(text=text, level=level)

    def finish(self, state: State, error: str = "", error_kind: str = "") -> None:
        """End the job. Raises LeaseLost when it is not ours to end."""
        self.update(state=state, error=error, error_kind=error_kind, finished_at=timezone.now(), lease_until=None)

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        self._stop.set()
        self._thread.join()
        if isinstance(error, LeaseLost):
            return True
        try:
            if error is None:
                if self.job.state == State.RUNNING:
                    self.finish(State.SUCCEEDED)
                return False
            text = str(error) or type(error).__name__
            self.finish(State.FAILED, error=text[:10_000], error_kind=getattr(error, "kind", type(error).__name__)[:64])
        except LeaseLost:
            log.warning("%s %s ended after its lease was lost", self.job.label, self.job.pk)
        if error is not None:
            log.error("%s %s failed", self.job.label, self.job.pk, exc_info=error)
        return isinstance(error, Exception)

    def _renew_forever(self) -> None:
        pause = settings.JOB_LEASE_SECONDS / 4
        misses = 0
        try:
            while not self._stop.wait(pause):
                try:
                    self._renew()
                    misses = 0
                except Exception:
                    # A database that is away for a moment must not end the work; one that stays away must, since
                    # somebody else may own the job by then.
                    misses += 1
                    log.warning("lease of %s %s not renewed", self.job.label, self.job.pk, exc_info=True)
                    connection.close()
                    if misses >= 3:
                        self._lost.set()
                if self._lost.is_set():
                    return
        finally:
            connection.close()

    def _renew(self) -> None:
        mine = type(self.job)._default_manager.filter(pk=self.job.pk, fence=self.fence, state=State.RUNNING)
        if not mine.update(lease_until=_lease_end()):
            self._lost.set()
        elif mine.filter(cancel_requested_at__isnull=False).exists():
            self._cancelled.set()


def kinds() -> list[type[Job]]:
    """Every concrete kind of job."""
    return [model for model in apps.get_models() if issubclass(model, Job)]


def sweep() -> int:
    """Announce again every job that waits or whose owner went silent; returns how many. Run it every few seconds."""
    count = 0
    for model in kinds():
        waiting = Q(state=State.QUEUED, nudged_at__lt=Now() - RENUDGE_AFTER)
        orphaned = Q(state=State.RUNNING, lease_until__lt=Now())
        for job in model._default_manager.filter(waiting | orphaned).order_by("id")[:100]:
            model._default_manager.filter(pk=job.pk).update(nudged_at=Now())
            job.nudge()
            count += 1
    return count


def _lease_end() -> models.Expression:
    return Now() + timedelta(seconds=settings.JOB_LEASE_SECONDS)
