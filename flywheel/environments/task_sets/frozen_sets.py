"""Freezing tasks as a set: which may stand in it, and what no set may hold."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.digests import digest
from flywheel.core.envs.kinds import KINDS
from flywheel.core.evidence.compared_items import Item, item_of_task
from flywheel.core.evidence.contamination import duplicates
from flywheel.core.text.normal_form import normalise
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import MEASURED, Environment, EnvironmentVersion, Split, Task, TaskSet, TaskSetMember
from flywheel.environments.proofs.proof_jobs import is_for_a_worker
from flywheel.environments.proofs.red_green_proof import common_wrong, is_stale, prove_again
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_versions import check_name, latest

SEALED_SOURCES = 10
"""Of a set's sealed part at least: with fewer no gain reaches the error that a first opening may spend."""


@transaction.atomic
def freeze(*, environment: Environment, name: str, actor: Actor, tasks: Sequence[Task] | None = None) -> TaskSet:
    """Freeze proved tasks (all of them unless some are given) as the next version of a set, each request once.

    The newest version is returned when it has the same content. Raises Refused when there is nothing to freeze, or a
    cluster or a prompt would be trained on and measured. A set has train and held-out tasks, unless it was chosen to be
    only measured, as a suite is; a sealed part, where that is large enough to show something.
    """
    check_name(name)
    Project.objects.select_for_update(no_key=True).get(pk=environment.project_id)
    version = latest(environment)
    usable = _usable(environment, version, tasks)
    usable.sort(key=lambda task: task.split == Split.SEALED)  # of two that ask the same the other one stays
    repeated = {usable[again] for again, _ in duplicates([_item(task) for task in usable])}
    placed, waiting = _placed(environment, [task for task in usable if task not in repeated])
    if tasks and waiting:
        raise Refused(
            f"{waiting[0]} is sealed, and fewer than {SEALED_SOURCES} sealed sources show nothing: leave it out"
        )
    is_measured = all(task.split in MEASURED for task in usable) and (tasks or environment.held_out_share == 1)
    is_external = KINDS[environment.kind].is_external
    wanted = (Split.HELD_OUT,) if is_external or is_measured else (Split.TRAIN, Split.HELD_OUT)
    for split in wanted:
        if split not in placed.values():
            more = "import some" if len(wanted) == 1 else "make tasks of failures from more sessions"
            raise Refused(f"no proved {split.label.lower()} task: {more} first")
    refuse_overlap([*placed, *waiting])
    refuse_contradiction(list(placed))
    members = sorted([task.digest, split.value, task.cluster] for task, split in placed.items())
    content = digest({"environment": version.digest, "tasks": members})
    newest = environment.project.task_sets.filter(name=name).order_by("-version").first()
    if newest and newest.environment_version.environment_id != environment.pk:
        raise Refused(
            f"{name!r} is a task set of {newest.environment_version.environment}; choose another", field="name"
        )
    if newest and newest.digest == content and newest.environment_version == version:
        return newest
    task_set = TaskSet.objects.create(
        project=environment.project,
        environment_version=version,
        name=name,
        version=newest.version + 1 if newest else 1,
        digest=content,
        created_by=actor.user,
    )
    TaskSetMember.objects.bulk_create(
        [TaskSetMember(task_set=task_set, task=task, split=split) for task, split in placed.items()]
    )
    actor.record(
        project=environment.project,
        action="environments.freeze",
        subject=task_set,
        train=sum(split == Split.TRAIN for split in placed.values()),
        held_out=sum(split == Split.HELD_OUT for split in placed.values()),
        sealed=sum(split == Split.SEALED for split in placed.values()),
        waiting=len(waiting),
        duplicates=len(repeated),
    )
    return task_set


def _placed(environment: Environment, tasks: Sequence[Task]) -> tuple[dict[Task, Split], list[Task]]:
    """The split that each task has in a set which is frozen now, and the sealed tasks that wait for a later one.

    What was sealed and has been opened is held out from then on. Fewer than SEALED_SOURCES show nothing: they stay
    sealed and out of the set.
    """
    opened = ledger.opened_clusters(environment)
    known = [task for task in tasks if task.split == Split.SEALED and task.cluster in opened]
    for task in known:
        task.split = Split.HELD_OUT
    Task.objects.filter(pk__in=[task.pk for task in known]).update(split=Split.HELD_OUT)
    sealed = [task for task in tasks if task.split == Split.SEALED]
    waiting = sealed if len({task.cluster for task in sealed}) < SEALED_SOURCES else []
    left_out = set(waiting)
    return {task: Split(task.split) for task in tasks if task not in left_out}, waiting


def _item(task: Task) -> Item:
    """As it is compared with its siblings: what is measured and repeats what is trained on, leaks."""
    use = "measured" if task.split in MEASURED else task.split
    return replace(item_of_task(core_task(task)), world=digest([use, task.state, task.target]))


def refuse_overlap(tasks: Sequence[Task]) -> None:
    """Raise Refused when a cluster or a (normalised) prompt is trained on and measured.

    Generated requests repeat in other worlds and want something else there: of those it is prompt and target together.
    """
    readings: dict[str, Callable[[Task], str]] = {"cluster": lambda task: task.cluster, "prompt": _request_key}
    for what, read in readings.items():
        train = {read(task): task for task in tasks if task.split == Split.TRAIN}
        for task in tasks:
            if task.split in MEASURED and (other := train.get(read(task))):
                both = f"{task} ({task.get_split_display()}) and {other} (train)"
                raise Refused(f"{both} have the same {what}, {read(task)[:80]!r}; retire one of them")


def _request_key(task: Task) -> str:
    prompt = normalise(task.prompt)
    return f"{prompt} {digest(task.target)}" if task.is_synthetic else prompt


def refuse_contradiction(tasks: Sequence[Task]) -> None:
    """Raise Refused when two tasks ask the same in the same state and want different things."""
    asked: dict[str, Task] = {}
    for task in tasks:
        other = asked.setdefault(digest({"prompt": task.prompt, "state": task.state}), task)
        if other.target != task.target:
            raise Refused(f"{other} and {task} ask the same and want different calls; retire one of them")


def _usable(environment: Environment, version: EnvironmentVersion, tasks: Sequence[Task] | None) -> list[Task]:
    """The tasks that may stand in a set, proved under this very version."""
    if tasks is not None and any(task.environment_id != environment.pk for task in tasks):
        raise Refused(f"all of them must be of {environment}", field="tasks")
    chosen = list(tasks) if tasks is not None else list(environment.tasks.order_by("number"))
    stale = [task for task in chosen if is_stale(task, version) and task.retired_at is None]
    if stale and is_for_a_worker(version, len(stale)):
        raise Refused(f"{len(stale)} tasks wait for a worker to prove them under {version}; freeze when that is done")
    common = common_wrong(environment, version) if stale else None
    for task in stale:
        prove_again(task, version, common=common)
    return [task for task in chosen if task.is_proved and task.retired_at is None and task.split != Split.SET_ASIDE]
