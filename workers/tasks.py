"""Everything that runs in the background, in one look.

`run_job` carries out a job row: it claims the row, and hands the lease to the one function that knows this kind of job.
`detect` reads new trajectories; `sweep` announces again what nobody came for. All of them may run twice or never:
the rows decide. What a task needs is imported when it runs, so that a worker starts at once and stays small.
"""

import socket
from collections.abc import Callable
from datetime import timedelta

from celery import shared_task
from django.apps import apps
from django.utils import timezone
from django.utils.module_loading import import_string

from flywheel.accounts.models import Pulse, WorkerDevice
from flywheel.core import recipes
from flywheel.edge import job_queue, jobs
from flywheel.system import devices

HANDLERS = {
    "agents.HubVersion": "workers.jobs.weights.hub_downloads.fetch",
    "agents.MergedWeights": "workers.jobs.weights.adapter_merges.merge",
    "environments.Generation": "workers.jobs.task_generation.make_tasks",
    "environments.PlayTurn": "workers.jobs.playground_moves.make_moves",
    "environments.Proving": "workers.jobs.task_proofs.prove_tasks",
    "environments.Trial": "workers.jobs.draft_trials.try_verifier",
    "environments.WorldTrial": "workers.jobs.draft_trials.try_world",
    "evals.EvalRun": "workers.jobs.eval_runs.evaluate",
    "evals.Rescore": "workers.jobs.rescores.judge_again",
    "failures.Clustering": "workers.jobs.failure_clusters.cluster",
    "training.CheckpointVersion": "workers.jobs.training.checkpoint_versions.make",
    "training.DatasetBuild": "workers.jobs.training.dataset_builds.build",
    "training.PromptSearch": "workers.jobs.training.prompt_optimiser.search_prompts",
    "training.TokenPreview": "workers.jobs.training.row_previews.make_tokens",
    "training.TrainingRun": "workers.jobs.training.training_runs.train",
    "trajectories.Bulk": "workers.jobs.trajectories.bulk_changes.carry_out",
    "trajectories.Import": "workers.jobs.trajectories.file_imports.import_file",
    "trajectories.Reread": "workers.jobs.trajectories.span_rereads.read_again",
}
"""Who carries out each kind of job: a function that takes the `Lease`."""


@shared_task(name=jobs.RUN_TASK)  # type: ignore[untyped-decorator]
def run_job(label: str, pk: int) -> None:
    """Carry out this job, or the next that waits when somebody else has it, and go on until nothing waits."""
    model = apps.get_model(label)
    assert issubclass(model, jobs.Job)
    lease = model.claim(pk) or job_queue.claim_next()
    while lease is not None:
        with lease:
            handler(lease.job.label)(lease)
        lease = job_queue.claim_next()


def handler(label: str) -> Callable[[jobs.Lease], None]:
    """The function behind a kind of job."""
    found: Callable[[jobs.Lease], None] = import_string(HANDLERS[label])
    return found


@shared_task(name="workers.detect")  # type: ignore[untyped-decorator]
def detect(project_id: int | None = None) -> None:
    """Let the detectors read what arrived and was not read yet. Ingest asks for it; beat sees what was missed.

    They read it humbly: a burst of spans is stored first, and read when it is over. But not beside the judge of a
    ramp, which beat runs too: whoever is descheduled with the interpreter's lock in hand holds up the whole process.
    """
    from flywheel.promotions.models import Ramp
    from workers.jobs.detection import detect_waiting
    from workers.processes.niceness import humbly

    if Ramp.objects.filter(state__in=Ramp.OPEN).exists():
        detect_waiting(project_id)
    else:
        humbly(lambda: detect_waiting(project_id))


@shared_task(name="workers.sweep")  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Every few seconds, in beat: say that it lives, wake workers for jobs that nobody came for, record what the
    gateway left lying, apply the rules of new queues to what was there before them, and keep what failures are
    compared by up to date."""
    report("beat")
    job_queue.sweep()
    from flywheel.failures.queues import intake, queue_progress
    from flywheel.failures.similar_failures import cluster_edits, sketches
    from flywheel.trajectories.ingest.gateway.recorder import sweep as record_what_lies_there

    record_what_lies_there()
    intake.catch_up()
    queue_progress.fold()
    sketches.catch_up()
    cluster_edits.catch_up()


@shared_task(name="workers.advance")  # type: ignore[untyped-decorator]
def advance() -> None:
    """Every few seconds, in beat: let pipelines of training go on to their next stage. Apart from the sweep, which
    waits for nothing: a stage that begins has its data compared with held-out tasks."""
    from flywheel.training.pipelines import pipeline_steps

    pipeline_steps.sweep()


@shared_task(name="workers.judge")  # type: ignore[untyped-decorator]
def judge() -> None:
    """Every second, in beat: judge the ramps that are under way, and let their splits hold for a little longer.
    Apart from all else, which may not hold up the way back."""
    from flywheel.promotions.ramps import ramp_judging

    ramp_judging.look()


def stand_in() -> None:
    """Every second, in each worker: judge the ramps that beat has not looked at for two seconds. While one is under
    way, all that this takes is loaded."""
    from flywheel.promotions.models import Ramp

    if Ramp.objects.filter(state__in=Ramp.OPEN).exists():
        from flywheel.promotions.ramps import ramp_judging

        ramp_judging.stand_in()


@shared_task(name="workers.self_test")  # type: ignore[untyped-decorator]
def self_test() -> None:
    """Every few seconds, in beat: make the self-tests of ramps that are due. Apart from the judge, which waits for
    nobody's server."""
    from flywheel.promotions.ramps import self_tests

    if due := self_tests.due():
        from workers.policies import ramp_self_tests

        ramp_self_tests.make(due)


@shared_task(name="workers.watch")  # type: ignore[untyped-decorator]
def watch() -> None:
    """Every few seconds, in beat: see whether what promotions claim still holds in the traffic of their versions."""
    from flywheel.promotions.ramps import claim_watching

    claim_watching.look()


@shared_task(name="workers.deliver")  # type: ignore[untyped-decorator]
def deliver() -> None:
    """Every few seconds, in beat: send notices to Slack, to webhooks and by e-mail. Apart from the sweep, which waits
    for nobody's server."""
    from flywheel.accounts.notices import deliveries

    deliveries.deliver()


@shared_task(name="workers.add_up")  # type: ignore[untyped-decorator]
def add_up() -> None:
    """Every minute, in beat: add up finished days for the metrics, and those that have changed since."""
    from flywheel.trajectories.metrics import daily_metrics

    daily_metrics.catch_up()


@shared_task(name="workers.expire")  # type: ignore[untyped-decorator]
def expire() -> None:
    """Every few minutes, in beat: delete what projects keep no longer, what jobs and ramps left behind, and old
    notices."""
    from flywheel.accounts.notices import deliveries
    from flywheel.agents.splits import named_answers
    from flywheel.training.datasets import build_jobs
    from flywheel.trajectories.operations import bulk_actions, retention

    retention.sweep()
    bulk_actions.sweep()
    build_jobs.sweep()
    deliveries.forget()
    named_answers.sweep()


def report(name: str) -> None:
    """Say that the process of this name lives."""
    Pulse.objects.update_or_create(name=name, defaults={"at": timezone.now()})


def report_devices() -> None:
    """Say which devices this worker offers to training runs, and how it can tune on them. Those of a machine that is
    gone are forgotten in a day."""
    now, host = timezone.now(), socket.gethostname()[:200]
    rows = [
        WorkerDevice(host=host, label=label, name=name, modes=recipes.possible_modes(), at=now)
        for label, names in devices.offered().items()
        for name in names
    ]
    WorkerDevice.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["host", "label", "name"], update_fields=["at", "modes"]
    )
    WorkerDevice.objects.filter(at__lt=now - timedelta(days=1)).delete()
