"""Jobs: rows that a worker must carry out.

The row is the truth; the Celery message is only a wake-up, sent after commit, and re-sent by the sweeper. An owner
holds a lease with a fence token: it renews the lease while it works, and every write goes through `Lease.guard`, which
refuses an owner that has been replaced. Correctness never depends on the broker.

    queued ──claim──▶ running ──▶ succeeded | failed | cancelled
       ▲                 │
       ├── its worker was told to stop, or lost the database for a while: given back
       └── its worker went silent: taken over by the next claim; at most `MAX_ATTEMPTS` in all

Map: `Job` (abstract row), `JobEvent` (abstract, append-only log of one job), `Lease` (an owner's hold); who looks for
what waits stands in `job_queue`. Why it is so: docs/design/jobs.md.
"""

import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Protocol, Self

from django.conf import settings
from django.db import close_old_connections, connection, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.db.utils import IntegrityError, InterfaceError, OperationalError
from django.utils import timezone

from flywheel.edge.refusals import NoRoom, Stale
from flywheel.system import broker
from flywheel.system.sql import planned

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
RUN_TASK = "workers.run_job"

SILENT_FOR = 0.8
"""Share of a lease after which an owner that could not renew it takes it for lost, before anybody else does."""
JOIN_TIMEOUT_S = 5.0


class State(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Cancelled(Exception):
    """A person asked for an end."""


class LeaseLost(Exception):
    """Another owner has the job, or it is over. Stop at once; nothing more may be written."""


class StaleState(Stale):
    """The job was no longer in the state that this move starts from."""


class Actor(Protocol):
    """Who acts: `accounts.actors.Actor`, which is above this room."""

    @property
    def user(self) -> Any: ...

    def record(self, *, project: Any, action: str, subject: object, **data: Any) -> None: ...


class Job(models.Model):
    """A row that a worker must carry out. Subclasses say what, and register a handler in `workers.tasks`."""

    cancel_entry: ClassVar[str] = ""
    """What the audit log calls a cancel; empty where it is told of none."""
    resume_entry: ClassVar[str] = ""
    """The same of a resume; empty for a kind that is never resumed, or by a verb of its own that looks at more."""
    device_column: ClassVar[str] = ""
    """Which column has the label of the devices that it wants; empty for a kind that wants none."""

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
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "idempotency_key"], name="%(class)s_one_per_key"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="%(class)s_state_is_known"),
        ]
        indexes = [
            models.Index(
                fields=["state", "lease_until"],
                name="%(class)s_open",
                condition=Q(state__in=[State.QUEUED, State.RUNNING]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"

    @classmethod
    def submit(
        cls, *, key: uuid.UUID, actor: Actor, entry: str = "", about: Mapping[str, Any] | None = None, **fields: Any
    ) -> tuple[Self, bool]:
        """Save the job once for its key and wake a worker after commit. Returns the job and whether it is new.

        `fields` are the row's, `project` among them. The audit log gets a new one as `entry`, unless that is empty,
        with what is told `about` it; the job is the entry's `subject` where it names no other.
        """
        try:
            with transaction.atomic():
                job = cls(idempotency_key=key, created_by=actor.user, **fields)
                job.save(force_insert=True)
                if entry:
                    actor.record(project=job.project, action=entry, **{"subject": job, **(about or {})})
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

    @property
    def elapsed(self) -> timedelta | None:
        """Time taken so far; None before its start."""
        return (self.finished_at or timezone.now()) - self.started_at if self.started_at else None

    @property
    def remaining(self) -> timedelta | None:
        """Whole seconds left at its pace, at least one; None where nothing can be said yet, or who began it is gone."""
        if self.state != State.RUNNING or self.attempt != 1 or self.elapsed is None or self.total is None:
            return None
        if not 0 < self.done < self.total:
            return None
        return timedelta(seconds=math.ceil((self.elapsed / self.done * (self.total - self.done)).total_seconds()))

    def nudge(self) -> None:
        """Tell the workers that the job waits. A broker that is away costs nothing: the sweeper tells them again."""
        try:
            queue = broker.queue_of(getattr(self, self.device_column, ""))
            broker.app().send_task(RUN_TASK, [self._meta.label, self.pk], queue=queue, retry=False)
        except Exception as error:
            log.warning("no wake-up for %s %s: the broker does not answer: %s", self._meta.label, self.pk, error)

    @property
    def audit_subject(self) -> object:
        """The job's subject in the audit log."""
        return self

    def cancel(self, actor: Actor) -> Self:
        """Ask for an end, as `ask_to_end` does, and write down who did. Returns the job as it is then."""
        with transaction.atomic():
            self.ask_to_end()
            return self._moved(actor, self.cancel_entry)

    def resume(self, actor: Actor) -> Self:
        """Let a failed or cancelled job go on from where it stood. Returns it as it is then. Raises StaleState."""
        if not self.resume_entry:
            raise NotImplementedError(f"{self.label} is not resumed so")
        self.check_resume()
        with transaction.atomic():
            self.requeue()
            return self._moved(actor, self.resume_entry)

    def check_resume(self) -> None:
        """For a kind to raise StaleState where another go would be wrong."""

    def when_over(self, state: State) -> None:
        """For a kind to tell people of its end, in the transaction of that. Of a cancellation nobody is told."""

    def _moved(self, actor: Actor, entry: str) -> Self:
        if entry:
            actor.record(project=self.project, action=entry, subject=self.audit_subject)
        self.refresh_from_db()
        return self

    def ask_to_end(self) -> None:
        """Ask for an end. A job that nobody works on ends now, a running one when its owner sees the request.

        Raises StaleState when the job is over already.
        """
        with transaction.atomic():
            job = type(self)._default_manager.select_for_update().get(pk=self.pk)
            if job.is_finished:
                raise StaleState("the job is over already")
            mine = type(self)._default_manager.filter(pk=self.pk)
            mine.update(cancel_requested_at=Now())
            mine.filter(ownerless()).update(state=State.CANCELLED, finished_at=Now(), fence=F("fence") + 1)

    def note(self, text: str, level: str = "info") -> None:
        """Append to the job's event log."""
        log_lines: models.Manager[Any] = self.events  # type: ignore[arg-type]  # each kind has a table of its own
        log_lines.create(text=text, level=level)

    def requeue(self, *also: State) -> None:
        """Put a failed or cancelled job back into the queue, to go on from where it stood; `also` one in these states.
        Raises StaleState for any other."""
        ended = type(self)._default_manager.filter(pk=self.pk, state__in=[State.FAILED, State.CANCELLED, *also])
        moved = ended.update(
            state=State.QUEUED,
            attempt=0,
            cancel_requested_at=None,
            error="",
            error_kind="",
            finished_at=None,
            lease_until=None,
            nudged_at=timezone.now(),
        )
        if not moved:
            raise StaleState("only a failed or cancelled job can be resumed")
        transaction.on_commit(self.nudge, robust=True)

    def room(self) -> dict[str, Any]:
        """Columns for what it holds from its claim on. The caller holds the row's lock. Raises NoRoom."""
        return {}

    @classmethod
    def claim(cls, pk: int) -> "Lease | None":
        """Take the job if it waits or its owner's lease ran out; None when there is nothing to take.

        A takeover beyond `MAX_ATTEMPTS` fails the job instead, and one without `room` here waits; both give the reason.
        """
        asked_at = time.monotonic()
        with transaction.atomic():
            # Locked rows are skipped: another claim has it, or its owner writes just now. The sweeper comes again.
            job = cls._default_manager.select_for_update(skip_locked=True).filter(ownerless(), pk=pk).first()
            if job is None or job._end_instead_of_claim():
                return None
            mine = cls._default_manager.filter(pk=pk)
            try:
                held = job.room()
            except NoRoom as why:
                mine.update(state=State.QUEUED, lease_until=None, message=str(why)[:300] or job.message)
                return None
            if job.state == State.RUNNING:
                job.note(f"{job.owner} went silent; attempt {job.attempt + 1} goes on", "warning")
            mine.update(
                state=State.RUNNING,
                fence=job.fence + 1,
                attempt=job.attempt + 1,
                lease_until=_lease_end(),
                owner=f"{socket.gethostname()}:{os.getpid()}",
                message="",
                started_at=job.started_at or Now(),
                **held,
            )
        return Lease(cls._default_manager.get(pk=pk), fence=job.fence + 1, asked_at=asked_at)

    def _end_instead_of_claim(self) -> bool:
        """End a job that is to be cancelled or has died too often. The caller holds the row's lock."""
        if self.cancel_requested_at is not None:
            ending: dict[str, Any] = {"state": State.CANCELLED}
        elif self.attempt >= MAX_ATTEMPTS:
            last = f" The last word was: {self.error}" if self.error else ""
            ending = {
                "state": State.FAILED,
                "error_kind": "worker_lost",
                "error": f"Its worker was lost {MAX_ATTEMPTS} times.{last} What was saved is kept; resume it to go on.",
            }
        else:
            return False
        type(self)._default_manager.filter(pk=self.pk).update(finished_at=Now(), fence=F("fence") + 1, **ending)
        if ending["state"] != State.CANCELLED:
            self.when_over(ending["state"])
        return True


class JobEvent(models.Model):
    """One line of a job's log, append-only. Subclasses add `job`, a foreign key with `related_name="events"`."""

    at = models.DateTimeField(default=timezone.now)
    level = models.CharField(max_length=8, default="info")
    text = models.TextField()

    class Meta:
        abstract = True
        ordering = ["id"]

    def __str__(self) -> str:
        return self.text[:80]


_LOCK = (
    "SELECT set_config('idle_in_transaction_session_timeout', %s, true) FROM {table}"
    " WHERE id = %s AND fence = %s AND state = %s FOR UPDATE"
)


class Lease:
    """An owner's hold on a running job. A thread renews it until the `with` block ends or until it is lost.

    Use it as a context manager: a body that ends well makes the job succeed unless it called `finish` itself; what it
    raises fails the job with its reason (`error.kind`, when the exception has one, is kept as the kind), but for
    Cancelled, which cancels it. A body that ends because the lease was lost, the database was away, or the process is
    told to stop (SystemExit) puts the job back into the queue if it is still ours.
    """

    def __init__(self, job: Job, fence: int, asked_at: float) -> None:
        self.job = job
        self.fence = fence
        self._renewed_at = asked_at
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._cancelled = threading.Event()
        self._inside = threading.local()
        self.ends = ExitStack()
        """What is closed when the job is over, however it ends."""
        self._thread = threading.Thread(target=self._renew_forever, name=f"lease-{job.pk}", daemon=True)

    @property
    def cancelled(self) -> bool:
        """A person asked for an end; save what is worth saving and call `finish(State.CANCELLED)`."""
        return self._cancelled.is_set()

    def go_on(self) -> None:
        """Raise Cancelled where a person asked for an end: for jobs that have nothing to save then."""
        if self.cancelled:
            raise Cancelled

    @property
    def lost(self) -> bool:
        """Somebody else may own the job by now: stop, and write nothing. Once true it stays true.

        Told by the clock too, so that it is true in the first moment after this process was stopped and continued, and
        when a renewal hangs.
        """
        if time.monotonic() - self._renewed_at > SILENT_FOR * settings.JOB_LEASE_SECONDS:
            self._lost.set()
        return self._lost.is_set()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A transaction that only the present owner can commit. Raises LeaseLost for any other.

        The row is locked inside, so a takeover comes after the writes, or comes first and they are refused. An owner
        that stops in here loses its session after a lease, so that it cannot hold the lock for ever. A guard inside
        another of the same thread is that other one.
        """
        if getattr(self._inside, "guard", False):
            yield
            return
        with transaction.atomic():
            # By hand, since some jobs pass here with every few attempts.
            lock = _LOCK.format(table=type(self.job)._meta.db_table)
            if not planned(lock, [str(1000 * settings.JOB_LEASE_SECONDS), self.job.pk, self.fence, State.RUNNING]):
                self._lost.set()
                raise LeaseLost(f"{self.job.label} {self.job.pk} has another owner or is over")
            self._inside.guard = True
            try:
                yield
            finally:
                self._inside.guard = False

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
            self.job.note(text, level)

    def finish(self, state: State, error: str = "", error_kind: str = "") -> None:
        """End the job. Raises LeaseLost when it is not ours to end."""
        with self.guard():
            if state != State.CANCELLED:
                self.job.when_over(state)
            self.update(state=state, error=error, error_kind=error_kind, finished_at=timezone.now(), lease_until=None)

    def give_back(self, *, error: str = "", is_attempt: bool = True) -> None:
        """Put the job back into the queue, to go on from where it stands, or end it when a person asked for that.

        Raises LeaseLost when it is not ours to give. An attempt that was only told to stop does not count.
        """
        with self.guard():
            mine = type(self.job)._default_manager.filter(pk=self.job.pk)
            mine.update(
                state=State.QUEUED,
                fence=F("fence") + 1,
                attempt=F("attempt") - (0 if is_attempt else 1),
                lease_until=None,
                owner="",
                error=error[:10_000],
                nudged_at=Now(),
            )
            mine.filter(cancel_requested_at__isnull=False).update(state=State.CANCELLED, finished_at=Now())
        self.job.nudge()

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        self._stop.set()
        self._thread.join(JOIN_TIMEOUT_S)
        close_old_connections()
        try:
            self._end(error)
        except LeaseLost:
            log.warning("%s %s ended after its lease was lost", self.job.label, self.job.pk)
        finally:
            self.ends.close()
        return error is None or isinstance(error, Exception)

    def _end(self, error: BaseException | None) -> None:
        text = "" if error is None else str(error) or type(error).__name__
        if self.job.state != State.RUNNING:
            return
        if error is not None and not isinstance(error, Exception):
            log.warning("%s %s is given back: %s", self.job.label, self.job.pk, text)
            self.give_back(is_attempt=False)
        elif self.lost or isinstance(error, LeaseLost | OperationalError | InterfaceError):
            log.warning("%s %s is given back, its lease or its database was away", self.job.label, self.job.pk)
            self.give_back(error=text or "the database was away for longer than the lease")
        elif error is None or isinstance(error, Cancelled):
            self.finish(State.CANCELLED if error else State.SUCCEEDED)
        else:
            log.error("%s %s failed", self.job.label, self.job.pk, exc_info=error)
            self.finish(State.FAILED, error=text[:10_000], error_kind=getattr(error, "kind", type(error).__name__)[:64])

    def _renew_forever(self) -> None:
        try:
            while not self._stop.wait(settings.JOB_LEASE_SECONDS / 4) and not self.lost:
                try:
                    self._renew()
                except Exception:
                    # A database that is away for a moment must not end the work. One that stays away must, since
                    # somebody else may own the job by then: `lost` tells by the clock.
                    log.warning("lease of %s %s not renewed", self.job.label, self.job.pk, exc_info=True)
                    connection.close()
        finally:
            connection.close()

    def _renew(self) -> None:
        asked_at = time.monotonic()
        mine = type(self.job)._default_manager.filter(pk=self.job.pk, fence=self.fence, state=State.RUNNING)
        if not mine.update(lease_until=_lease_end()):
            self._lost.set()
            return
        self._renewed_at = asked_at
        if mine.filter(cancel_requested_at__isnull=False).exists():
            self._cancelled.set()


def ownerless() -> Q:
    """Jobs that anybody may take."""
    return Q(state=State.QUEUED) | Q(state=State.RUNNING, lease_until__lt=Now())


def _lease_end() -> models.Expression:
    return Now() + timedelta(seconds=settings.JOB_LEASE_SECONDS)
