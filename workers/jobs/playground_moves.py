"""A version's moves in the playground: the worker's side of `environments.play`."""

from django.db import transaction

from flywheel.core.envs.kinds import players
from flywheel.core.envs.policy_rollouts import ChatRequest, EngineError, Sampling, counted, limited
from flywheel.core.envs.worlds.own_world import world_of
from flywheel.core.envs.worlds.server_world import ServerWorld
from flywheel.core.traces import Message, call_forms
from flywheel.core.verifiers import Runners
from flywheel.edge.jobs import Lease, State
from flywheel.environments.models import Play, PlayTurn
from flywheel.environments.playground import episode_moves
from flywheel.trajectories.formats.values.hostile_json import plain
from workers.jobs.eval_runs import open_version
from workers.judging import project_judges
from workers.worlds.tool_servers import ToolServers


def make_moves(lease: Lease) -> None:
    """Ask the version until its turn is over. A move is stored with the job's lease: whoever takes over goes on."""
    of = ("version__agent", "version__weights", "version__adapter", "play__environment_version__environment__project")
    turn = PlayTurn.objects.select_related(*of).get(pk=lease.job.pk)
    world = turn.play.environment_version
    runners = project_judges.runners(world.environment.project, world.verifier, lease=lease)
    _take_over(lease, turn, runners)
    if turn.version is not None:
        _ask(lease, turn, runners)
    with transaction.atomic():
        row = _play(turn)
    # May take longer than a lease: nothing is locked meanwhile, and no other move is made.
    if players(world.environment.kind, world.config):
        episode_moves.catch_up(row, runners)
        with lease.guard():  # before anything else can fail: the call was carried out
            row.save(update_fields=["messages", "is_over"])
        _note(lease, row, runners)
    if row.is_over and row.verdict is None:
        episode_moves.judge(row, runners)
        with lease.guard():
            row.save(update_fields=["verdict"])
    if not row.is_over:
        _hand_over(lease, row, runners)
    lease.finish(State.CANCELLED if lease.cancelled else State.SUCCEEDED)


def _ask(lease: Lease, turn: PlayTurn, runners: Runners) -> None:
    assert turn.version is not None
    with transaction.atomic():
        row = _play(turn)
    agent = turn.version.config()
    env = episode_moves.environment_of(row, agent=agent)
    sampling = Sampling(**{**turn.version.sampling, "temperature": turn.temperature})
    engine = open_version(turn.version)
    try:
        while not (lease.cancelled or lease.lost or row.is_over):
            if len(row.moves) > turn.at and not turn.to_the_end:
                return
            talk, left = agent.open(episode_moves.conversation(row)), limited(sampling, env, row.tokens_out or 0)
            request = ChatRequest(tuple(talk), left, row.seed + len(row.moves), tuple(env.tools))
            answer = counted(env, engine.chat([request])[0])
            if answer.error:
                raise EngineError(f"{turn.version} did not answer: {answer.error}")
            said_now = call_forms.read(Message("assistant", answer.text, answer.tool_calls), agent.form).to_json()
            message = Message.from_json(plain(said_now))
            reply = episode_moves.reply_to(row, message, runners)  # nobody else moves while this turn is not over
            with lease.guard():
                row = _play(turn)
                episode_moves.add(row, message, by=str(turn.version), answer=answer, reply=reply)
                lease.progress(len(row.moves) - turn.at)
            if isinstance(world_of(env), ServerWorld):
                _note(lease, row, runners)
    finally:
        engine.close()


def _take_over(lease: Lease, turn: PlayTurn, runners: Runners) -> None:
    """Go on in the server's session in which the last move was made. The row forgets it: where this turn fails, nobody
    knows what was done in it."""
    with transaction.atomic():
        row = _play(turn)
    world = world_of(episode_moves.environment_of(row))
    handed = (row.world or {}).pop("session", None)
    if handed and isinstance(world, ServerWorld) and isinstance(runners.server, ToolServers):
        with lease.guard():
            row.save(update_fields=["world"])
        runners.server.take_over(world.server, handed)


def _hand_over(lease: Lease, row: Play, runners: Runners) -> None:
    """Leave the server's session to the next turn."""
    handed = runners.server.hand_over() if isinstance(runners.server, ToolServers) else {}
    if handed and row.world is not None:
        row.world["session"] = handed
        with lease.guard():
            row.save(update_fields=["world"])


def _note(lease: Lease, row: Play, runners: Runners) -> None:
    """Keep the state of the world; None where it cannot be had, rather than an old one."""
    try:
        episode_moves.note_world(row, runners)
    except Exception:
        row.world = None
        raise
    finally:
        with lease.guard():
            row.save(update_fields=["world"])


def _play(turn: PlayTurn) -> Play:
    """The episode as it is, its row locked."""
    rows = Play.objects.select_for_update(of=("self",)).select_related(
        "environment_version__environment__project", "task__environment"
    )
    return rows.get(pk=turn.play_id)
