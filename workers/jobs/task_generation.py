"""Making tasks out of a seed: the worker's side of `environments.generate`."""

from flywheel.edge.jobs import Lease, State
from flywheel.environments.models import Generation
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.proofs.judge_endpoints import void_since
from flywheel.environments.tasks import seeded_tasks
from flywheel.environments.versions.environment_versions import latest
from workers.judging import project_judges
from workers.judging.llm_judge import JudgeError

AT_ONCE = 10


def make_tasks(lease: Lease) -> None:
    """Go on from where the last owner was. Proofs are made before the job's row is locked to save them."""
    job = Generation.objects.select_related("environment__project", "created_by", "origin__environment").get(
        pk=lease.job.pk
    )
    done, made = job.done, job.made
    version = latest(job.environment)
    if problem := void_since(version):
        raise JudgeError(problem, "canary")
    runners = project_judges.runners(job.environment.project, version.verifier, lease=lease)
    for tasks in seeded_tasks.parts(job, AT_ONCE, runners):
        lease.go_on()
        with lease.guard():
            made += seeded_tasks.keep(job, tasks)
            done += len(tasks)
            lease.update(done=done, made=made)
        if void := project_judges.void_of(runners):
            proof_jobs.take_back(job.environment, version, void)
            raise JudgeError("; ".join(void.values()), "canary")
    lease.finish(State.SUCCEEDED)
