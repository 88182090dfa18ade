"""The playground for programs: an episode of a task, move by move."""

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.references import find_version
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.answers import Number, Ref
from flywheel.edge.refusals import at_field, one
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.environments.models import Play, Task
from flywheel.environments.playground import episode_moves
from flywheel.environments.playground.world_state import as_json, state

router = Router(tags=["environments"])


class PlayIn(Body):
    seed: int = Field(0, ge=0, le=2**31 - 1)
    """Seed of the environment. The same seed gives the same episode for the same moves."""


class ToolCallIn(Body):
    name: str = Field(max_length=200)
    arguments: dict[str, Any] = {}
    """Arguments by name."""
    id: str = Field("", max_length=200)
    """Your own id for the call; assigned if empty."""


class PlayMoveIn(Body):
    """One message from the policy."""

    at: int = Field(ge=0)
    """Number of moves that you have seen. It keeps a repeated request from making two moves."""
    content: str = Field("", max_length=episode_moves.LONGEST_MOVE)
    """Text of the message."""
    tool_calls: list[ToolCallIn] = Field([], max_length=50)
    """Calls in the message, at most 50."""


class AskIn(Body):
    at: int = Field(ge=0)
    """Number of moves that you have seen. It keeps a repeated request from making two moves."""
    version: RefIn
    """`agent@number`."""
    to_the_end: bool = False
    """Make all remaining moves, not only the next one."""
    temperature: float = Field(0.0, ge=0, le=2)
    """Sampling temperature, from 0 to 2."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key does not start a second move."""


class AtIn(Body):
    at: int = Field(ge=0)
    """Number of moves that you have seen."""


class WaitingOut(Schema):
    version: Ref | None
    """The version that is making a move; null if only the environment or the verdict is pending."""
    state: str


class PlayOut(Schema):
    id: int
    environment: Ref = Field(alias="environment_version")
    task: Number
    seed: int
    messages: list[dict[str, Any]]
    moves: list[str]
    """Who made each move: `agent@number`, or empty for one made by hand."""
    tokens_in: list[int | None]
    """Input tokens of each move; null for one made by hand, or if the server does not report them."""
    tokens_out: list[int | None]
    """Output tokens of each move, as for `tokens_in`."""
    is_over: bool
    ended: str
    """Why the episode was stopped early and judged as it is, for example because its tokens ran out; otherwise
    empty."""
    verdict: dict[str, Any] | None
    """`{score, reason, cause, parts}`; null until the episode is judged. A null `score` means unscored, and `cause`
    gives the reason."""
    waiting: WaitingOut | None
    """What the episode waits for; null if it is your turn or the episode is over."""
    error: str
    """Why the last turn of a version failed; otherwise empty."""
    created_at: datetime

    @staticmethod
    def resolve_moves(row: Play) -> list[str]:
        return [move.by for move in row.made]

    @staticmethod
    def resolve_tokens_in(row: Play) -> list[int | None]:
        return [move.tokens_in for move in row.made]

    @staticmethod
    def resolve_tokens_out(row: Play) -> list[int | None]:
        return [move.tokens_out for move in row.made]

    @staticmethod
    def resolve_waiting(row: Play) -> Any:
        return episode_moves.waiting(row)

    @staticmethod
    def resolve_error(row: Play) -> str:
        last = row.turns.first()
        return last.error if last else ""


class TableOut(Schema):
    name: str
    columns: list[str]
    """Empty for a board."""
    rows: dict[str, list[str]]
    """Cells by row id."""
    changed: dict[str, str]
    """Effect of the last move by row id: `new`, `changed` or `gone`."""


@router.post("/environments/{name}/tasks/{number}/plays", response={201: PlayOut}, auth=Key(Scope.BUILD))
def play(request: HttpRequest, name: str, number: int, wanted: PlayIn) -> Status[Play]:
    """Start an episode of a task."""
    rows = Task.objects.filter(project=keyed(request).project, environment__name=name)
    task = one(rows.select_related("environment"), number=number)
    return Status(201, episode_moves.start(task=task, actor=keyed(request).actor, seed=wanted.seed))


@router.get("/plays/{play}", response=PlayOut, auth=Key(Scope.READ))
def get_play(request: HttpRequest, play: int) -> Play:
    """Return the episode in its current state."""
    rows = Play.objects.select_related("task__environment", "environment_version__environment")
    return one(rows.filter(project=keyed(request).project), pk=play)


@router.get("/plays/{play}/state", response=list[TableOut], auth=Key(Scope.READ))
def get_play_state(request: HttpRequest, play: int) -> list[dict[str, Any]]:
    """Return the current state of the world, table by table, with the changes from the last move; empty if the
    episode is only a conversation."""
    return [as_json(table) for table in state(get_play(request, play))]


@router.post("/plays/{play}/moves", response=PlayOut, auth=Key(Scope.BUILD))
def make_move(request: HttpRequest, play: int, wanted: PlayMoveIn) -> Play:
    """Make a move. The response contains the environment's answer, and the verdict if the move ends the episode. 409 if
    the episode is over, a move is pending, or moves were made since `at`."""
    row = get_play(request, play)
    calls = tuple(
        ToolCall(call.id or f"call-{wanted.at}-{number}", call.name, call.arguments)
        for number, call in enumerate(wanted.tool_calls)
    )
    episode_moves.say(play=row, message=Message("assistant", wanted.content, calls), at=wanted.at)
    return get_play(request, play)


@router.post("/plays/{play}/ask", response={202: PlayOut}, auth=Key(Scope.BUILD))
def ask_for_move(request: HttpRequest, play: int, wanted: AskIn) -> Status[Play]:
    """Have a version make the next move, or all remaining moves, in the background. 409 if the episode is over, a move
    is pending, or moves were made since `at`."""
    row = get_play(request, play)
    with at_field("version"):
        version = find_version(keyed(request).project, wanted.version)
    episode_moves.ask(
        play=row,
        version=version,
        actor=keyed(request).actor,
        at=wanted.at,
        key=wanted.key or uuid.uuid4(),
        to_the_end=wanted.to_the_end,
        temperature=wanted.temperature,
    )
    return Status(202, get_play(request, play))


@router.post("/plays/{play}/take-back", response=PlayOut, auth=Key(Scope.BUILD))
def take_move_back(request: HttpRequest, play: int, wanted: AtIn) -> Play:
    """Undo the last move and the answer to it. 409 if there is no move, one is pending, or moves were made since
    `at`."""
    episode_moves.take_back(play=get_play(request, play), at=wanted.at)
    return get_play(request, play)


@router.post("/plays/{play}/judge", response={202: PlayOut}, auth=Key(Scope.BUILD))
def judge_play(request: HttpRequest, play: int, wanted: AtIn) -> Status[Play]:
    """Judge a finished episode in the background, if its verdict was stopped or failed. 409 if the episode is not over
    or has a verdict."""
    episode_moves.have_judged(play=get_play(request, play), actor=keyed(request).actor, at=wanted.at)
    return Status(202, get_play(request, play))


@router.post("/plays/{play}/stop", response=PlayOut, auth=Key(Scope.BUILD))
def stop_play(request: HttpRequest, play: int) -> Play:
    """Stop waiting for the version; the moves it has made are kept."""
    if (turn := episode_moves.waiting(get_play(request, play))) is not None:
        turn.cancel(keyed(request).actor)
    return get_play(request, play)
