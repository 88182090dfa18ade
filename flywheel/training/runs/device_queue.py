"""Who holds which device, and who waits for one."""

from dataclasses import dataclass

from django.db.models import Q
from django.db.models.functions import Now

from flywheel.accounts.models import Project, WorkerDevice
from flywheel.edge.jobs import State, ownerless
from flywheel.system import devices
from flywheel.training.models import TrainingRun


@dataclass(frozen=True, slots=True)
class Place:
    device: WorkerDevice
    is_held: bool
    run: TrainingRun | None
    """Who holds it, where the project may know."""


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    place: int
    """In its queue, from 1."""


def places(project: Project) -> list[Place]:
    """The devices of all workers that live, and their holders."""
    running = TrainingRun.objects.filter(state=State.RUNNING, lease_until__gte=Now()).exclude(held={})
    holders = {
        (run.held["host"], run.held["label"], name): run
        for run in running.only("held", "project")
        for name in run.held["names"]
    }
    rows = []
    for device in WorkerDevice.alive():
        run = holders.get((device.host, device.label, device.name))
        is_ours = run is not None and run.project_id == project.pk
        rows.append(Place(device, run is not None, run if is_ours else None))
    return rows


def waiting(run: TrainingRun) -> Waiting | None:
    """Why a run waits, and behind how many; None for one that does not."""
    if run.state != State.QUEUED:
        return None
    same = Q(device__in=("", run.device)) if run.device else Q(device__in=("", *devices.LOCAL))
    earlier = TrainingRun.objects.filter(ownerless(), same, pk__lt=run.pk).count()
    return Waiting(run.message or _nobody(run.device), earlier + 1)


def _nobody(label: str) -> str:
    """The reason where no worker has looked at it yet."""
    labels = [label] if label else devices.LOCAL
    if WorkerDevice.alive().filter(label__in=labels).exists():
        return "a worker picks it up within seconds"
    wanted = " or ".join(devices.WORDS[each][0] for each in labels)
    return f"no worker with a {wanted} is there; it starts when one comes"
