"""Jobs of every kind that wait for an owner: the next to take, and workers woken for them."""

from collections.abc import Iterable
from datetime import timedelta

from django.apps import apps
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from flywheel.edge.jobs import Job, Lease, State, ownerless
from flywheel.system import devices

RENUDGE_AFTER = timedelta(seconds=5)
"""A queued job that nobody claimed for this long is announced again."""
WAITS_LONG = timedelta(minutes=10)
RENUDGE_LONG_AFTER = timedelta(minutes=1)
"""One that waits long, behind hours of work, is announced less often: whoever ends a job looks for it anyway."""
WAKE_UPS_AT_ONCE = 4


def kinds() -> list[type[Job]]:
    """Every concrete kind of job."""
    return [model for model in apps.get_models() if issubclass(model, Job)]


def by_devices(model: type[Job], labels: Iterable[str]) -> list[Q]:
    """The jobs of a kind that want devices of each label, and those that want none in particular; all of them together
    where the kind wants no devices."""
    return [Q(**{model.device_column: label}) for label in ("", *labels)] if model.device_column else [Q()]


def claim_next() -> Lease | None:
    """Take the job that waits longest, of any kind; None when nothing waits that can be taken."""
    waiting = [
        (created_at, model, pk)
        for model in kinds()
        for group in by_devices(model, devices.offered())
        for created_at, pk in model._default_manager.filter(ownerless(), group)
        .order_by("created_at")
        .values_list("created_at", "pk")[:100]
    ]
    for _, model, pk in sorted(waiting, key=lambda row: row[0]):
        if lease := model.claim(pk):
            return lease
    return None


def sweep() -> int:
    """Wake workers for jobs that wait or whose owner went silent; returns for how many. Run it every few seconds.

    A few messages are enough for any number of jobs: a worker that wakes takes one after the other.
    """
    stale = Q(created_at__gte=Now() - WAITS_LONG, nudged_at__lt=Now() - RENUDGE_AFTER) | Q(
        created_at__lt=Now() - WAITS_LONG, nudged_at__lt=Now() - RENUDGE_LONG_AFTER
    )
    count = 0
    for model in kinds():
        silent = Q(state=State.RUNNING, lease_until__lt=Now())
        waiting = model._default_manager.filter(Q(state=State.QUEUED) & stale | silent)
        # A locked row is skipped: who has it writes just now, or was stopped, and nothing may stand still for that.
        free = waiting.select_for_update(skip_locked=True)
        with transaction.atomic():
            announced = [
                job
                for group in by_devices(model, devices.LABELS)
                for job in free.filter(group).order_by("id")[:WAKE_UPS_AT_ONCE]
            ]
            if announced:  # most kinds have none, at any time
                count += model._default_manager.filter(pk__in=free.values("pk")).update(nudged_at=Now())
        for job in announced:
            job.nudge()
    return count
