"""Tasks of what happened: of a failure that somebody corrected, or of a success that must stay one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.core import envs
from flywheel.core.digests import digest
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.replay import episode_replay
from flywheel.core.envs.worlds import own_world, recorded_runs
from flywheel.core.envs.worlds.own_world import OwnWorld, world_of
from flywheel.core.traces import Conversation, Message, Trace, corrections, speaking, tooling
from flywheel.core.verifiers import VerifierError
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, EnvironmentVersion, Task
from flywheel.environments.proofs.proof_jobs import ask, is_for_a_worker
from flywheel.environments.proofs.red_green_proof import begun, common_wrong, prove_again
from flywheel.environments.tasks.replay_tasks import Content, content_of, requests_in, wanted_in
from flywheel.environments.tasks.task_attempts import Attempt, attempt_of
from flywheel.environments.tasks.task_rows import next_number
from flywheel.environments.tasks.task_splits import split_in
from flywheel.environments.versions.environment_versions import latest
from flywheel.failures.models import Failure
from flywheel.trajectories.models import Source
from flywheel.trajectories.store.stored_traces import trace_of


@transaction.atomic
def task_from(*, failure: Failure, environment: Environment, actor: Actor, proves: bool = True) -> tuple[Task, bool]:
    """Make a labelled trajectory a task, with its red-green proof. Returns the task and whether it is new.

    A failure needs its corrected action, which becomes the target; a trajectory that passes guards its own answer.
    Another target for the same trajectory retires the task that it had. Whoever makes many `proves` none here, and all
    together afterwards (`prove_made`). Raises Refused.
    """
    if not KINDS[environment.kind].takes_failures:
        raise Refused(f"{environment} makes its own tasks; those of kind {environment.kind} are generated")
    source, attempt = failure.trajectory, _learnable_attempt(failure)
    version = latest(environment)
    made, answer = content_from(failure, environment.kind, world=_world(version))
    slice_ = str(source.metadata.get("slice", ""))[:100]
    Environment.objects.select_for_update(no_key=True).get(pk=environment.pk)
    content = _digest(made)
    if existing := environment.tasks.filter(digest=content).first() or _older(environment, made):
        return _again(existing, failure), False
    task = Task(
        project=environment.project,
        environment=environment,
        number=next_number(environment),
        prompt=made.prompt,
        state=made.state,
        target=made.target,
        cluster=source.cluster,
        slice=slice_,
        split=split_in(environment, cluster=source.cluster, slice=slice_),
        failure=failure,
        bucket=failure.bucket,
        source=source,
        is_synthetic=attempt.is_synthetic,
        digest=content,
        created_by=actor.user,
    )
    task.proof = begun(answer, failure.is_failure)
    environment.tasks.filter(source=source, retired_at=None).update(retired_at=timezone.now())
    task.save()
    if is_for_a_worker(version):
        ask(environment, actor)
    elif proves:
        prove_made(environment, [task])
    actor.record(
        project=environment.project,
        action="environments.make_task",
        subject=f"{environment.name}/{task}",
        failure=failure.pk,
        split=task.split,
    )
    return task, True


def _digest(made: Content) -> str:
    return digest({"prompt": made.prompt, "state": made.state, "target": made.target})


def _older(environment: Environment, made: Content) -> Task | None:
    """The task in use that differs in nothing but that it was made before a user's later turns were kept. It stays,
    with its results and its place in task sets; whoever wants the turns retires it first."""
    if "turns" not in made.state:
        return None
    bare = {name: value for name, value in made.state.items() if name != "turns"}
    return environment.tasks.filter(digest=_digest(replace(made, state=bare)), retired_at=None).first()


def explain_refusal(failure: Failure, kind: str, trace: Trace | None = None) -> str:
    """Explain why no task of this kind can be made of a decision now; empty where one can. `trace` is its trajectory's,
    where that is read already."""
    try:
        _learnable_attempt(failure)
        content_from(failure, kind, trace)
    except Refused as error:
        return str(error)
    return ""


def _learnable_attempt(failure: Failure) -> Attempt:
    if failure.trajectory.source == Source.TRAINING:
        raise Refused("this is an attempt of a policy that was still learning; make tasks of what an agent did in use")
    attempt = attempt_of(failure.trajectory)
    if attempt.is_measured:  # in a task of another source it would be learnt
        raise Refused("this is an attempt at a task that is not trained on; make tasks of what an agent did in use")
    return attempt


def content_from(
    failure: Failure, kind: str, trace: Trace | None = None, world: OwnWorld | None = None
) -> tuple[Content, Message | None]:
    """The content of a decision's task in an environment of this kind, or in this `world`, and the agent's recorded
    answer. Nothing is written. Raises Refused, saying what is missing; what needs no look at the steps comes first."""
    if failure.is_failure and not failure.corrected:
        raise Refused("this failure has no corrected action: write the corrected action (key c) first")
    source = failure.trajectory
    state = source.metadata.get("state") or {}
    if not isinstance(state, dict):
        raise Refused(f"the state of {source} is not an object of lists, so nothing can be executed against it")
    trace = trace or trace_of(source)
    if kind == episode_replay.KIND:
        before, answer = recorded_action(trace, failure)
        return content_of(trace, failure, before, answer, state), answer
    if world is not None:
        before, answer = recorded_action(trace, failure)
        return _content_in(world, failure, before, answer, state), answer
    prompt = _prompt(trace)
    before, answer = recorded_action(trace, failure)
    _refuse_middle(before)
    return Content(prompt, state, _target(failure, answer)), answer


def _world(version: EnvironmentVersion) -> OwnWorld | None:
    """The world that tasks of this version are played in; None for other kinds."""
    kind = version.environment.kind
    return world_of(envs.build(kind, version.config, version.verifier)) if KINDS[kind].is_world else None


def _content_in(
    world: OwnWorld, failure: Failure, before: Sequence[Message], answer: Message | None, state: dict[str, Any]
) -> Content:
    """The task in a team's own world, which begins with the user's request. Raises Refused."""
    begun = [message for message in before if message.role != "system"]
    prompt, *later = requests_in(begun)
    if later:  # an episode of a world has one request, and nobody answers what the agent said in between
        raise Refused(
            f"the user had asked {1 + len(later)} times before the marked step, and a task of a world begins with one "
            "request: mark a step before the second, or make a task of kind Replay of it"
        )
    own = {"state": state} if state else {}
    try:
        target = recorded_runs.target_of(world, begun, wanted_in(failure, answer))
        own_world.check_task(world.tools, own, target, has_state=world.has_state)
    except VerifierError as error:
        raise Refused(str(error)) from None
    return Content(prompt, own, target)


def prove_made(environment: Environment, tasks: Sequence[Task]) -> None:
    """Prove tasks that have just been made, unless a worker does. Their own answers count as commonly wrong, too."""
    version = latest(environment)
    if not tasks or is_for_a_worker(version):
        return
    common = common_wrong(environment, version)
    for task in tasks:
        prove_again(task, version, common=common, is_new=True)


def _again(task: Task, failure: Failure) -> Task:
    """A task that is there already. Who comes back to an earlier correction gets its task back."""
    if failure.pk != task.failure_id:
        task.also.add(failure)
    if task.retired_at is None:
        return task
    if task.source_id != failure.trajectory_id:
        raise Refused(f"this would be {task} again, and {task} was retired")
    task.environment.tasks.filter(source=task.source_id, retired_at=None).update(retired_at=timezone.now())
    task.retired_at = None
    task.save(update_fields=["retired_at"])
    return task


def _prompt(trace: Trace) -> str:
    """Return the user's request. A kind with one turn has room for one."""
    asked = [message.content for message in trace.conversation() if message.role == "user" and message.content.strip()]
    if not asked:
        raise Refused("this trajectory has no user request to make a task from")
    if len(asked) > 1:
        raise Refused(f"this trajectory has {len(asked)} requests; tool_call tasks have one. Use a replay environment")
    return asked[0]


def recorded_action(trace: Trace, failure: Failure) -> tuple[list[Message], Message | None]:
    """Return the conversation and the agent's next action: at the step that the reviewer marked (a tool's execution is
    of the call before it), else in the end."""
    talk = Conversation()
    for step in speaking(trace.steps):
        talk.add(step)
        if step.span_id == failure.step and any(message.role == "assistant" for message in talk.messages):
            break
    spoken = [place for place, message in enumerate(talk.messages) if message.role == "assistant"]
    return (talk.messages[: spoken[-1]], talk.messages[spoken[-1]]) if spoken else (talk.messages, None)


def _refuse_middle(before: Sequence[Message]) -> None:
    """Raise Refused where the agent had called something by then: a task of one turn cannot tell what came back, so
    it would teach to know at once what had to be found out first, and to make up the ids in it."""
    acted = next((message for message in before if _called(message)), None)
    if acted is not None:
        raise Refused(
            f"this failure happens after a call of {_called(acted)[:100]}, and this environment only tests the first "
            f"call; mark the first call if it is wrong, or use a replay environment"
        )


def _called(message: Message) -> str:
    """The tool that a message of the agent calls, or that answers in it; empty for plain words."""
    if message.role == "tool":
        return message.name or "a tool"
    call = message.tool_calls[0] if message.tool_calls else tooling.parse_call(message).call
    return (call.name or "a tool") if call and message.role == "assistant" else ""


def _target(failure: Failure, recorded: Message | None) -> dict[str, Any]:
    if failure.is_failure:
        assert failure.corrected, "content_from looks"
        if "tool" not in failure.corrected:
            form = corrections.form_of(failure.corrected)
            what = {"text": "a text", "calls": "several calls", "refuse": "a refusal", "ask": "a question"}
            one = "one call alone" if form == "calls" else "a tool call"
            raise Refused(f"the corrected action is {what.get(form, 'no call')}; this environment wants {one}")
        return dict(failure.corrected)
    parsed = tooling.parse_call(recorded)
    if parsed.call is None:
        raise Refused(f"the passing answer is no tool call: {parsed.problem}")
    return {"tool": parsed.call.name, "arguments": parsed.call.arguments}
