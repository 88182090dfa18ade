"""Everything that runs in the background, in one look.

`run_job` carries out a job row: it claims the row, and hands the lease to the one function that knows this kind of job.
`detect` reads new trajectories; `sweep` announces again what nobody came for. All of them may run twice or never:
the rows decide. What a task needs is imported when it runs, so that a worker starts at once and stays small.
"""

from collections.abc import Callable

from celery import shared_task
from django.apps import apps
from django.utils import timezone
from django.utils.module_loading import import_string

from flywheel import jobs
from flywheel.accounts.models import Pulse

HANDLERS = {
    "evals.EvalRun": "workers.evaluating.evaluate",
    "training.TrainingRun": "workers.training.train",
}
"""Who carries out each kind of job: a function that takes the `Lease`."""


@shared_task(name=jobs.RUN_TASK)  # type: ignore[untyped-decorator]
def run_job(label: str, pk: int) -> None:
    """Carry out this job, or the next that waits when somebody else has it, and go on until nothing waits."""
    model = apps.get_model(label)
    assert issubclass(model, jobs.Job)
    lease = model.claim(pk) or jobs.claim_next()
    while lease is not None:
        with lease:
            handler(lease.job.label)(lease)
        lease = jobs.claim_next()


def handler(label: str) -> Callable[[jobs.Lease], None]:
    """The function behind a kind of job."""
    found: Callable[[jobs.Lease], None] = import_string(HANDLERS[label])
    return found


@shared_task(name="workers.detect")  # type: ignore[untyped-decorator]
def detect(project_id: int | None = None) -> None:
    """Let the detectors read what arrived and was not read yet. Ingest asks for it; beat sees what was missed."""
    from workers.detecting import detect_waiting

    detect_waiting(project_id)


@shared_task(name="workers.sweep")  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Every few seconds, in beat: say that it lives, and wake workers for jobs that nobody came for."""
    report("beat")
    jobs.sweep()


def report(name: str) -> None:
    """Say that the process of this name lives."""
    Pulse.objects.update_or_create(name=name, defaults={"at": timezone.now()})
