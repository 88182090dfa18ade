"""Judge the rollouts of a run again, with another version's verifier or a reward recipe: the policy is not asked,
nothing is overwritten.

What the run was judged with stays in its results; the new scores stand beside them with their own digest, and
`changes` shows what the other verifier would have said. A recipe stands on what the run's own verifier has said, as in
training, and is asked only for what judges: a reward audit draws from its scores.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, Value, When

from flywheel.accounts.actors import Actor
from flywheel.core import envs, verifiers
from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate
from flywheel.core.verifiers import NOT_ANSWERED, UNJUDGED, Verdict, unscored
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion, RewardRecipe, Split
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.reward_recipes import check_goes_with
from flywheel.evals.models import EvalRun, Rescore, Rescored, Result
from flywheel.trajectories.store.stored_traces import traces_of

AT_ONCE = 64


def submit(*, run: EvalRun, version: EnvironmentVersion, actor: Actor, key: uuid.UUID) -> tuple[Rescore, bool]:
    """Let a worker judge the run's attempts under this version's verifier. Returns the job and whether it is new.

    Raises Refused.
    """
    if version.environment_id != run.task_set.environment_version.environment_id:
        raise Refused(f"{version} is of another environment than {run.task_set}", field="version")
    return _submit(run, version, verifiers.digest(version.verifier), actor, key)


def _submit(
    run: EvalRun,
    version: EnvironmentVersion,
    digest: str,
    actor: Actor,
    key: uuid.UUID,
    recipe: RewardRecipe | None = None,
) -> tuple[Rescore, bool]:
    if run.split == Split.SEALED:
        raise Refused(f"{run} asked sealed tasks, whose rollouts nobody keeps", field="run")
    if not run.is_finished:
        raise Refused(f"{run} is {run.state}; its attempts can be judged again when it is over", field="run")
    total = run.results.count()
    if not total:
        raise Refused(f"{run} has no attempt that could be judged", field="run")
    about = {"environment_version": str(version), "verifier_digest": digest}
    return Rescore.submit(
        key=key,
        actor=actor,
        entry="evals.rescore",
        about={"subject": run, **about, **({"recipe": str(recipe)} if recipe else {})},
        project=run.project,
        run=run,
        environment_version=version,
        recipe=recipe,
        verifier_digest=digest,
        total=total,
    )


def submit_recipe(*, run: EvalRun, recipe: RewardRecipe, actor: Actor, key: uuid.UUID) -> tuple[Rescore, bool]:
    """Let a worker judge the run's attempts by a recipe. Returns the job and whether it is new. Raises Refused."""
    version = run.task_set.environment_version
    if recipe.rubric.is_own_verdict:
        raise Refused(
            f"{recipe} passes exactly what the verifier passes; there is nothing to score again", field="reward"
        )
    if run.verifier_digest != verifiers.digest(version.verifier):
        raise Refused(f"{run} was judged by a verifier that has changed since; evaluate again", field="run")
    check_goes_with(recipe, version)
    return _submit(run, version, recipe.judged_by(version.verifier), actor, key, recipe)


Attempts = list[tuple[Result, tuple[envs.Task, list[Any]] | None]]


def waiting(job: Rescore) -> Iterator[Attempts]:
    """The run's attempts that have no new score yet, a few at a time: each result with what is to be judged, or None
    where the policy gave no answer, which no verifier can change."""
    rows = job.run.results.exclude(rescored__rescore=job).order_by("pk")
    last = 0
    while some := list(rows.filter(pk__gt=last).select_related("task", "trajectory")[:AT_ONCE]):
        traces = traces_of([result.trajectory for result in some if result.trajectory])
        found: Attempts = []
        for result in some:
            trace = traces.get(result.trajectory_id or 0)
            attempt = None
            if trace is not None and not _is_unanswered(result):
                attempt = (core_task(result.task), trace.conversation())
            found.append((result, attempt))
        yield found
        last = some[-1].pk


def _is_unanswered(result: Result) -> bool:
    return result.cause in UNJUDGED or (result.score is None and result.error.startswith("not answered"))


def verdict_of(result: Result) -> Verdict:
    """The verdict that the run's own verifier gave."""
    return Verdict(result.score, result.reason, result.parts, result.cause)


def unanswered(result: Result) -> Verdict:
    """The verdict of an attempt that cannot be judged again."""
    if result.trajectory_id is None:
        return unscored("its rollout was deleted", NOT_ANSWERED)
    return unscored(result.error, result.cause or NOT_ANSWERED)


def keep(job: Rescore, results: Sequence[Result], verdicts: Sequence[Verdict]) -> None:
    """Save what was said; inside a lease's guard. What is there already stays."""
    rows = [
        Rescored(
            rescore=job,
            result=result,
            score=verdict.score,
            success=verdict.success,
            parts=dict(verdict.parts),
            reason=verdict.reason,
            cause=verdict.cause,
        )
        for result, verdict in zip(results, verdicts, strict=True)
    ]
    Rescored.objects.bulk_create(rows, ignore_conflicts=True)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes by the other verifier, counted over all attempts."""

    n: int
    to_pass: int
    to_fail: int
    to_unscored: int
    from_unscored: int
    moved: int
    """Another score, the same outcome."""
    same: int
    before: Estimate
    after: Estimate

    @property
    def flips(self) -> int:
        return self.to_pass + self.to_fail


FLIP = Q(result__success=False, success=True) | Q(result__success=True, success=False)


def changes(job: Rescore) -> Changes:
    """Counted in the database; the success rates are per task, clustered by source, as in a run's summary."""
    rows = job.scores.all()
    old, new = Q(result__success__isnull=True), Q(success__isnull=True)
    counted = rows.aggregate(
        n=Count("pk"),
        to_pass=Count("pk", filter=Q(result__success=False, success=True)),
        to_fail=Count("pk", filter=Q(result__success=True, success=False)),
        to_unscored=Count("pk", filter=~old & new),
        from_unscored=Count("pk", filter=old & ~new),
        moved=Count("pk", filter=Q(result__success=F("success")) & ~Q(result__score=F("score"))),
    )
    told = sum(count for name, count in counted.items() if name != "n")
    return Changes(
        **counted, same=counted["n"] - told, before=_rate(rows, "result__success"), after=_rate(rows, "success")
    )


def _rate(rows: QuerySet[Rescored], column: str) -> Estimate:
    per_task = (
        rows.values("result__task", "result__task__cluster")
        .annotate(
            passed=Count("pk", filter=Q(**{column: True})), scored=Count("pk", filter=Q(**{f"{column}__isnull": False}))
        )
        .order_by("result__task")
    )
    means = [row["passed"] / row["scored"] if row["scored"] else None for row in per_task]
    return clustered_rate(means, [row["result__task__cluster"] for row in per_task])


def ordered(job: Rescore) -> QuerySet[Rescored]:
    """Flips first, then what lost or got a score, then other scores, then what stayed."""
    rank = Case(
        When(FLIP, then=Value(0)),
        When(Q(result__success__isnull=True) ^ Q(success__isnull=True), then=Value(1)),
        When(Q(result__score=F("score")) | Q(result__score__isnull=True, score__isnull=True), then=Value(3)),
        default=Value(2),
        output_field=IntegerField(),
    )
    rows = job.scores.select_related("result__task__environment", "result__trajectory")
    return rows.annotate(rank=rank).order_by("rank", "pk")
