"""Playing one episode by hand or with a version: every move of a `Play`.

The environment is pure, so an episode is its messages and nothing else: each move asks it again, and a move is taken
back by cutting messages off. What a version says is asked by a worker (`workers/jobs/playground_moves.py`), which also
judges where the verifier needs more than pure code, and answers where the environment does (`catch_up`).
"""

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.core import envs
from flywheel.core.envs import Environment
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.envs.kinds import KINDS, needs, players
from flywheel.core.envs.policy_rollouts import ChatResponse, broken_off
from flywheel.core.envs.worlds.own_world import world_of
from flywheel.core.envs.worlds.server_world import ServerWorld
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import NO_RUNNERS, Runners, Verdict
from flywheel.edge.jobs import FINISHED
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments import ledger
from flywheel.environments.models import Move, Opening, Play, PlayTurn, Split, Task
from flywheel.environments.tasks.own_tasks import is_draft
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_versions import latest

LONGEST_MOVE = 20_000
"""Characters of a move that a person types."""


@transaction.atomic
def start(*, task: Task, actor: Actor, seed: int = 0) -> Play:
    """Open an episode under the environment's newest version. Raises Refused where there is none, or none to play.

    Who plays a held-out task learns what it is: that is noted with every set it stands in.
    """
    version = latest(task.environment)
    if task.split == Split.SEALED and not is_draft(task):  # whoever wrote it knows it, and says what is right
        raise Refused(f"{task} is sealed: only a candidate's final comparison asks it")
    if KINDS[task.environment.kind].is_external:
        raise Refused(f"{task.environment} is somebody else's server, where only eval runs play")
    env = envs.build(task.environment.kind, version.config, version.verifier)
    opening = [message.to_json() for message in env.reset(core_task(task), seed)]
    play = Play.objects.create(
        project_id=task.project_id,
        task=task,
        environment_version=version,
        seed=seed,
        messages=opening,
        created_by=actor.user,
    )
    if _is_elsewhere(play):
        _submit(play, actor, key=uuid.uuid4())
    if task.split == Split.HELD_OUT:
        for task_set in task.task_sets.all():
            ledger.opened(task_set=task_set, kind=Opening.Kind.PAGE, subject=f"{task} played", actor=actor)
    return play


@transaction.atomic
def say(*, play: Play, message: Message, at: int) -> Play:
    """A person's move, the environment's answer, and the verdict once it is over. `at`: moves there were when the
    person looked, so that a double click is one move. Raises Stale."""
    row = _locked(play, at)
    if row.is_over:
        raise Stale("the episode is over; take the last move back, or play again")
    if not _is_elsewhere(row):
        add(row, message)
    elif unanswered(row):
        raise Stale("the last move was not answered; take it back first")
    else:
        row.messages, row.moves = [*row.messages, message.to_json()], [*row.moves, asdict(Move())]
        row.save(update_fields=["messages", "moves"])
    version = row.environment_version
    if _is_elsewhere(row) or (row.is_over and needs(version.environment.kind, version.config, version.verifier)):
        _submit(row, Actor(row.created_by), key=uuid.uuid4())
    return row


@transaction.atomic
def ask(
    *,
    play: Play,
    version: Version,
    actor: Actor,
    at: int,
    key: uuid.UUID,
    to_the_end: bool = False,
    temperature: float = 0.0,
) -> PlayTurn:
    """Let a version make the next move, or all that are left. The same key again is the same. Raises Stale."""
    if (there := PlayTurn.objects.filter(project=play.project, idempotency_key=key, play=play).first()) is not None:
        return there
    row = _locked(play, at)
    if row.is_over:
        raise Stale("the episode is over; take the last move back, or play again")
    if version.agent.project_id != row.project_id:
        raise Stale(f"{version} is not of this project", field="version")
    return _submit(row, actor, key=key, version=version, to_the_end=to_the_end, temperature=temperature)


@transaction.atomic
def take_back(*, play: Play, at: int) -> Play:
    """Cut the last move off, with what was answered to it. Raises Stale."""
    row = _locked(play, at)
    if not row.moves:
        raise Stale("no move was made yet")
    last = max(number for number, message in enumerate(row.messages) if message["role"] == "assistant")
    row.messages, row.moves = row.messages[:last], row.moves[:-1]
    row.is_over, row.verdict = False, None
    row.save(update_fields=["messages", "moves", "is_over", "verdict"])
    if _is_elsewhere(row):
        _submit(row, Actor(row.created_by), key=uuid.uuid4())
    return row


@transaction.atomic
def have_judged(*, play: Play, actor: Actor, at: int) -> PlayTurn:
    """Let a worker judge an episode that is over and was not, because somebody stopped it or it failed. Raises
    Stale."""
    row = _locked(play, at)
    if not row.is_over or row.verdict is not None:
        raise Stale("the episode is judged already" if row.is_over else "the episode is not over yet")
    return _submit(row, actor, key=uuid.uuid4())


def waiting(play: Play) -> PlayTurn | None:
    """Return the turn that a worker still has to finish in it, if any; no move is made meanwhile."""
    return play.turns.exclude(state__in=FINISHED).first()


def unanswered(play: Play) -> bool:
    """Whether the environment has not answered the last move yet."""
    return not play.is_over and bool(play.moves) and play.messages[-1]["role"] == "assistant"


def hint(play: Play) -> Message | None:
    """Return the next message of a player who does everything right; None where that is not known."""
    env = environment_of(play)
    try:
        return env.solve(core_task(play.task), conversation(play))
    except Exception:  # whatever a strange target brings about: then nobody knows
        return None


def conversation(play: Play) -> list[Message]:
    return [Message.from_json(row) for row in play.messages]


def environment_of(play: Play, runners: Runners = NO_RUNNERS, agent: AgentConfig | None = None) -> Environment:
    version = play.environment_version
    return envs.build(version.environment.kind, version.config, version.verifier, runners, agent)


def add(
    play: Play,
    message: Message,
    *,
    by: str = "",
    answer: ChatResponse | None = None,
    reply: Sequence[Message] | None = None,
) -> None:
    """Append a move and what the environment says to it; judge when that ends it, where that is pure. `answer` is what
    the move was in, where a version made it; `reply` what `reply_to` has said already. Hold the row's lock. Raises
    Stale."""
    env, said = environment_of(play), [*conversation(play), message]
    reply = reply_to(play, message) if reply is None else reply
    play.messages = [row.to_json() for row in [*said, *reply]]
    move = Move()
    if answer is not None:
        spent = (play.tokens_out or 0) + (answer.tokens_out or 0)
        move = Move(by, answer.tokens_in, answer.tokens_out, broken_off(env, spent, list(reply), answer))
    play.moves = [*play.moves, asdict(move)]
    play.is_over = not reply or bool(move.ended) or len(play.moves) >= env.max_turns
    if play.is_over:
        judge(play, NO_RUNNERS)
    play.save(update_fields=["messages", "moves", "is_over", "verdict"])


def reply_to(play: Play, message: Message, runners: Runners = NO_RUNNERS) -> list[Message]:
    """Return what the environment says to a move. A world may take its time: hold no lock. Raises Stale."""
    try:
        said = [*conversation(play), message]
        return environment_of(play, runners).respond(core_task(play.task), said, play.seed)
    except Exception as error:  # such as a task that names no world
        raise Stale(f"the environment cannot answer: {error}") from error


def catch_up(play: Play, runners: Runners) -> None:
    """Let an environment that only a worker plays answer the last move, if it has not. Raises what the environment
    does."""
    if unanswered(play):
        env, said = environment_of(play, runners), conversation(play)
        reply = env.respond(core_task(play.task), said, play.seed)
        play.messages = [row.to_json() for row in [*said, *reply]]
        play.is_over = not reply or len(play.moves) >= env.max_turns


def note_world(play: Play, runners: Runners) -> None:
    """Keep the state of its world as it is now, where it has one that only a worker plays. Raises WorldError."""
    world, task, said = world_of(environment_of(play, runners)), core_task(play.task), conversation(play)
    if isinstance(world, ServerWorld):
        play.world = _noted(world, play)
        return
    if world is None:
        return
    spoken = [place for place, message in enumerate(said) if message.role == "assistant"]
    beginning = said[: spoken[0]] if spoken else said
    play.world = {
        name: world.play(task, messages).state
        for name, messages in {
            "beginning": beginning,
            "before": said[: spoken[-1]] if spoken else said,
            "now": said,
        }.items()
    }


def _noted(world: ServerWorld, play: Play) -> dict[str, Any]:
    """Ask a server for the state as it is now alone: made again, its answers may be others. The states before are
    those that were noted then."""
    was, at = play.world or {}, len(play.moves)
    if not world.has_state:
        return {"at": at, "beginning": None, "before": None, "now": None}
    if was.get("at") == at:
        return was
    if was.get("at") == at + 1:  # the last move was taken back
        return {**was, "at": at, "now": was["before"]}
    played = world.play(core_task(play.task), conversation(play))
    before = was["now"] if was.get("at") == at - 1 else played.state
    return {"at": at, "beginning": played.beginning, "before": before, "now": played.state}


def _is_elsewhere(play: Play) -> bool:
    """Whether only a worker plays in its environment."""
    version = play.environment_version
    return bool(players(version.environment.kind, version.config))


def judge(play: Play, runners: Runners) -> None:
    """Write the verdict of the whole episode on the row, unless the verifier needs a runner that is not there."""
    version = play.environment_version
    if any(
        getattr(runners, name) is None for name in needs(version.environment.kind, version.config, version.verifier)
    ):
        return
    task = core_task(play.task)
    verify = environment_of(play, runners).verifier(task)
    play.verdict = _stored(verify(Trace.from_messages("", conversation(play)), task.target))


def usable(versions: Sequence[Version]) -> list[Version]:
    """Those that can be asked for a move: they name a server, or have weights here."""
    return [each for each in versions if each.weights_id or each.endpoint.get("kind") == "openai"]


def _locked(play: Play, at: int) -> Play:
    rows = Play.objects.select_for_update(of=("self",)).select_related(
        "environment_version__environment", "task__environment", "created_by"
    )
    row = rows.get(pk=play.pk)
    if (turn := waiting(row)) is not None:
        who = "a version is making its move" if turn.version_id else "the environment is at work"
        raise Stale(f"{who}; wait until that is done")
    if len(row.moves) != at:
        raise Stale("a move was made since this page was loaded; look at it first")
    return row


def _submit(play: Play, actor: Actor, *, key: uuid.UUID, **fields: Any) -> PlayTurn:
    made, _ = PlayTurn.submit(key=key, project=play.project, actor=actor, play=play, at=len(play.moves), **fields)
    return made


def _stored(verdict: Verdict) -> dict[str, Any]:
    return {"score": verdict.score, "reason": verdict.reason, "cause": verdict.cause, "parts": dict(verdict.parts)}
