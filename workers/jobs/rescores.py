"""Judging old rollouts with another verifier or a reward recipe: the worker's side of `evals.rescore`."""

from flywheel.core import envs, verifiers
from flywheel.core.envs.wrappers.rubric_environment import Judged
from flywheel.edge.jobs import Lease
from flywheel.evals import run_rescores
from flywheel.evals.models import Rescore
from flywheel.evals.runs.void_scores import unscore
from flywheel.trajectories.formats.values.hostile_json import text
from workers.jobs.eval_runs import VerifierChanged
from workers.judging import attempt_verdicts, project_judges


def judge_again(lease: Lease) -> None:
    """Go on with the attempts that have no new score yet."""
    rows = Rescore.objects.select_related("run__version", "project", "environment_version__environment", "recipe")
    job = rows.get(pk=lease.job.pk)
    version = job.environment_version
    judge = job.recipe.judged_by(version.verifier) if job.recipe else verifiers.digest(version.verifier)
    if judge != job.verifier_digest:
        raise VerifierChanged(
            "the verifier's code changed since this was asked for; ask again: one judge scores it all"
        )
    asking = job.recipe.spec if job.recipe else version.verifier
    runners = project_judges.runners(job.project, asking, job.judges, lease=lease)
    env = envs.build(version.environment.kind, version.config, version.verifier, runners, job.run.version.config())
    if job.recipe:
        env = Judged(env, job.recipe.rubric.judging, runners)
    done = job.scores.count()
    for chunk in run_rescores.waiting(job):
        lease.go_on()
        attempts = [attempt for _, attempt in chunk if attempt is not None]
        known = [run_rescores.verdict_of(result) for result, attempt in chunk if attempt is not None]
        for task, _ in attempts[:1]:
            project_judges.meet(lease, env, task, job.scores.all())
        said = attempt_verdicts.verdicts(env, attempts, known if job.recipe else None)
        judged = iter(project_judges.settled(env, said))
        found = [run_rescores.unanswered(result) if attempt is None else next(judged) for result, attempt in chunk]
        results = [result for result, _ in chunk]
        clean = [verifiers.Verdict(v.score, text(v.reason), v.parts, v.cause) for v in found]
        done += len(chunk)
        with lease.guard():
            run_rescores.keep(job, results, clean)
            job.judges = project_judges.note(lease, env)
            unscore(job.scores.all(), job.judges)
            lease.progress(done)
        project_judges.refuse_void(env)
