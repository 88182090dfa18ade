"""Attempts for which the server was away: the infrastructure failed them, so they alone may be asked once more.

Resuming a run takes them back, also one that ended well: their results and rollouts go, and the worker asks them under
the seeds that they had. What the policy may have brought about itself (a request that was refused, an answer that took
too long), a verifier could not score, or an environment broke stays as it is, so that nobody rolls again. So does
everything of a run on which something rests, or whose tokens and dollars are counted.
"""

from django.db.models import Q, QuerySet

from flywheel.core import verifiers
from flywheel.core.verifiers import AWAY
from flywheel.edge.jobs import State
from flywheel.environments.models import Split
from flywheel.evals.models import Comparison, EvalRun, Result
from flywheel.evals.runs.void_scores import void_of
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.operations.deletion import erase


def of_run(run: EvalRun) -> QuerySet[Result]:
    """Its attempts for which the server was away."""
    return run.results.filter(cause=AWAY)


def refusal(run: EvalRun) -> str:
    """Why a run that ended well is not asked again; empty when it is."""
    if not of_run(run).exists():
        return "it ended well and its server was there for every attempt"
    if verifiers.digest(run.task_set.environment_version.verifier) != run.verifier_digest:
        return "the verifier's code changed since its attempts were judged; submit it anew"
    if kept := _kept(run):
        return f"{kept}; submit it anew"
    return ""


def can_resume(run: EvalRun) -> bool:
    """Whether it has something left to ask."""
    if void_of(run.judges):
        return False
    return run.state in (State.FAILED, State.CANCELLED) or (run.state == State.SUCCEEDED and not refusal(run))


def take_back(run: EvalRun) -> int:
    """Remove them with their rollouts, and what was made of all results; how many they were. In a transaction."""
    if _kept(run):
        return 0
    rows = of_run(run)
    rollouts = list(Trajectory.objects.select_for_update().filter(result__in=rows).order_by("trace_id"))
    count = rows.delete()[1].get("evals.Result", 0)
    if rollouts:
        erase(run.project, rollouts, is_judged=False)
    if count:
        EvalRun.objects.filter(pk=run.pk).update(summary={}, done=run.results.count())
        Comparison.objects.filter(Q(candidate=run) | Q(baseline=run)).delete()
    return count


def hold(*runs: EvalRun) -> bool:
    """Lock them, in a transaction; whether none was asked again since it was read, so that what was made of their
    results stands. One that its own worker concludes is running still."""
    rows = EvalRun.objects.select_for_update(no_key=True).filter(pk__in=[run.pk for run in runs]).order_by("pk")
    found = {pk: (fence, state) for pk, fence, state in rows.values_list("pk", "fence", "state")}
    return all(found.get(run.pk) in ((run.fence, State.SUCCEEDED), (run.fence, State.RUNNING)) for run in runs)


def _kept(run: EvalRun) -> str:
    """Why its results stay as they are; empty where nothing speaks for it."""
    if run.budget.keys() & {"tokens", "usd"}:
        return "what its attempts took counts for its budget"
    if row := _candidate(run):
        return f"{row} was judged by it and stays so"
    if row := run.version.training_runs.filter(baseline=run).first():
        return f"{row} is compared with it"
    if row := run.rescores.first() or run.reward_audits.first():
        return f"{row} is of its attempts"
    return ""


def _candidate(run: EvalRun) -> object | None:
    """One that was put forward on the strength of it; of sealed tasks, one that is decided and may rest on it."""
    rests = Q(version_eval=run) | Q(baseline_eval=run)
    if run.split == Split.SEALED:
        arm = Q(version=run.version) | Q(baseline=run.version)
        rests = arm & Q(version_eval__task_set=run.task_set) & ~Q(state="waiting")
    found: object | None = run.version.agent.candidates.filter(rests).first()
    return found
