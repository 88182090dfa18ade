"""Build a dataset: immutable rows from the train split of one task set, named by their content.

Demonstrations come from corrected failures and from passing rollouts (rejection sampling), pairs from a right and a
wrong answer to the same task, practice tasks are the tasks themselves. Held-out tasks are nowhere near: rows are made
from members of the train split only, and the set is checked for clusters and prompts that straddle first of all.

`draft` makes the rows and writes nothing, `build` keeps them, `open_rows` gives them back.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import Max

from flywheel.accounts.models import Project, User, record
from flywheel.core import digests, envs
from flywheel.core.traces import Message
from flywheel.environments.make import CannotMake, check_name, core_task, refuse_overlap
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.jobs import State
from flywheel.training.models import Dataset
from flywheel.trajectories.load import traces_of

MAX_PER_TASK = 4
"""Rows that one task may give beside its corrected answer, so that an easy task does not drown the others."""

Attempts = dict[int, list[tuple[bool, Message]]]
"""Scored attempts per task, as (passed, last agent message)."""


class CannotBuild(ValueError):
    """There is nothing to build from, or it cannot be kept; `field` says where, the message what to do first."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Draft:
    """The rows that a dataset would have."""

    kind: str
    task_set: TaskSet
    rows: list[dict[str, Any]]
    recipe: dict[str, Any]
    """What they come from: `{"tasks", "from_failures", "from_rollouts", "eval_run"}`, counted in tasks and rows."""

    @property
    def content(self) -> bytes:
        return "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in self.rows).encode()


def draft(*, kind: str, task_set: TaskSet, rollouts: EvalRun | None = None) -> Draft:
    """The rows of a kind that a task set gives now. Raises CannotBuild.

    `rollouts` is a finished eval run on the train split of the same set, whose passing (and for pairs failing) attempts
    are used beside the corrected answers.
    """
    if kind not in MAKERS:
        raise CannotBuild("kind", f"{kind!r} is unknown, one of {', '.join(MAKERS)} is wanted")
    if rollouts is not None:
        _check_rollouts(rollouts, task_set)
    members = list(task_set.members.select_related("task__source", "task__failure").order_by("task__number"))
    try:
        refuse_overlap([member.task for member in members])
    except CannotMake as error:
        raise CannotBuild("task_set", str(error)) from error
    tasks = [member.task for member in members if member.split == Split.TRAIN]
    version = task_set.environment_version
    env = envs.build(version.environment.kind, version.config, version.verifier)
    rows = list(MAKERS[kind](env, tasks, _attempts(rollouts)))
    if not rows:
        raise CannotBuild(
            "task_set",
            f"{task_set} gives no {Dataset.Kind(kind).label}: label failures, or evaluate on its train tasks",
        )
    return Draft(kind, task_set, rows, _recipe(tasks, rows, rollouts))


def build(
    *, name: str, kind: str, task_set: TaskSet, actor: User, rollouts: EvalRun | None = None, through: str = ""
) -> Dataset:
    """Build a dataset of a kind, or return the existing one with the same rows. Raises CannotBuild."""
    try:
        check_name(name)
    except CannotMake as error:
        raise CannotBuild("name", str(error).removeprefix("name: ")) from error
    return _keep(name, draft(kind=kind, task_set=task_set, rollouts=rollouts), actor, through)


def open_rows(dataset: Dataset) -> IO[bytes]:
    """The file of a dataset, a row a line. Raises FileNotFoundError when the storage has lost it."""
    return cast(IO[bytes], default_storage.open(dataset.file))


def _check_rollouts(rollouts: EvalRun, task_set: TaskSet) -> None:
    if rollouts.task_set_id != task_set.pk or rollouts.split != Split.TRAIN:
        raise CannotBuild("rollouts", f"{rollouts} is not a run on the train split of {task_set}")
    if rollouts.state != State.SUCCEEDED:
        raise CannotBuild("rollouts", f"{rollouts} is {rollouts.state}; its attempts can be used once it has succeeded")


def _demonstrations(env: envs.Environment, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    for task in tasks:
        pure = core_task(task)
        right = [
            _kept_success(task) or env.gold(pure),
            *(answer for passed, answer in attempts.get(task.pk, []) if passed),
        ]
        for number, answer in enumerate(_distinct(right)[: MAX_PER_TASK + 1]):
            yield {
                "task_id": str(task),
                "cluster": task.cluster,
                "origin": "rollout" if number else "corrected" if task.bucket else "success",
                "prompt": [message.to_openai() for message in env.reset(pure, 0)],
                "completion": [answer.to_openai()],
            }


def _kept_success(task: Task) -> Message | None:
    """What the agent said when it was right, word for word, for a task that guards a success."""
    recorded = task.proof.get("recorded")
    return Message.from_json(recorded) if recorded and not task.bucket and task.is_proved else None


def _pairs(env: envs.Environment, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    recorded = traces_of([task.source for task in tasks if task.source and task.bucket])
    for task in tasks:
        pure = core_task(task)
        right = env.gold(pure)
        trace = recorded.get(task.source_id or 0)
        answer = trace.final() if trace else None
        wrong = [(answer, "failure")] if answer else []
        wrong += [(answer, "rollout") for passed, answer in attempts.get(task.pk, []) if not passed]
        origins = {_said(answer): origin for answer, origin in reversed(wrong)}
        different = [answer for answer in _distinct([answer for answer, _ in wrong]) if _said(answer) != _said(right)]
        for answer in [answer for answer in different if answer.content][: MAX_PER_TASK + 1]:
            yield {
                "task_id": str(task),
                "cluster": task.cluster,
                "origin": origins[_said(answer)],
                "prompt": [message.to_openai() for message in env.reset(pure, 0)],
                "chosen": [right.to_openai()],
                "rejected": [answer.to_openai()],
            }


def _tasks(env: envs.Environment, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield core_task(task).to_json()


MAKERS = {"sft": _demonstrations, "pairs": _pairs, "tasks": _tasks}


def _attempts(rollouts: EvalRun | None) -> Attempts:
    """Unscored attempts teach nothing and are left out."""
    if rollouts is None:
        return {}
    results = list(rollouts.results.exclude(success=None).select_related("trajectory").order_by("task_id", "sample"))
    traces = traces_of([result.trajectory for result in results if result.trajectory])
    found: Attempts = {}
    for result in results:
        trace = traces.get(result.trajectory_id or 0)
        answer = trace.final() if trace else None
        if answer is not None:
            found.setdefault(result.task_id, []).append((bool(result.success), answer))
    return found


def _distinct(answers: list[Message]) -> list[Message]:
    """Each answer once, where it came first."""
    found: dict[str, Message] = {}
    for answer in answers:
        found.setdefault(_said(answer), answer)
    return list(found.values())


def _said(answer: Message) -> str:
    """What makes two answers one: their words and calls. The ids that an engine gave its calls do not count."""
    calls = [[call.name, call.arguments] for call in answer.tool_calls]
    return digests.canonical([answer.content, calls]).decode()


def _recipe(tasks: list[Task], rows: list[dict[str, Any]], rollouts: EvalRun | None) -> dict[str, Any]:
    return {
        "tasks": len(tasks),
        "from_failures": sum(bool(task.bucket) for task in tasks),
        "from_rollouts": sum(row.get("origin") == "rollout" for row in rows),
        "eval_run": rollouts.pk if rollouts else None,
    }


@transaction.atomic
def _keep(name: str, made: Draft, actor: User, through: str) -> Dataset:
    content = made.content
    digest = hashlib.sha256(content).hexdigest()
    project = Project.objects.select_for_update(no_key=True).get(pk=made.task_set.project_id)
    file = f"datasets/{digest[:2]}/{digest}.jsonl"
    _store(file, content, digest)
    existing = project.datasets.filter(name=name, digest=digest, task_set=made.task_set, kind=made.kind).first()
    if existing:
        return existing
    dataset = Dataset.objects.create(
        project=project,
        name=name,
        version=(project.datasets.filter(name=name).aggregate(last=Max("version"))["last"] or 0) + 1,
        kind=made.kind,
        task_set=made.task_set,
        digest=digest,
        rows=len(made.rows),
        recipe=made.recipe,
        file=file,
        created_by=actor,
    )
    record(
        project=project,
        actor=actor,
        action="training.dataset",
        subject=dataset,
        through=through,
        rows=len(made.rows),
        kind=made.kind,
    )
    return dataset


def _store(file: str, content: bytes, digest: str) -> None:
    """Write the file unless it is there whole; a crash may have left half of it. Raises CannotBuild."""
    try:
        if default_storage.exists(file):
            with default_storage.open(file) as stored:
                if hashlib.sha256(stored.read()).hexdigest() == digest:
                    return
            default_storage.delete(file)
        default_storage.save(file, ContentFile(content))
    except OSError as error:
        raise CannotBuild("dataset", f"its rows cannot be stored: {error.strerror or error}; make room") from error
