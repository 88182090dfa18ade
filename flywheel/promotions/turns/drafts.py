"""The draft of the next turn's task set, derived from the failures that were confirmed since the last one.

Nothing of it is stored but the tasks themselves. So it cannot be drafted twice, and whoever is killed in the middle
goes on. It becomes a task set by freezing it: the next version of the set, the older ones stay as they are.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import BooleanField, Case, Exists, Max, OuterRef, Q, QuerySet, Value, When

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent
from flywheel.core.envs.kinds import KINDS
from flywheel.edge.refusals import Missing
from flywheel.environments.models import MEASURED, Environment, Split, Task, TaskSet, TaskSetMember
from flywheel.environments.models.task_sets import TaskSets
from flywheel.environments.proofs.red_green_proof import failed_checks, is_stale
from flywheel.environments.task_sets import frozen_sets, task_selection
from flywheel.environments.tasks.bulk_tasks import Made, taking_failures, tasks_from_all, without_task
from flywheel.environments.versions.environment_versions import latest
from flywheel.failures.models import Failure
from flywheel.promotions.turns.stations import came_back, confirmed
from flywheel.promotions.turns.turn_bounds import Turn, present
from flywheel.training.datasets.measured_tasks import Measured

MEASURED_ELSEWHERE: Final = "another task measures its source or its request, so nothing may learn from it"
SET_ASIDE: Final = "its slice is only measured, and its source is trained on"
TOO_FEW_SEALED: Final = f"sealed, and sets need {frozen_sets.SEALED_SOURCES} sealed sources: it waits for a later set"
UNPROVED: Final = "its proof waits for a worker"


@dataclass(frozen=True, slots=True)
class Draft:
    """Tasks of confirmed failures in one environment, and what becomes of each when the draft is frozen."""

    turn: Turn
    environment: Environment
    tasks: Sequence[Task]
    """What would be frozen."""
    frozen: Sequence[Task]
    """In a task set already."""
    left: dict[Task, str]
    """Left out, and why."""
    failures: QuerySet[Any]
    """Those that were confirmed since the last set, with `is_back`: those of buckets that came back."""
    of: dict[int, Task]
    """By failure its task, those left out too."""

    def counts(self) -> list[tuple[str, int]]:
        """Tasks of the draft by split."""
        found = Counter(task.split for task in self.tasks)
        return [(str(split.label).lower(), found[split]) for split in Split if found[split]]

    def reasons(self) -> list[tuple[str, int]]:
        """Why tasks are left out, the most common first."""
        return Counter(self.left.values()).most_common()

    def shown(self, name: str) -> QuerySet[Any]:
        """The failures behind a number of the draft, by its name in `SHOWN`; all for any other."""
        if name == "uncorrected":
            return self.failures.filter(corrected__isnull=True).exclude(pk__in=self.of)
        if name == "taskless":
            return self.failures.filter(corrected__isnull=False).exclude(pk__in=self.of)
        groups: dict[str, Collection[Task]] = {"in": self.tasks, "frozen": self.frozen, "left": self.left}
        if name not in groups:
            return self.failures
        wanted = set(groups[name])
        return self.failures.filter(pk__in=[pk for pk, task in self.of.items() if task in wanted])


SHOWN: Final = {
    "": "All",
    "in": "In the draft",
    "left": "Left out",
    "frozen": "In a set already",
    "uncorrected": "Without a corrected action",
    "taskless": "Without a task",
}
"""Groups of a draft's failures."""


def environments_of(agent: Agent) -> list[Environment]:
    """Those that a draft can be made in, the most likely one first: the agent's own, by their newest sets."""
    rows = taking_failures(agent.project).filter(Q(agent=agent) | Q(agent=None))
    newest = dict(rows.annotate(newest=Max("versions__task_sets__id")).values_list("pk", "newest"))
    fit = [row for row in rows if KINDS[row.kind].from_failures or row.agent_id]
    return sorted(fit, key=lambda row: (row.agent_id is None, -(newest[row.pk] or 0), row.name))


def environment_of(agent: Agent, name: str = "") -> Environment:
    """The one of this name, or the one most likely meant. Raises Missing."""
    known = environments_of(agent)
    found = next((row for row in known if name in ("", row.name)), None)
    if found is None:
        told = f"no environment {name[:60]!r} takes" if name else "no environment takes"
        raise Missing(f"{told} failures of {agent}; create one that does")
    return found


def draft_of(turn: Turn, environment: Environment) -> Draft:
    """The draft as it is now. The failures by which a bucket came back come first."""
    failures = _back_first(turn)
    keys = _confirmed(turn).values("pk")
    also = Task.also.through.objects.filter(failure__in=keys).values("task")
    rows = environment.tasks.filter(Q(failure__in=keys) | Q(pk__in=also), retired_at=None)
    members = TaskSetMember.objects.filter(task=OuterRef("pk"))
    tasks = list(rows.annotate(is_frozen=Exists(members)).select_related("environment").order_by("number"))
    left = _left_out(environment, [task for task in tasks if not task.is_frozen])
    fit = [task for task in tasks if not task.is_frozen and task not in left]
    return Draft(
        turn,
        environment,
        tasks=fit,
        frozen=[task for task in tasks if task.is_frozen],
        left=left,
        failures=failures,
        of=_by_failure(tasks),
    )


def start(*, agent: Agent, environment: Environment, actor: Actor) -> Made:
    """Make a task of each failure confirmed since the last set that can be one, those of buckets that came back first.
    Again, it goes on where it was."""
    turn = present(agent)
    keys = _confirmed(turn).values("pk")
    failures = _back_first(turn).filter(pk__in=without_task(environment).filter(pk__in=keys).order_by().values("pk"))
    made = tasks_from_all(environment=environment, actor=actor, failures=failures.order_by("-is_back", "pk"))
    if made.made:
        actor.record(
            project=agent.project,
            action="promotions.start_turn",
            subject=turn,
            environment=environment.name,
            tasks=len(made.made),
        )
    return made


def freeze(*, agent: Agent, environment: Environment, name: str, actor: Actor) -> TaskSet:
    """Freeze the draft as the next version of a set, with the tasks in use of the version before. Raises Refused."""
    draft = draft_of(present(agent), environment)
    newest = environment.project.task_sets.filter(name=name).order_by("-version").first()
    before = newest.tasks.filter(environment=environment).values("pk") if newest else []
    wanted = environment.tasks.filter(Q(pk__in=[task.pk for task in draft.tasks]) | Q(pk__in=before))
    tasks = list(task_selection.to_freeze(environment, wanted))
    return frozen_sets.freeze(environment=environment, name=name, actor=actor, tasks=tasks)


def name_of_set(environment: Environment) -> str:
    """The name under which the draft is most likely frozen."""
    newest = _sets_of(environment).usual()
    return newest.name if newest else environment.name


def _sets_of(environment: Environment) -> TaskSets:
    return TaskSet.objects.filter(environment_version__environment=environment)


def last_set(turn: Turn) -> TaskSet | None:
    """The set by which the version was compared that is live since the turn began. What was confirmed after it was
    frozen could not be in it, also while that version was trained and released by steps."""
    candidate = turn.begun_by.candidate if turn.begun_by else None
    return candidate.version_eval.task_set if candidate else None


def _confirmed(turn: Turn) -> QuerySet[Failure]:
    last = last_set(turn)
    return confirmed(turn.agent, Q(labelled_at__gte=last.created_at) if last else Q()).order_by()


def _back_first(turn: Turn) -> QuerySet[Any]:
    back = list(came_back(turn))
    shown = {key for row in back for key in row.trajectories}
    is_back = Q(bucket__in={row.bucket for row in back}) | Q(trajectory__in=shown)
    return _confirmed(turn).annotate(
        is_back=Case(When(is_back, then=Value(True)), default=Value(False), output_field=BooleanField())
    )


def _by_failure(tasks: Sequence[Task]) -> dict[int, Task]:
    by_key = {task.pk: task for task in tasks}
    more = Task.also.through.objects.filter(task__in=by_key).values_list("failure_id", "task_id")
    own = {task.failure_id: task for task in tasks if task.failure_id}
    return {failure: by_key[task] for failure, task in more} | own


def _left_out(environment: Environment, tasks: Sequence[Task]) -> dict[Task, str]:
    version = latest(environment)
    found = {task: reason for task in tasks if (reason := _unfit(task, is_stale(task, version)))}
    fit = [task for task in tasks if task not in found]
    found |= _leaking(environment, fit)
    usual = _sets_of(environment).usual()
    before = usual.tasks.values("pk") if usual else []
    wanted = environment.tasks.filter(Q(pk__in=[task.pk for task in fit]) | Q(pk__in=before))
    ready = task_selection.to_freeze(environment, wanted)
    sealed = {task.pk for task in fit if task.split == Split.SEALED} - set(ready.values_list("pk", flat=True))
    return found | {task: TOO_FEW_SEALED for task in fit if task.pk in sealed and task not in found}


def _unfit(task: Task, waits: bool) -> str:
    if task.split == Split.SET_ASIDE:
        return SET_ASIDE
    if task.is_proved:
        return ""
    names = ", ".join(str(check["name"]) for check in failed_checks(task))
    return UNPROVED if waits or not names else f"its proof failed: {names}"


def _leaking(environment: Environment, tasks: Sequence[Task]) -> dict[Task, str]:
    """Tasks to train on that something measures, and tasks to measure with that something was trained on."""
    learnt = [task for task in tasks if task.split == Split.TRAIN]
    measuring = [task for task in tasks if task.split in MEASURED]
    found = {}
    if learnt:
        measured = Measured(environment.project)
        found = {task: MEASURED_ELSEWHERE for task in learnt if measured.has(task, environment.kind)}
    if measuring:
        trained = _trained_on(environment, measuring)
        for task in measuring:
            if task_set := next((trained[key] for key in _marks(task) if key in trained), ""):
                found[task] = f"its source or its request is trained on in {task_set}, so it can measure nothing"
    return found


def _trained_on(environment: Environment, tasks: Sequence[Task]) -> dict[tuple[str, object], str]:
    """By what tells these tasks, the set in whose train part it is."""
    members = TaskSetMember.objects.filter(task_set__project=environment.project_id, split=Split.TRAIN)
    same = Q(task__cluster__in={task.cluster for task in tasks if task.cluster})
    same |= Q(task__source__in={task.source_id for task in tasks if task.source_id})
    same |= Q(task__prompt__in={task.prompt for task in tasks})
    rows = members.filter(same).select_related("task", "task_set").order_by("pk")
    return {key: str(row.task_set) for row in rows for key in _marks(row.task)}


def _marks(task: Task) -> list[tuple[str, object]]:
    marks = [("cluster", task.cluster), ("source", task.source_id), ("prompt", task.prompt)]
    return [(name, value) for name, value in marks if value]
