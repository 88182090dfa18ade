"""A version at the regression suites of its agent: the evals that are theirs, found or started, and what each task did.

An eval is a suite's when everything that decides a score is the same: version, task set, attempts per task, seed,
sampling, engine, and the verifier as it judges today. So none is asked twice, and none that another judge scored
counts.
"""

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from django.db.models import Count, F, Q

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.core import verifiers
from flywheel.core.digests import digest
from flywheel.core.evidence.statistics.exact_tests import Tried
from flywheel.core.verifiers import AWAY
from flywheel.edge.jobs import State
from flywheel.environments.models import Split, Suite
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs import submission, unanswered_attempts
from flywheel.evals.runs.submission import RunSettings, sampling_of
from flywheel.evals.runs.void_scores import void_of


@dataclass(frozen=True, slots=True)
class Attempts:
    """Outcomes of the attempts at one task, counted."""

    count: int
    failed: int
    unscored: int
    unsafe: int
    unmeasured: int
    """Of which the verifier does not say whether they were unsafe."""
    unanswered: int = 0
    """For which its server was away: these can be asked again."""

    def tried(self, measure: str) -> Tried:
        """As a suite of this measure counts them."""
        if measure == Suite.Measure.SAFE:
            return Tried(self.count, self.unsafe, self.unmeasured)
        return Tried(self.count, self.failed, self.unscored)


def find(
    versions: Collection[Version], suites: Collection[Suite], settings: RunSettings
) -> dict[tuple[int, int], EvalRun]:
    """The eval of each (version, suite), by their keys, where there is one.

    It is the first that was asked and is not void, so that nobody asks again until it passes, nor stops one that looks
    bad for another, itself or by a budget: what has an attempt goes on. Where all are void it is the newest.
    """
    own = Q()
    for version in versions:
        own |= Q(version=version, sampling=sampling_of(version, settings.sampling))
    rows = EvalRun.objects.filter(
        own,
        task_set__in=[suite.task_set_id for suite in suites],
        split=Split.HELD_OUT,
        engine=settings.engine,
        seed=settings.seed,
    )
    found: dict[tuple[int, int], EvalRun] = {}
    for run in rows.select_related("version__agent", "task_set__environment_version__environment").order_by("pk"):
        for suite in suites:
            before = found.get((run.version_id, suite.pk))
            if _is_of(run, suite) and (before is None or not _rank(before) or _rank(run) > _rank(before)):
                found[run.version_id, suite.pk] = run
    return found


def start(*, version: Version, suite: Suite, settings: RunSettings, actor: Actor) -> EvalRun:
    """The suite's eval of the version: the one there is, resumed where it did not end well, then without a budget, or
    where its server was away for a part; else a new one.

    Raises Refused.
    """
    run = find([version], [suite], settings).get((version.pk, suite.pk))
    is_void = run is not None and bool(void_of(run.judges))
    if run is not None and not is_void:
        if unanswered_attempts.can_resume(run):
            is_short = bool(run.budget) and run.state != State.SUCCEEDED
            submission.resume(run=run, actor=actor, budget={} if is_short else None)
        return run
    # Two at once make one; a run whose judge was void is kept, and asked anew beside it.
    sampling = sampling_of(version, settings.sampling)
    named = [version.pk, suite.pk, settings.engine, sampling, settings.seed, _digest(suite)]
    made, _ = submission.submit(
        key=uuid.uuid5(uuid.NAMESPACE_OID, digest([*named, run.pk if run else 0])),
        version=version,
        task_set=suite.task_set,
        actor=actor,
        settings=replace(settings, samples=suite.samples),
    )
    return made


def newest(versions: Collection[Version], suites: Collection[Suite], *states: State) -> dict[tuple[int, int], EvalRun]:
    """The newest eval of each (version, suite) in one of these states, however it was sampled. Each says its `success`;
    what is large of it is left in the database."""
    rows = EvalRun.objects.filter(
        version__in=versions,
        task_set__in=[suite.task_set_id for suite in suites],
        split=Split.HELD_OUT,
        state__in=states,
    )
    same = ("version_id", "task_set_id", "samples", "verifier_digest")
    rows = rows.order_by(*same, "-pk").distinct(*same).defer("summary", "judges", "isolation")
    found = rows.select_related("version__agent").annotate(success=F("summary__metrics__success"))
    return {(run.version_id, suite.pk): run for run in found for suite in suites if _is_of(run, suite)}


def tallies(runs: Iterable[EvalRun]) -> dict[int, dict[int, Attempts]]:
    """Count the outcomes of each run that ended well, by task: one statement for all of them, so that none
    shows while it is asked again."""
    counts = (
        Result.objects.filter(run__in=list(runs), run__state=State.SUCCEEDED)
        .order_by()
        .values_list("run", "task")
        .annotate(
            count=Count("pk"),
            failed=Count("pk", filter=Q(success=False)),
            unscored=Count("pk", filter=Q(success=None)),
            unsafe=Count("pk", filter=Q(parts__unsafe__gt=0)),
            unmeasured=Count("pk", filter=Q(parts__unsafe__isnull=True) | Q(parts__unsafe=None)),
            unanswered=Count("pk", filter=Q(cause=AWAY)),
        )
    )
    found: dict[int, dict[int, Attempts]] = {}
    for run, task, *numbers in counts:
        found.setdefault(run, {})[task] = Attempts(*numbers)
    return found


def failing(run: EvalRun, measure: str, tasks: Collection[int]) -> list[Result]:
    """Find the first attempt at each of these tasks that did not pass, with its rollout."""
    bad = Q(parts__unsafe__gt=0) if measure == Suite.Measure.SAFE else Q(success=False)
    rows = run.results.filter(bad, task__in=tasks).select_related("task__environment", "trajectory")
    return list(rows.order_by("task_id", "sample").distinct("task_id"))


def _is_of(run: EvalRun, suite: Suite) -> bool:
    same = (run.task_set_id, run.samples) == (suite.task_set_id, suite.samples)
    return same and run.verifier_digest == _digest(suite)


def _digest(suite: Suite) -> str:
    return verifiers.digest(suite.task_set.environment_version.verifier)


def _rank(run: EvalRun) -> int:
    """Rank a run: the higher of two is the suite's, of equals the first; 0 if void, and any later one replaces it."""
    if void_of(run.judges):
        return 0
    if run.state == State.SUCCEEDED or run.done:
        return 3
    return 2 if run.state in (State.QUEUED, State.RUNNING) else 1
