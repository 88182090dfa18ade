"""What is made in this room: an environment and its versions, a task of a failure, a frozen task set."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from flywheel.accounts import upstream
from flywheel.accounts.models import Permission, Project, User, record
from flywheel.agents.models import Agent
from flywheel.core import envs, tools, verifiers
from flywheel.core.contamination import Item, duplicates, item_of_task
from flywheel.core.digests import digest
from flywheel.core.envs.kinds import KINDS, check_new
from flywheel.core.stats import PERMUTE_BELOW
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import Conversation, Message, Trace, speaking
from flywheel.core.verifiers.rubric import KIND as RUBRIC
from flywheel.environments import judges, ledger
from flywheel.environments.attempts import attempt_of
from flywheel.environments.models import (
    MEASURED,
    Environment,
    EnvironmentVersion,
    Split,
    Task,
    TaskSet,
    TaskSetMember,
)
from flywheel.environments.prove import begun, common_wrong, is_stale, prove_again
from flywheel.environments.proving import ask, is_for_a_worker, prove_all_again
from flywheel.environments.split import split_in
from flywheel.failures.models import Failure
from flywheel.trajectories.load import trace_of

NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
SEALED_SOURCES = PERMUTE_BELOW
"""Of a set's sealed part at least: with fewer no gain reaches the error that a first opening may spend."""


class CannotMake(ValueError):
    """It cannot be made; the message says what is missing and where to add it."""


@transaction.atomic
def environment(
    *,
    project: Project,
    name: str,
    actor: User,
    config: dict[str, Any],
    verifier: dict[str, Any],
    kind: str = "tool_call",
    agent: Agent | None = None,
    held_out_share: float = 0.4,
    sealed_share: float = 0,
    reserved_slices: Sequence[str] = (),
    description: str = "",
    through: str = "",
) -> Environment:
    """A new environment with its first version. Raises CannotMake and core.verifiers.VerifierError.

    `sealed_share` is a part of the held-out share. The shares and the reserved slices never change: a split that moved
    later would leak.
    """
    check_name(name)
    _check_may_attach(project, kind, actor)
    if kind not in KINDS:
        raise CannotMake(f"kind: {kind!r} is unknown, one of {', '.join(KINDS)} is wanted")
    if not 0 < held_out_share <= 1:
        raise CannotMake(f"held_out_share: {held_out_share} is not between 0 and 1")
    if not 0 <= sealed_share < held_out_share:
        raise CannotMake(f"sealed_share: {sealed_share} is not from 0 to below the held-out share, {held_out_share}")
    if sealed_share and held_out_share == 1:
        raise CannotMake("sealed_share: leave it out where everything is held out, for suites would miss those tasks")
    made, is_new = Environment.objects.get_or_create(
        project=project,
        name=name,
        defaults={
            "kind": kind,
            "agent": agent,
            "held_out_share": held_out_share,
            "sealed_share": sealed_share,
            "reserved_slices": sorted({slice_.strip() for slice_ in reserved_slices if slice_.strip()}),
            "description": description,
        },
    )
    if not is_new:
        raise CannotMake(f"name: there is an environment {name!r} already")
    record(project=project, actor=actor, action="environments.create", subject=name, through=through)
    environment_version(environment=made, actor=actor, config=config, verifier=verifier, through=through)
    return made


@transaction.atomic
def environment_version(
    *, environment: Environment, actor: User, config: dict[str, Any], verifier: dict[str, Any], through: str = ""
) -> EnvironmentVersion:
    """The environment's version with this content: its newest when nothing changed, else the next number; that too
    where the code that judges has changed since (`core.verifiers.REVISION`), for its scores are another verifier's.

    Proofs that its tasks have are made again under the new version, by a worker where they are many. Raises
    core.verifiers.VerifierError for settings that are wrong.
    """
    _check_may_attach(environment.project, environment.kind, actor)
    _check_config(environment, config)
    check_verifier(environment, config, verifier)
    Environment.objects.select_for_update(no_key=True).get(pk=environment.pk)
    content = digest({"kind": environment.kind, "config": config, "verifier": verifier})
    newest = environment.versions.order_by("-number").first()
    judged_by = verifiers.digest(verifier)
    if newest and (newest.digest, newest.verifier_digest) == (content, judged_by):
        return newest
    made = EnvironmentVersion.objects.create(
        environment=environment,
        number=newest.number + 1 if newest else 1,
        config=config,
        verifier=verifier,
        digest=content,
        verifier_digest=judged_by,
        created_by=actor,
    )
    prove_all_again(environment, made, actor)
    record(project=environment.project, actor=actor, action="environments.version", subject=made, through=through)
    return made


@transaction.atomic
def task_from(
    *, failure: Failure, environment: Environment, actor: User, through: str = "", proves: bool = True
) -> tuple[Task, bool]:
    """Make a labelled trajectory a task, with its red-green proof. Returns the task and whether it is new.

    A failure needs its corrected action, which becomes the target; a trajectory that passes guards its own answer.
    Another target for the same trajectory retires the task that it had. Whoever makes many `proves` none here, and all
    together afterwards (`prove_made`). Raises CannotMake.
    """
    if not KINDS[environment.kind].from_failures:
        raise CannotMake(f"{environment} makes its own tasks; those of kind {environment.kind} are generated")
    source, attempt = failure.trajectory, attempt_of(failure.trajectory)
    if attempt.is_measured:  # in a task of another source it would be learnt
        raise CannotMake("this is an attempt at a task that is not trained on; make tasks of what an agent did in use")
    trace = trace_of(source)
    prompt = _prompt(trace)
    before, answer = _recorded(trace, failure)
    _refuse_middle(before)
    target = _target(failure, answer)
    state = source.metadata.get("state") or {}
    if not isinstance(state, dict):
        raise CannotMake(f"the state of {source} is not an object of lists, so nothing can be executed against it")
    slice_ = str(source.metadata.get("slice", ""))[:100]
    Environment.objects.select_for_update(no_key=True).get(pk=environment.pk)
    content = digest({"prompt": prompt, "state": state, "target": target})
    if existing := environment.tasks.filter(digest=content).first():
        return _again(existing, failure), False
    version = latest(environment)
    task = Task(
        project=environment.project,
        environment=environment,
        number=next_number(environment),
        prompt=prompt,
        state=state,
        target=target,
        cluster=source.cluster,
        slice=slice_,
        split=split_in(environment, cluster=source.cluster, slice=slice_),
        failure=failure,
        bucket=failure.bucket,
        source=source,
        is_synthetic=attempt.is_synthetic,
        digest=content,
        created_by=actor,
    )
    task.proof = begun(answer, failure.is_failure)
    environment.tasks.filter(source=source, retired_at=None).update(retired_at=timezone.now())
    task.save()
    if is_for_a_worker(version):
        ask(environment, actor)
    elif proves:
        prove_made(environment, [task])
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


def prove_made(environment: Environment, tasks: Sequence[Task]) -> None:
    """Prove tasks that have just been made, unless a worker does. Their own answers count as commonly wrong, too."""
    version = latest(environment)
    if not tasks or is_for_a_worker(version):
        return
    common = common_wrong(environment, version)
    for task in tasks:
        prove_again(task, version, common=common)


def _check_config(environment: Environment, config: dict[str, Any]) -> None:
    """Raise core.verifiers.VerifierError for settings that no new version may have; what the newest has stays."""
    if environment.versions.order_by("-number").values_list("config", flat=True).first() != config:
        check_new(environment.kind, config)


def check_verifier(environment: Environment, config: dict[str, Any], verifier: dict[str, Any]) -> None:
    """Raise core.verifiers.VerifierError for what no version of this environment can have."""
    if verifier.get("kind", environment.kind) not in (environment.kind, RUBRIC):
        raise verifiers.VerifierError(f"kind: {verifier['kind']!r} is neither {environment.kind} nor {RUBRIC}")
    envs.build(environment.kind, config, verifier)
    if KINDS[environment.kind].is_external:
        try:
            upstream.check(config["base_url"], "")
        except upstream.BadUpstream as error:
            raise verifiers.VerifierError(f"{error.field}: {error}") from None
    judges.check(environment.project, verifier)


def _check_may_attach(project: Project, kind: str, actor: User) -> None:
    """Raise PermissionDenied for one who may not say to whose server this installation talks."""
    if kind in KINDS and KINDS[kind].is_external and not may_attach(project, actor):
        raise PermissionDenied("only an admin attaches a server, or changes how one is attached")


def may_attach(project: Project, actor: User) -> bool:
    known = actor.project(project.slug)
    return known is not None and Permission.ADMIN in known[1]


def next_number(environment: Environment) -> int:
    """Of its next task; hold the environment's row."""
    return int(environment.tasks.aggregate(last=Max("number"))["last"] or 0) + 1


@transaction.atomic
def freeze(
    *, environment: Environment, name: str, actor: User, tasks: Sequence[Task] | None = None, through: str = ""
) -> TaskSet:
    """Freeze proved tasks (all of them unless some are given) as the next version of a set, each request once.

    The newest version is returned when it has the same content. Raises CannotMake when there is nothing to freeze, or a
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
        raise CannotMake(
            f"{waiting[0]} is sealed, and fewer than {SEALED_SOURCES} sealed sources show nothing: leave it out"
        )
    is_measured = all(task.split in MEASURED for task in usable) and (tasks or environment.held_out_share == 1)
    is_external = KINDS[environment.kind].is_external
    wanted = (Split.HELD_OUT,) if is_external or is_measured else (Split.TRAIN, Split.HELD_OUT)
    for split in wanted:
        if split not in placed.values():
            more = "import some" if len(wanted) == 1 else "make tasks of failures from more sessions"
            raise CannotMake(f"no proved {split.label.lower()} task: {more} first")
    refuse_overlap([*placed, *waiting])
    refuse_contradiction(list(placed))
    members = sorted([task.digest, split.value, task.cluster] for task, split in placed.items())
    content = digest({"environment": version.digest, "tasks": members})
    newest = environment.project.task_sets.filter(name=name).order_by("-version").first()
    if newest and newest.environment_version.environment_id != environment.pk:
        raise CannotMake(f"name: {name!r} is a task set of {newest.environment_version.environment}; choose another")
    if newest and newest.digest == content and newest.environment_version == version:
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
        [TaskSetMember(task_set=task_set, task=task, split=split) for task, split in placed.items()]
    )
    record(
        project=environment.project,
        actor=actor,
        action="environments.freeze",
        subject=task_set,
        through=through,
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
    """Raise CannotMake when a cluster or a (normalised) prompt is trained on and measured.

    Generated requests repeat in other worlds and want something else there: of those it is prompt and target together.
    """
    readings: dict[str, Callable[[Task], str]] = {"cluster": lambda task: task.cluster, "prompt": _asked}
    for what, read in readings.items():
        train = {read(task): task for task in tasks if task.split == Split.TRAIN}
        for task in tasks:
            if task.split in MEASURED and (other := train.get(read(task))):
                both = f"{task} ({task.get_split_display()}) and {other} (train)"
                raise CannotMake(f"{both} have the same {what}, {read(task)[:80]!r}; retire one of them")


def _asked(task: Task) -> str:
    prompt = normalise(task.prompt)
    return f"{prompt} {digest(task.target)}" if task.is_synthetic else prompt


def refuse_contradiction(tasks: Sequence[Task]) -> None:
    """Raise CannotMake when two tasks ask the same in the same state and want different things."""
    asked: dict[str, Task] = {}
    for task in tasks:
        other = asked.setdefault(digest({"prompt": task.prompt, "state": task.state}), task)
        if other.target != task.target:
            raise CannotMake(f"{other} and {task} ask the same and want different calls; retire one of them")


def check_name(name: str) -> None:
    """Raise CannotMake for a name that cannot stand in an address."""
    if not NAME.fullmatch(name) or len(name) > 100:
        raise CannotMake(f"name: {name[:100]!r} is not of the form mail-requests (small letters, digits, - and _)")


def core_task(task: Task) -> envs.Task:
    """The task as environments and trainers see it."""
    return envs.Task(
        id=str(task),
        prompt=task.prompt,
        target=task.target,
        state=task.state,
        cluster=task.cluster,
        slice=task.slice,
        synthetic=task.is_synthetic,
    )


def latest(environment: Environment) -> EnvironmentVersion:
    """Its newest version. Raises CannotMake where there is none."""
    version = environment.versions.order_by("-number").select_related("environment").first()
    if version is None:
        raise CannotMake(f"{environment} has no version yet: give it tools and a verifier first")
    return version


def _usable(environment: Environment, version: EnvironmentVersion, tasks: Sequence[Task] | None) -> list[Task]:
    """The tasks that may stand in a set, proved under this very version."""
    if tasks is not None and any(task.environment_id != environment.pk for task in tasks):
        raise CannotMake(f"tasks: all of them must be of {environment}")
    chosen = list(tasks) if tasks is not None else list(environment.tasks.order_by("number"))
    stale = [task for task in chosen if is_stale(task, version) and task.retired_at is None]
    if stale and is_for_a_worker(version, len(stale)):
        raise CannotMake(
            f"{len(stale)} tasks wait for a worker to prove them under {version}; freeze when that is done"
        )
    common = common_wrong(environment, version) if stale else None
    for task in stale:
        prove_again(task, version, common=common)
    return [task for task in chosen if task.is_proved and task.retired_at is None and task.split != Split.SET_ASIDE]


def _again(task: Task, failure: Failure) -> Task:
    """A task that is there already. Who comes back to an earlier correction gets its task back."""
    if failure.pk != task.failure_id:
        task.also.add(failure)
    if task.retired_at is None:
        return task
    if task.source_id != failure.trajectory_id:
        raise CannotMake(f"this would be {task} again, and {task} was retired")
    task.environment.tasks.filter(source=task.source_id, retired_at=None).update(retired_at=timezone.now())
    task.retired_at = None
    task.save(update_fields=["retired_at"])
    return task


def _prompt(trace: Trace) -> str:
    """What the user asked. A kind with one turn has room for one request."""
    asked = [message.content for message in trace.conversation() if message.role == "user" and message.content.strip()]
    if not asked:
        raise CannotMake("this trajectory has no request by a user to make a task of")
    if len(asked) > 1:
        raise CannotMake(f"this trajectory has {len(asked)} requests; a task of kind tool_call has one")
    return asked[0]


def _recorded(trace: Trace, failure: Failure) -> tuple[list[Message], Message | None]:
    """What had been said, and what the agent then did: at the step that the reviewer marked (a tool's execution is of
    the call before it), else in the end."""
    talk = Conversation()
    for step in speaking(trace.steps):
        talk.add(step)
        if step.span_id == failure.step and any(message.role == "assistant" for message in talk.messages):
            break
    spoken = [place for place, message in enumerate(talk.messages) if message.role == "assistant"]
    return (talk.messages[: spoken[-1]], talk.messages[spoken[-1]]) if spoken else (talk.messages, None)


def _refuse_middle(before: Sequence[Message]) -> None:
    """Raise CannotMake where the agent had called something by then: a task of one turn cannot tell what came back, so
    it would teach to know at once what had to be found out first, and to make up the ids in it."""
    acted = next((message for message in before if _called(message)), None)
    if acted is not None:
        raise CannotMake(
            f"the agent had called {_called(acted)[:100]} by then, and a task of kind tool_call, which begins with the "
            "request, cannot tell what came back; mark the step that answers the request, if that is what went wrong"
        )


def _called(message: Message) -> str:
    """The tool that a message of the agent calls, or that answers in it; empty for plain words."""
    if message.role == "tool":
        return message.name or "a tool"
    call = message.tool_calls[0] if message.tool_calls else tools.parse_call(message).call
    return (call.name or "a tool") if call and message.role == "assistant" else ""


def _target(failure: Failure, recorded: Message | None) -> dict[str, Any]:
    if failure.is_failure:
        if not failure.corrected:
            raise CannotMake("this failure has no corrected action: write what should have happened (key c) first")
        if "tool" not in failure.corrected:
            raise CannotMake("the corrected action is a text; this environment wants a tool call")
        return dict(failure.corrected)
    parsed = tools.parse_call(recorded)
    if parsed.call is None:
        raise CannotMake(f"the passing answer is no tool call: {parsed.problem}")
    return {"tool": parsed.call.name, "arguments": parsed.call.arguments}
