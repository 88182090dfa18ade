"""Refusals of data that has anything of what measures a run, and of what else learnt from such data.

    refuse_at_hand(base, dataset, …)     at the launch, by the checks that nobody has to wait for
    refusal(run)                         by the run's worker before its trainer starts, what is missing found now

Both ask the same pairs in the same words, and no reason overrides either. To compare hundreds of thousands of rows
takes minutes, which no request waits for; what was found once is kept for each pair of dataset and set
(`contamination_checks`), so that a run which is resumed or taken over asks the database alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from flywheel.agents.models import Version
from flywheel.edge.refusals import Refused
from flywheel.environments.models import RewardRecipe, Suite, TaskSet
from flywheel.environments.task_sets import suite_definitions
from flywheel.training.datasets import contamination_checks
from flywheel.training.models import ContaminationCheck, Dataset, TrainingRun


@dataclass(frozen=True, slots=True)
class _Pair:
    """Data, and tasks that it must have nothing of."""

    dataset: Dataset
    task_set: TaskSet
    field: str
    """Of the launch, where the problem belongs."""
    suite: Suite | None = None

    def problem(self, check: ContaminationCheck) -> str:
        """Why nothing may be trained; empty when it may."""
        if self.suite:
            problem = contamination_checks.suite_refusal(check, self.suite)
        else:
            problem = contamination_checks.refusal(check, self.task_set)
        return f"{problem}; the data is {self.dataset}" if problem else ""


def _pairs(
    base: Version,
    dataset: Dataset,
    task_set: TaskSet,
    teacher: Version | None = None,
    replay: Dataset | None = None,
    recipe: RewardRecipe | None = None,
) -> Iterator[_Pair]:
    """The data and all that base, teacher and the reward models of verifier and recipe learnt from beside the tasks
    that measure the run, and the data beside the regression suites of the base's agent."""
    data = {"dataset": dataset} | ({"replay": replay} if replay else {})
    for field, rows in data.items():
        yield _Pair(rows, task_set, field)
    for earlier in contamination_checks.datasets_of(base):
        yield _Pair(earlier, task_set, "base")
    for earlier in contamination_checks.datasets_of(teacher) if teacher else ():
        yield _Pair(earlier, task_set, "teacher")
    rewards = [("task_set", each.environment_version.verifier) for each in dataset.task_sets or [task_set]]
    for field, spec in [*rewards, *([("reward", recipe.spec)] if recipe else ())]:
        for earlier in contamination_checks.learnt_by_reward(task_set.project, spec):
            yield _Pair(earlier, task_set, field)
    for suite in suite_definitions.present(base.agent):
        for field, rows in data.items():
            yield _Pair(rows, suite.task_set, field, suite)


def refuse_at_hand(
    base: Version,
    dataset: Dataset,
    task_set: TaskSet,
    teacher: Version | None = None,
    replay: Dataset | None = None,
    recipe: RewardRecipe | None = None,
) -> None:
    """Raise Refused for what is known to be in the way without waiting."""
    pairs = list(_pairs(base, dataset, task_set, teacher, replay, recipe))
    data = {pair.dataset.pk: pair.dataset for pair in pairs}
    checks = {(pk, check.task_set_id): check for pk in data for check in contamination_checks.at_hand(data[pk])}
    for pair in pairs:
        check = checks.get((pair.dataset.pk, pair.task_set.pk))
        if check and (problem := pair.problem(check)):
            raise Refused(problem, field=pair.field)


def refusal(run: TrainingRun, tell: contamination_checks.Tell = lambda: None) -> str:
    """Why the run may not train; empty when it may. What `tell` raises ends it, and what was found by then is kept."""
    for pair in _pairs(run.base, run.dataset, run.task_set, run.teacher, run.replay, run.reward_recipe):
        if problem := pair.problem(contamination_checks.checked(pair.dataset, pair.task_set, tell)):
            return problem
    return ""
