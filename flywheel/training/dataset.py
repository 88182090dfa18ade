"""Build a dataset: immutable rows from the train split of one task set, named by their content.

Demonstrations come from corrected failures and from passing rollouts (rejection sampling), pairs from a right and a
wrong answer to the same task, practice tasks are the tasks themselves. Held-out tasks are nowhere near: rows are made
from members of the train split only, and the set is checked for clusters and prompts that straddle first of all.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import Max

from flywheel.accounts.models import Project, User, record
from flywheel.core import envs
from flywheel.core.traces import Message
from flywheel.environments.make import core_task, refuse_overlap
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.training.models import Dataset
from flywheel.trajectories.load import traces_of

MAX_PER_TASK = 4
"""Rows that one task may give beside its corrected answer, so that an easy task does not drown the others."""


class CannotBuild(ValueError):
    """There is nothing to build from; the message says what to do first."""


def build(
    *, name: str, kind: str, task_set: TaskSet, actor: User, rollouts: EvalRun | None = None, through: str = ""
) -> Dataset:
    """Build a dataset of a kind, or return the existing one with the same rows.

    `rollouts` is a finished eval run on the train split of the same set, whose passing (and for pairs failing) attempts
    are used beside the corrected answers. Raises CannotBuild.
    """
    members = list(task_set.members.select_related("task__source", "task__failure"))
    refuse_overlap([member.task for member in members])
    if rollouts is not None and (rollouts.task_set_id != task_set.pk or rollouts.split != Split.TRAIN):
        raise CannotBuild(f"rollouts: {rollouts} is not a run on the train split of {task_set}")
    tasks = [member.task for member in members if member.split == Split.TRAIN]
    version = task_set.environment_version
    env = envs.build(version.environment.kind, version.config, version.verifier)
    attempts = _attempts(rollouts)
    maker = {"sft": _demonstrations, "pairs": _pairs, "tasks": _tasks}[kind]
    rows = list(maker(env, tasks, attempts))
    if not rows:
        raise CannotBuild(
            f"{task_set} gives no {Dataset.Kind(kind).label}: label failures, or run the baseline on train"
        )
    content = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows).encode()
    return _keep(name, kind, task_set, actor, content, rows, _recipe(tasks, rows, rollouts), through)


def _demonstrations(
    env: envs.Environment, tasks: list[Task], attempts: dict[int, list[tuple[bool, Message]]]
) -> Iterator[dict[str, Any]]:
    for task in tasks:
        pure = core_task(task)
        right = [env.gold(pure)]
        right += [answer for passed, answer in attempts.get(task.pk, []) if passed]
        for answer, origin in zip(_distinct(right), ["corrected", *["rollout"] * len(right)], strict=False):
            yield {
                "task_id": str(task),
                "cluster": task.cluster,
                "origin": origin,
                "prompt": [message.to_openai() for message in env.reset(pure, 0)],
                "completion": [answer.to_openai()],
            }


def _pairs(
    env: envs.Environment, tasks: list[Task], attempts: dict[int, list[tuple[bool, Message]]]
) -> Iterator[dict[str, Any]]:
    recorded = traces_of([task.source for task in tasks if task.source and task.bucket])
    for task in tasks:
        pure = core_task(task)
        right = env.gold(pure)
        wrong = [answer for passed, answer in attempts.get(task.pk, []) if not passed]
        trace = recorded.get(task.source_id or 0)
        if trace is not None and (answer := trace.final()) is not None:
            wrong.insert(0, answer)
        for answer in [answer for answer in _distinct(wrong) if answer.content and answer != right]:
            yield {
                "task_id": str(task),
                "cluster": task.cluster,
                "prompt": [message.to_openai() for message in env.reset(pure, 0)],
                "chosen": [right.to_openai()],
                "rejected": [answer.to_openai()],
            }


def _tasks(
    env: envs.Environment, tasks: list[Task], attempts: dict[int, list[tuple[bool, Message]]]
) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield core_task(task).to_json()


def _attempts(rollouts: EvalRun | None) -> dict[int, list[tuple[bool, Message]]]:
    """Scored attempts per task, as (passed, last agent message); unscored ones teach nothing."""
    if rollouts is None:
        return {}
    results = list(rollouts.results.exclude(success=None).select_related("trajectory"))
    traces = traces_of([result.trajectory for result in results if result.trajectory])
    found: dict[int, list[tuple[bool, Message]]] = {}
    for result in results:
        trace = traces.get(result.trajectory_id or 0)
        answer = trace.final() if trace else None
        if answer is not None:
            found.setdefault(result.task_id, []).append((bool(result.success), answer))
    return found


def _distinct(answers: list[Message]) -> list[Message]:
    """Each answer once, at most MAX_PER_TASK beside the first."""
    return list({answer.content: answer for answer in reversed(answers)}.values())[::-1][: MAX_PER_TASK + 1]


def _recipe(tasks: list[Task], rows: list[dict[str, Any]], rollouts: EvalRun | None) -> dict[str, Any]:
    return {
        "tasks": len(tasks),
        "from_failures": sum(bool(task.bucket) for task in tasks),
        "from_rollouts": sum(row.get("origin") == "rollout" for row in rows),
        "eval_run": rollouts.pk if rollouts else None,
    }


@transaction.atomic
def _keep(
    name: str,
    kind: str,
    task_set: TaskSet,
    actor: User,
    content: bytes,
    rows: list[dict[str, Any]],
    recipe: dict[str, Any],
    through: str,
) -> Dataset:
    digest = hashlib.sha256(content).hexdigest()
    project = Project.objects.select_for_update().get(pk=task_set.project_id)
    existing = project.datasets.filter(name=name, digest=digest, task_set=task_set, kind=kind).first()
    if existing:
        return existing
    file = f"datasets/{digest[:2]}/{digest}.jsonl"
    if not default_storage.exists(file):
        default_storage.save(file, ContentFile(content))
    dataset = Dataset.objects.create(
        project=project,
        name=name,
        version=(project.datasets.filter(name=name).aggregate(last=Max("version"))["last"] or 0) + 1,
        kind=kind,
        task_set=task_set,
        digest=digest,
        rows=len(rows),
        recipe=recipe,
        file=file,
        created_by=actor,
    )
    record(
        project=project,
        actor=actor,
        action="training.dataset",
        subject=dataset,
        through=through,
        rows=len(rows),
        kind=kind,
    )
    return dataset
