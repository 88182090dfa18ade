"""Proving tasks whose verifier needs what only a worker has: the worker's side of `environments.proving`."""

from flywheel.core.verifiers import NO_RUNNERS
from flywheel.edge.jobs import Lease
from flywheel.environments.models import EnvironmentVersion, Proving
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.proofs.judge_endpoints import void_since
from flywheel.environments.proofs.red_green_proof import common_wrong
from workers.judging import project_judges
from workers.judging.llm_judge import JudgeError


def prove_tasks(lease: Lease) -> None:
    """Until no task waits, those too that come meanwhile. A proof that is made twice is the same proof."""
    environment = Proving.objects.select_related("environment__project").get(pk=lease.job.pk).environment
    done, under, runners, common = 0, EnvironmentVersion(), NO_RUNNERS, None
    while not lease.lost:
        version = environment.versions.select_related("environment").latest("number")
        if version != under:
            under, runners = version, project_judges.runners(environment.project, version.verifier, lease=lease)
            common = common_wrong(environment, version)
            if problem := void_since(version):
                raise JudgeError(problem, "canary")
        lease.progress(done, done + proof_jobs.waiting(environment, version).count())
        lease.go_on()
        proved = proof_jobs.prove_some(environment, version, runners, common)
        if void := project_judges.void_of(runners):
            proof_jobs.take_back(environment, version, void)
            raise JudgeError("; ".join(void.values()), "canary")
        if not proved:
            return
        done += len(proved)
