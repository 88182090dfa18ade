"""Results of trying fixes: each draft beside its parent on the train tasks, the best of them, and how it went on.

Differences are paired by task and clustered by source, as everywhere. There are several, and one of them is picked:
so each interval has the level at which all of them hold together (Bonferroni), and says so. The ladder picks among the
drafts of every trial of a version, so there the best one's interval is widened for all of those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.apps import apps
from django.db.models import Exists, OuterRef, QuerySet

from flywheel.agents.models import Version
from flywheel.core.evidence.fix_ladder import Fix, TriedFix
from flywheel.core.evidence.statistics.arm_comparison import difference
from flywheel.core.evidence.statistics.estimates import Estimate
from flywheel.edge.jobs import FINISHED, State
from flywheel.environments.models import TaskSet
from flywheel.evals.comparisons.run_comparison import CannotCompare, check
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.run_summaries import rows_of
from flywheel.training.models import FixDraft, FixTrial, PromptProposal, ProposalState

ALPHA = 0.05
"""The chance that one interval of several misses, all of them together."""
DECIDED = {"promoted": "approved", "rejected": "rejected", "void": "void"}
"""Words for what became of a candidate, by its state; while it waits, the gate's verdict counts."""
LIGHTER: tuple[Fix, ...] = ("prompt", "tool_change")
"""The steps of the ladder that drafts try."""


@dataclass(frozen=True, slots=True)
class DraftResult:
    draft: FixDraft
    difference: Estimate | None
    """Of success on the train tasks, the draft's minus its parent's; None while one of them is not over."""
    problem: str = ""
    """Why the two cannot be compared."""


@dataclass(frozen=True, slots=True)
class TrialResults:
    trial: FixTrial
    drafts: list[DraftResult]

    @property
    def evals(self) -> list[EvalRun]:
        return [self.trial.parent_eval, *(each.draft.evaluation for each in self.drafts)]

    @property
    def is_over(self) -> bool:
        """Whether every eval on the train tasks ended well."""
        return all(run.state == State.SUCCEEDED for run in self.evals)

    @property
    def is_moving(self) -> bool:
        """Whether an eval of it is still to end, on train tasks or on held-out ones."""
        held_out = [run for run in (self.trial.evaluation, self.trial.baseline) if run]
        return any(run.state not in FINISHED for run in [*self.evals, *held_out])

    @property
    def best(self) -> DraftResult | None:
        """The draft that gains most over its parent, the first of several; None where none gains anything."""
        gains = [each for each in self.drafts if each.difference and (each.difference.mean or 0) > 0]
        return max(gains, key=lambda each: gain_of(each), default=None)

    @property
    def tasks(self) -> int:
        return self.trial.parent_eval.task_count

    @property
    def level(self) -> float:
        """Return the level of each interval."""
        return level_of(len(self.drafts))


def level_of(compared: int) -> float:
    """Return the level of each of several intervals, of which the best is picked."""
    return 1 - ALPHA / max(1, compared)


def gain_of(result: DraftResult) -> float:
    """The mean of its difference; less than any where there is none."""
    return -1.0 if result.difference is None or result.difference.mean is None else result.difference.mean


def trials() -> QuerySet[FixTrial]:
    """With what is shown of them."""
    return FixTrial.objects.select_related(
        "parent__agent",
        "task_set__environment_version__environment",
        "parent_eval__version__agent",
        "parent_eval__task_set__environment_version",
        "evaluation__version__agent",
        "baseline__version__agent",
        "measured_by",
        "created_by",
        "project",
    )


def drafts_of(trial: FixTrial) -> list[FixDraft]:
    rows = trial.drafts.select_related(
        "version__agent",
        "evaluation__version__agent",
        "evaluation__task_set__environment_version",
        "evaluation__project",
    )
    return list(rows.order_by("place"))


def results_of(trial: FixTrial) -> TrialResults:
    """Compare each draft that is over with its parent."""
    drafts = drafts_of(trial)
    level = level_of(len(drafts))
    found = []
    for draft in drafts:
        if any(run.state != State.SUCCEEDED for run in (draft.evaluation, trial.parent_eval)):
            found.append(DraftResult(draft, None))
            continue
        try:
            check(draft.evaluation, trial.parent_eval)
        except CannotCompare as error:
            found.append(DraftResult(draft, None, str(error)))
            continue
        found.append(DraftResult(draft, _gain(_Arm.of(draft.evaluation), _Arm.of(trial.parent_eval), level)))
    return TrialResults(trial, found)


@dataclass(frozen=True, slots=True)
class _Arm:
    """An eval that is over: the same results for the same end."""

    run: int
    finished_at: datetime | None

    @classmethod
    def of(cls, run: EvalRun) -> "_Arm":
        return cls(run.pk, run.finished_at)


@lru_cache(maxsize=512)
def _gain(draft: _Arm, parent: _Arm, level: float) -> Estimate:
    """The paired difference of success. Kept, for the ladder asks it of every trial whenever a form changes."""
    runs = EvalRun.objects.select_related("task_set").in_bulk([draft.run, parent.run])
    return difference("success", rows_of(runs[parent.run]), rows_of(runs[draft.run]), level=level)


def candidate_of(trial: FixTrial) -> Any:
    """The newest candidate that the trial's held-out evals made; None while there is none.

    Candidates lie to the right of this room and are asked by name: what became of a trial belongs to it.
    """
    if trial.evaluation_id is None:
        return None
    rows = apps.get_model("promotions.Candidate").objects.filter(
        version_eval=trial.evaluation_id, baseline_eval=trial.baseline_id
    )
    return rows.order_by("-pk").first()


def tried_fixes(version: Version, task_set: TaskSet) -> Mapping[Fix, TriedFix]:
    """By step of the ladder: the drafts of this version that were tried on sets of this environment, and the best."""
    environment = task_set.environment_version.environment_id
    rows = trials().filter(parent=version, task_set__environment_version__environment=environment)
    every = [results_of(trial) for trial in rows.order_by("-pk")]
    compared = _compared(every) + _proposed(version, environment)
    found: dict[Fix, TriedFix] = {}
    for fix in LIGHTER:
        own = [(one, each) for one in every for each in one.drafts if fix in each.draft.changes]
        drafts = [(one, each) for one, each in own if each.difference or one.is_moving]  # what broke off tried nothing
        if drafts:
            found[fix] = _tried(drafts, compared)
    return found


def _compared(every: list[TrialResults]) -> int:
    """Count the drafts that were compared with their parent, whatever they change; the same two evals once."""
    pairs = [(one, each) for one in every for each in one.drafts if each.difference]
    return len({(one.trial.parent_eval_id, each.draft.evaluation_id) for one, each in pairs})


def _proposed(version: Version, environment: int) -> int:
    """Count the proposals of searches that were played on all of their tasks: the best of them was picked as well. One
    that a trial compares is counted there."""
    rows = PromptProposal.objects.filter(
        search__parent=version,
        search__task_set__environment_version__environment=environment,
        state=ProposalState.KEPT,
        place__gt=0,
    )
    tried = FixDraft.objects.filter(trial=OuterRef("search__trial"), version__system_prompt=OuterRef("text"))
    return rows.exclude(Exists(tried)).count()


def _tried(drafts: list[tuple[TrialResults, DraftResult]], compared: int) -> TriedFix:
    """Sum up drafts, the newest trial's first; the best is picked among so many that were compared. What was measured
    on held-out tasks weighs more than what was not."""
    judged = [
        (one, each, DECIDED.get(candidate.state, candidate.verdict))
        for one, each in drafts
        if one.trial.evaluation_id
        and one.trial.evaluation
        and one.trial.evaluation.version_id == each.draft.version_id
        and (candidate := candidate_of(one.trial))
    ]
    leading = [row for name in ("eligible", "approved") for row in judged if row[2] == name]
    one, best = max(drafts, key=lambda pair: gain_of(pair[1]))
    verdict = next((name for first, each, name in judged if each is best), "")
    if leading:
        one, best, verdict = leading[0]
    arms = _Arm.of(best.draft.evaluation), _Arm.of(one.trial.parent_eval)
    return TriedFix(
        drafts=len(drafts),
        tasks=one.tasks,
        task_set=str(one.trial.task_set),
        trial=one.trial.pk,
        best=best.draft.name,
        version=str(best.draft.version),
        gain=_gain(*arms, level_of(compared)) if best.difference else None,
        compared=compared,
        sets=len({each.trial.task_set_id for each, _ in drafts}),
        verdict=verdict,
        is_open=any(each.is_moving for each, _ in drafts),
    )
