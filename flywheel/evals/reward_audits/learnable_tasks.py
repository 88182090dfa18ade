"""A version's solve rate at each task of a run, and the tasks that can teach it nothing by reward."""

from dataclasses import dataclass

from django.db.models import Count, Q

from flywheel.core.evidence.fix_ladder import LEARNABLE
from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.evals.models import EvalRun


@dataclass(frozen=True, slots=True)
class Solved:
    """The version's solve rate at one task of the run."""

    number: int
    prompt: str
    rate: Estimate

    @property
    def is_learnable(self) -> bool:
        """Whether attempts differ enough for a group of them to teach anything."""
        low, high = LEARNABLE
        return self.rate.mean is None or low <= self.rate.mean <= high


def solve_rates(run: EvalRun) -> list[Solved]:
    """Return the solve rate of every task of the run, the least solved first."""
    rows = (
        run.results.order_by()
        .values_list("task__number", "task__prompt")
        .annotate(
            passed=Count("pk", filter=Q(success=True)),
            scored=Count("pk", filter=Q(success__isnull=False)),
            unscored=Count("pk", filter=Q(success=None)),
        )
    )
    found = [
        Solved(number, prompt, proportion(passed, scored, unscored=unscored))
        for number, prompt, passed, scored, unscored in rows
    ]
    return sorted(found, key=lambda task: (2.0 if task.rate.mean is None else task.rate.mean, task.number))


def unlearnable(run: EvalRun) -> list[Solved]:
    """Tasks that the version solves nearly always or nearly never: a group of attempts at one teaches nothing."""
    return [task for task in solve_rates(run) if not task.is_learnable]
