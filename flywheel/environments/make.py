"""A failure's way to a task, a version of an environment, a frozen task set."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import Max

from flywheel.accounts.models import User, record
from flywheel.core import envs, tools, verifiers
from flywheel.core.digests import digest
from flywheel.core.traces import Message
from flywheel.environments.models import Environment, EnvironmentVersion, Split, Task, TaskSet, TaskSetMember
from flywheel.environments.prove import prove
from flywheel.environments.split import split_of
from flywheel.failures.models import Failure
from flywheel.trajectories.load import trace_of


class CannotMake(ValueError):
    """It cannot be made; the message says what is missing and where to add it."""


@transaction.atomic
def environment_version(
    *, environment: Environment, actor: User, config: dict[str, Any], verifier: dict[str, Any]
) -> EnvironmentVersion:
    """The environment's version with this content: its newest when nothing changed, else the next number.

    Raises core.verifiers.VerifierError for settings that are wrong.
    """
    envs.build(environment.kind, config, verifier)
    Environment.objects.select_for_update().get(pk=environment.pk)
    content = digest({"kind": environment.kind, "config": config, "verifier": verifier})
    newest = environment.versions.order_by("-number").first()
    if newest and newest.digest == content:
        return newest
    made = EnvironmentVersion.objects.create(
        environment=environment,
        number=newest.number + 1 if newest else 1,
        config=config,
        verifier=verifier,
        digest=content,
        verifier_digest=verifiers.digest(verifier),
        created_by=actor,
    )
    record(project=environment.project, actor=actor, action="environments.version", subject=made)
    return made


@transaction.atomic
def task_from(*, failure: Failure, environment: Environment, actor: User, through: str = "") -> tuple[Task, bool]:
    """Make a labelled trajectory a task, with its red-green proof. Returns the task and whether it is new.

    A failure needs its corrected action, which becomes the target; a trajectory that passes guards its own answer.
    Raises CannotMake.
    """
    source = failure.trajectory
    trace = trace_of(source)
    messages = trace.conversation()
    prompt = next((message.content for message in messages if message.role == "user"), "")
    if not prompt:
        raise CannotMake(f"{source} has no request by a user to make a task of")
    target = _target(failure, trace.final())
    state = source.metadata.get("state") or {}
    slice_ = str(source.metadata.get("slice", ""))
    Environment.objects.select_for_update().get(pk=environment.pk)
    content = digest({"prompt": prompt, "state": state, "target": target})
    if existing := environment.tasks.filter(digest=content).first():
        return existing, False
    version = environment.latest
    task = Task(
        project=environment.project,
        environment=environment,
        number=(environment.tasks.aggregate(last=Max("number"))["last"] or 0) + 1,
        prompt=prompt,
        state=state,
        target=target,
        cluster=source.cluster,
        slice=slice_,
        split=split_of(
            cluster=source.cluster,
            slice=slice_,
            salt=f"{environment.project.slug}/{environment.name}",
            held_out_share=environment.held_out_share,
            reserved_slices=environment.reserved_slices,
        ),
        failure=failure,
        bucket=failure.bucket,
        source=source,
        digest=content,
        created_by=actor,
    )
    task.proof, task.is_proved = prove(task, version, recorded=trace.final(), is_failure=failure.is_failure)
    task.save()
    record(
        project=environment.project,
        actor=actor,
        action="environments.make_task",
        subject=f"{environment.name}/{task}",
        through=through,
        failure=failure.pk,
        split=task.split,
    )
    return task, True


@transaction.atomic
def freeze(
    *, environment: Environment, name: str, actor: User, tasks: Sequence[Task] | None = None, through: str = ""
) -> TaskSet:
    """Freeze proved tasks (all of them unless some are given) as the next version of a set.

    The newest version is returned when it has the same content. Raises CannotMake when there is nothing to freeze, or a
    cluster or a prompt would stand in both splits.
    """
    version = environment.latest
    chosen = [
        task
        for task in (tasks if tasks is not None else environment.tasks.order_by("number"))
        if task.is_proved and task.retired_at is None and task.split != Split.SET_ASIDE
    ]
    for split in (Split.TRAIN, Split.HELD_OUT):
        if not any(task.split == split for task in chosen):
            raise CannotMake(f"no proved {split.label} task: make tasks of failures from more sessions first")
    refuse_overlap(chosen)
    Environment.objects.select_for_update().get(pk=environment.pk)
    content = digest(
        {"environment": version.digest, "tasks": sorted([task.digest, task.split, task.cluster] for task in chosen)}
    )
    newest = environment.project.task_sets.filter(name=name).order_by("-version").first()
    if newest and newest.digest == content:
        return newest
    task_set = TaskSet.objects.create(
        project=environment.project,
        environment_version=version,
        name=name,
        version=newest.version + 1 if newest else 1,
        digest=content,
        created_by=actor,
    )
    TaskSetMember.objects.bulk_create(
        [TaskSetMember(task_set=task_set, task=task, split=task.split) for task in chosen]
    )
    record(
        project=environment.project,
        actor=actor,
        action="environments.freeze",
        subject=task_set,
        through=through,
        train=sum(task.split == Split.TRAIN for task in chosen),
        held_out=sum(task.split == Split.HELD_OUT for task in chosen),
    )
    return task_set


def refuse_overlap(tasks: Sequence[Task]) -> None:
    """Raise CannotMake when a cluster or a (normalised) prompt stands in both splits."""
    for what, read in (("cluster", lambda t: t.cluster), ("prompt", lambda t: " ".join(t.prompt.lower().split()))):
        train = {read(task) for task in tasks if task.split == Split.TRAIN}
        for task in tasks:
            if task.split == Split.HELD_OUT and read(task) in train:
                raise CannotMake(f"{task}: its {what} {read(task)[:80]!r} is also trained on; retire one of the two")


def core_task(task: Task) -> envs.Task:
    """The task as environments and trainers see it."""
    return envs.Task(
        id=str(task), prompt=task.prompt, target=task.target, state=task.state, cluster=task.cluster, slice=task.slice
    )


def _target(failure: Failure, final: Message | None) -> dict[str, Any]:
    if failure.is_failure:
        if not failure.corrected:
            raise CannotMake("this failure has no corrected action: write what should have happened (key c) first")
        if "tool" not in failure.corrected:
            raise CannotMake("the corrected action is a text; this environment wants a tool call")
        return dict(failure.corrected)
    parsed = tools.parse_call(final)
    if parsed.call is None:
        raise CannotMake(f"the passing answer is no tool call: {parsed.problem}")
    return {"tool": parsed.call.name, "arguments": parsed.call.arguments}
