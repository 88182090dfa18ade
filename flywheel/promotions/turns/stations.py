"""A turn, station by station: each a query, of which a list asks for its page and a count for at most
so many."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db.models import Exists, OuterRef, Q, QuerySet

from flywheel.agents.models import Agent
from flywheel.edge.refusals import Missing
from flywheel.environments.models import Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.failures.models import Decision, Failure, Recurrence
from flywheel.promotions.lineage.levels import Count
from flywheel.promotions.lineage.passport_kinds import KINDS, Kind, Rows
from flywheel.promotions.models import Candidate, Promotion, Ramp
from flywheel.promotions.turns.turn_bounds import Turn
from flywheel.training.models import TrainingRun
from flywheel.trajectories.models import Source, Trajectory

MOST: Final = 10_000
"""Of longer lists it is said that they are longer."""


@dataclass(frozen=True, slots=True)
class Station:
    key: str
    title: str
    kind: Kind
    of: Callable[[Turn], QuerySet[Any]]

    def rows(self, turn: Turn) -> Rows:
        """As they are shown, in no order."""
        return self.kind.shown(self.of(turn).order_by())

    def counted(self, turn: Turn) -> Count:
        found = self.of(turn).order_by()[: MOST + 1].count()
        return Count(min(found, MOST), found > MOST)


def confirmed(agent: Agent, when: Q) -> QuerySet[Failure]:
    """Failures of the agent's traffic that people confirmed then, and that count still."""
    rows = Failure.objects.filter(when, project=agent.project_id, current=True, trajectory__agent=agent)
    return rows.exclude(decision=Decision.REJECTED).exclude(trajectory__source__in=Source.ATTEMPTS)


def came_back(turn: Turn) -> QuerySet[Recurrence]:
    """Buckets that the watch saw come back in the turn, without those of which a person said otherwise."""
    rows = Recurrence.objects.filter(turn.has("at"), project=turn.agent.project_id, version__agent=turn.agent)
    return rows.exclude(answer=Recurrence.Answer.NOT_SAME)


def _trajectories(turn: Turn) -> QuerySet[Trajectory]:
    rows = Trajectory.objects.filter(turn.has("started_at"), project=turn.agent.project_id, agent=turn.agent)
    return rows.exclude(source__in=Source.ATTEMPTS)


def _failures(turn: Turn) -> QuerySet[Failure]:
    return confirmed(turn.agent, turn.has("labelled_at"))


def _tasks(turn: Turn) -> QuerySet[Task]:
    its = Q(environment__agent=turn.agent) | Q(environment__agent=None, source__agent=turn.agent)
    return Task.objects.filter(its, turn.has("created_at"), project=turn.agent.project_id)


def _task_sets(turn: Turn) -> QuerySet[TaskSet]:
    asked = EvalRun.objects.filter(task_set=OuterRef("pk"), version__agent=turn.agent)
    its = Q(environment_version__environment__agent=turn.agent) | Exists(asked)
    return TaskSet.objects.filter(its, turn.has("created_at"), project=turn.agent.project_id)


def _evals(turn: Turn) -> QuerySet[EvalRun]:
    return EvalRun.objects.filter(turn.has("created_at"), project=turn.agent.project_id, version__agent=turn.agent)


def _runs(turn: Turn) -> QuerySet[TrainingRun]:
    return TrainingRun.objects.filter(turn.has("created_at"), project=turn.agent.project_id, base__agent=turn.agent)


def _comparisons(turn: Turn) -> QuerySet[Candidate]:
    return Candidate.objects.filter(turn.has("created_at"), agent=turn.agent)


def _ramps(turn: Turn) -> QuerySet[Ramp]:
    return Ramp.objects.filter(turn.has("created_at"), agent=turn.agent)


def _moves(turn: Turn) -> QuerySet[Promotion]:
    return turn.moves


STATIONS: Final = {
    station.key: station
    for station in (
        Station("trajectories", "Trajectories in", KINDS["trajectory"], _trajectories),
        Station("failures", "Failures confirmed", replace(KINDS["failure"], keys=("labelled_at", "id")), _failures),
        Station("came_back", "Categories that came back", KINDS["recurrence"], came_back),
        Station("tasks", "Tasks made", KINDS["task"], _tasks),
        Station("task_sets", "Task sets frozen", KINDS["task_set"], _task_sets),
        Station("evals", "Evals", KINDS["eval_run"], _evals),
        Station("runs", "Training runs", KINDS["training_run"], _runs),
        Station("comparisons", "Comparisons", KINDS["candidate"], _comparisons),
        Station("ramps", "Ramps", KINDS["ramp"], _ramps),
        Station("moves", "Moves of the live version", KINDS["promotion"], _moves),
    )
}
"""In the order of the wheel."""


def station_of(key: str) -> Station:
    """Raises Missing."""
    if key not in STATIONS:
        raise Missing(f"a turn has no {key[:40]!r}; use one of {', '.join(STATIONS)}")
    return STATIONS[key]
