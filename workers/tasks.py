"""Everything that runs in the background, in one look.

`run_job` carries out a job row: it claims the row, and hands the lease to the one function that knows this kind of job.
`detect` reads new trajectories; `sweep` announces again what nobody came for. All of them may run twice or never:
the rows decide.
"""

from collections.abc import Callable

from celery import shared_task
from django.apps import apps
from django.utils import timezone

from flywheel import jobs
from flywheel.accounts.models import Pulse
from workers.detecting import detect_waiting
from workers.evaluating import evaluate
from workers.training import train

HANDLERS: dict[str, Callable[[jobs.Lease], None]] = {
    "evals.EvalRun": evaluate,
    "training.TrainingRun": train,
}


@shared_task(name=jobs.RUN_TASK)
def run_job(label: str, pk: int) -> None:
    """Claim one job and carry it out; nothing happens when somebody else has it."""
    model = apps.get_model(label)
    assert issubclass(model, jobs.Job)
    lease = model.claim(pk)
    if lease is not None:
        with lease:
            HANDLERS[label](lease)


@shared_task(name="workers.detect")
def detect(project_id: int) -> None:
    """Let the detectors read what arrived and was not read yet."""
    detect_waiting(project_id)


@shared_task(name="workers.sweep")
def sweep() -> None:
    """Every few seconds: say that a worker lives, announce waiting jobs, read what ingest left unread."""
    Pulse.objects.update_or_create(name="worker", defaults={"at": timezone.now()})
    jobs.sweep()
    detect_waiting()
