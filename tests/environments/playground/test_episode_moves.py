"""The playground: an episode by hand and by a version, move by move."""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.core import envs
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.jobs import Lease, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Generation, Opening, Play, PlayTurn, Split, Task
from flywheel.environments.pages.playground.play_forms import MoveForm
from flywheel.environments.playground import episode_moves as verbs
from flywheel.environments.playground import world_state
from flywheel.environments.tasks import seeded_tasks
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions import environment_versions, trials
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment, environment_version
from tests.conftest import TOOLS, Build, Cast
from tests.edge.posting import posted
from tests.pages import page_of
from workers.jobs import playground_moves
from workers.jobs.task_generation import make_tasks

pytestmark = pytest.mark.django_db(transaction=True)
SignIn = Callable[[User], Client]


class Tasks(Protocol):
    def __call__(self, kind: str, count: int = 3) -> list[Task]: ...


@pytest.fixture
def tasks(cast: Cast) -> Tasks:
    def of(kind: str, count: int = 3) -> list[Task]:
        row = environment(
            project=cast.project,
            name=kind,
            actor=Actor(cast.builder),
            config={},
            verifier={"kind": kind},
            terms=Terms(kind),
        )
        job = seeded_tasks.submit(environment=row, actor=Actor(cast.builder), count=count, seed=1, key=uuid.uuid4())
        carry_out(Generation, job.pk, make_tasks)
        return list(Environment.objects.get(pk=row.pk).tasks.order_by("number"))

    return of


def carry_out(kind: Any, pk: int, handler: Callable[[Lease], None]) -> None:
    lease = kind.claim(pk)
    assert lease is not None
    with lease:
        handler(lease)


class Reference:
    """An engine that does everything right, as the environment's own solution does."""

    def __init__(self, task: Task) -> None:
        version = task.environment.latest
        self.env = envs.build(task.environment.kind, version.config, version.verifier)
        self.task, self.closed = core_task(task), False

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        said = [self.env.solve(self.task, request.messages) for request in requests]
        return [ChatResponse(text=each.content, tool_calls=each.tool_calls) for each in said]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.generate])
def test_following_the_hints_solves_the_task(tasks: Tasks, cast: Cast, kind: str) -> None:
    play = verbs.start(task=tasks(kind)[0], actor=Actor(cast.builder))
    while not play.is_over:
        move = verbs.hint(play)
        assert move is not None
        play = verbs.say(play=play, message=move, at=len(play.moves))
    assert play.verdict is not None
    assert play.verdict["score"] == 1.0
    assert {move.by for move in play.made} == {""}
    assert (play.tokens_in, play.tokens_out) == (0, 0), "a person takes none"


def test_a_move_taken_back_leaves_the_episode_as_it_was(tasks: Tasks, cast: Cast) -> None:
    play = verbs.start(task=tasks("tictactoe")[0], actor=Actor(cast.builder))
    opened = play.messages
    over = verbs.say(play=play, message=Message("assistant", "I give up"), at=0)
    assert len(over.messages) > len(opened)
    again = verbs.take_back(play=over, at=1)
    assert (again.messages, again.moves, again.is_over, again.verdict) == (opened, [], False, None)
    with pytest.raises(Refused, match="no move was made"):
        verbs.take_back(play=again, at=0)


def test_a_double_click_makes_one_move(tasks: Tasks, cast: Cast, sign_in: SignIn) -> None:
    play = verbs.start(task=tasks("tictactoe")[0], actor=Actor(cast.builder))
    client = sign_in(cast.builder)
    address = reverse("environments:say", args=[cast.project.slug, play.pk])
    for _ in range(2):
        client.post(address, {"text": "<think></think>\n<move>4</move>", "at": "0"})
    play.refresh_from_db()
    assert len(play.moves) == 1


@pytest.mark.parametrize(("to_the_end", "moves"), [(False, 1), (True, None)])
def test_a_version_makes_one_move_or_all(
    tasks: Tasks,
    cast: Cast,
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
    to_the_end: bool,
    moves: int | None,
) -> None:
    task = next(task for task in tasks("workplace") if len(task.target["calls"]) >= 1)
    engine = Reference(task)
    monkeypatch.setattr(playground_moves, "open_version", lambda _: engine)
    version = build.version(sampling={"max_tokens": 64})
    play = verbs.start(task=task, actor=Actor(cast.builder))
    turn = verbs.ask(
        play=play, version=version, actor=Actor(cast.builder), at=0, key=uuid.uuid4(), to_the_end=to_the_end
    )
    with pytest.raises(Refused, match="making its move"):
        verbs.say(play=play, message=Message("assistant", "me first"), at=0)
    PlayTurn.objects.filter(pk=turn.pk).update(version=None)
    with pytest.raises(Refused, match="the environment is at work"):
        verbs.say(play=play, message=Message("assistant", "me first"), at=0)
    PlayTurn.objects.filter(pk=turn.pk).update(version=version)
    carry_out(PlayTurn, turn.pk, playground_moves.make_moves)
    play.refresh_from_db()
    turn.refresh_from_db()
    assert (turn.state, engine.closed) == (State.SUCCEEDED, True)
    assert {move.by for move in play.made} == {str(version)}
    assert (play.tokens_in, play.tokens_out) == (None, None), "its engine does not say"
    if moves:
        assert len(play.moves) == moves
    else:
        assert play.is_over
        assert play.verdict is not None
        assert play.verdict["score"] == 1.0


def test_a_turn_that_is_taken_over_makes_no_move_twice(
    tasks: Tasks, cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks("tictactoe")[0]
    monkeypatch.setattr(playground_moves, "open_version", lambda _: Reference(task))
    play = verbs.start(task=task, actor=Actor(cast.builder))
    turn = verbs.ask(play=play, version=build.version(), actor=Actor(cast.builder), at=0, key=uuid.uuid4())
    lease = PlayTurn.claim(turn.pk)
    assert lease is not None
    monkeypatch.setattr(lease, "finish", lambda _: None)  # its worker dies before the end
    playground_moves.make_moves(lease)
    PlayTurn.objects.filter(pk=turn.pk).update(state=State.QUEUED, lease_until=None)
    carry_out(PlayTurn, turn.pk, playground_moves.make_moves)
    play.refresh_from_db()
    assert len(play.moves) == 1


def test_an_engine_that_does_not_answer_leaves_what_was_played_and_says_why(
    tasks: Tasks, cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch, sign_in: SignIn
) -> None:
    class Silent(Reference):
        def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
            return [ChatResponse(error="the server is full") for _ in requests]

    task = tasks("tictactoe")[0]
    monkeypatch.setattr(playground_moves, "open_version", lambda _: Silent(task))
    play = verbs.start(task=task, actor=Actor(cast.builder))
    turn = verbs.ask(play=play, version=build.version(), actor=Actor(cast.builder), at=0, key=uuid.uuid4())
    carry_out(PlayTurn, turn.pk, playground_moves.make_moves)
    play.refresh_from_db()
    assert play.moves == []
    page = sign_in(cast.builder).get(reverse("environments:play", args=[cast.project.slug, play.pk]))
    assert "the server is full" in page.content.decode()


class Counting(Reference):
    """One that says what it took: 100 tokens in, and 30 out, or fewer where no more are allowed."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.allowed: list[int] = []

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        most = [request.sampling.max_tokens for request in requests]
        self.allowed += most
        found = zip(super().chat(requests), most, strict=True)
        return [replace(each, tokens_in=100, tokens_out=min(30, limit)) for each, limit in found]


def test_the_tokens_of_versions_are_counted_and_limited(
    tasks: Tasks, cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch, sign_in: SignIn
) -> None:
    office = tasks("workplace", 12)[0].environment
    verifier = {"kind": "workplace"}
    environment_version(environment=office, actor=Actor(cast.builder), config={"token_limit": 40}, verifier=verifier)
    task = next(task for task in office.tasks.order_by("number") if len(task.target["calls"]) >= 1)
    engine = Counting(task)
    monkeypatch.setattr(playground_moves, "open_version", lambda _: engine)
    play = verbs.start(task=task, actor=Actor(cast.builder))
    lookup = Message("assistant", "", (ToolCall("c", "tasks.search_tasks", {"query": "lunch"}),))
    play = verbs.say(play=play, message=lookup, at=0)
    version = build.version(sampling={"max_tokens": 64})
    engine.env.solve = lambda *_: lookup  # type: ignore[method-assign]
    turn = verbs.ask(play=play, version=version, actor=Actor(cast.builder), at=1, key=uuid.uuid4(), to_the_end=True)
    carry_out(PlayTurn, turn.pk, playground_moves.make_moves)
    play.refresh_from_db()
    assert engine.allowed == [40, 10], "no more than is left"
    assert [(move.by, move.tokens_in, move.tokens_out) for move in play.made] == [
        ("", None, None), (str(version), 100, 30), (str(version), 100, 10)
    ]  # fmt: skip
    assert (play.tokens_in, play.tokens_out) == (200, 40)
    assert play.is_over
    assert play.ended == "broken off: the episode's 40 tokens are spent"
    assert play.verdict is not None
    assert play.verdict["score"] == 0.0, "It is judged in its current state"
    page = sign_in(cast.builder).get(reverse("environments:play", args=[cast.project.slug, play.pk])).content.decode()
    assert "100 tokens in, 10 out" in page
    assert "200 tokens in, 40 of at most 40 out" in page
    assert "Broken off: the episode&#x27;s 40 tokens are spent. It is judged in its current state." in page
    play = verbs.take_back(play=play, at=3)
    assert (play.ended, play.is_over, play.tokens_out) == ("", False, 30), "what is taken back is not spent"


def test_where_tokens_are_limited_a_version_must_say_them(
    tasks: Tasks, cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = tasks("workplace")[0].environment
    verifier = {"kind": "workplace"}
    environment_version(environment=office, actor=Actor(cast.builder), config={"token_limit": 40}, verifier=verifier)
    task = office.tasks.order_by("number")[0]
    monkeypatch.setattr(playground_moves, "open_version", lambda _: Reference(task))
    play = verbs.start(task=task, actor=Actor(cast.builder))
    turn = verbs.ask(play=play, version=build.version(), actor=Actor(cast.builder), at=0, key=uuid.uuid4())
    carry_out(PlayTurn, turn.pk, playground_moves.make_moves)
    turn.refresh_from_db()
    assert "does not say how many tokens it wrote; here they are limited" in turn.error


def test_an_episode_of_before_tokens_were_counted_still_says_who_played() -> None:
    play = Play(moves=["", "assistant@1"])
    assert [move.by for move in play.made] == ["", "assistant@1"]
    assert (play.ended, play.tokens_in, play.tokens_out) == ("", None, None)


def test_the_same_key_asks_once(tasks: Tasks, cast: Cast, build: Build) -> None:
    play = verbs.start(task=tasks("tictactoe")[0], actor=Actor(cast.builder))
    version, key = build.version(), uuid.uuid4()
    first, again = (verbs.ask(play=play, version=version, actor=Actor(cast.builder), at=0, key=key) for _ in range(2))
    assert first == again


def test_playing_a_held_out_task_is_noted_with_its_sets(cast: Cast, build: Build) -> None:
    member = build.task_set().members.filter(split=Split.HELD_OUT).select_related("task__environment").first()
    assert member is not None
    play = verbs.start(task=member.task, actor=Actor(cast.builder))
    opening = Opening.objects.get(subject=f"{member.task} played")
    assert (opening.kind, opening.actor, opening.task_set) == (Opening.Kind.PAGE, cast.builder, member.task_set)
    assert play.task == member.task


def test_arguments_are_asked_for_as_the_schema_says() -> None:
    tool = {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "who": {"type": "string"},
                "seats": {"type": "integer"},
                "price": {"type": "number"},
                "when": {"enum": ["today", "tomorrow"]},
                "window": {"type": "boolean"},
                "notes": {"type": "array"},
                "ref": {"type": ["string", "integer"]},
                "left": {"type": "string"},
            },
            "required": ["who", "seats"],
        },
    }
    given = {
        "argument-who": " Bako ",
        "argument-seats": "3",
        "argument-price": "1.5",
        "argument-when": "today",
        "argument-window": "false",
        "argument-notes": '["a", 1]',
        "argument-ref": "lunch",
        "argument-left": "",
    }
    form = MoveForm(given, tool=tool)
    assert form.is_valid(), form.errors
    call = form.message("c").tool_calls[0]
    assert call.arguments == {
        "who": " Bako ",
        "seats": 3,
        "price": 1.5,
        "when": "today",
        "window": False,
        "notes": ["a", 1],
        "ref": "lunch",
    }
    wrong = MoveForm({**given, "argument-seats": "many", "argument-notes": "[1", "argument-when": "never"}, tool=tool)
    assert set(wrong.errors) == {"argument-seats", "argument-notes", "argument-when"}


@pytest.mark.parametrize(
    ("described", "text", "sentence"),
    [
        ({"type": "string"}, "", "This field is required."),
        ({"type": "string"}, "a\0b", "Null characters are not allowed."),
        ({"type": "integer"}, "many", "Enter a whole number."),
        ({"type": "integer"}, "2.5", "Enter a whole number."),
        ({"type": "integer"}, "9" * 4400, "Enter a whole number."),
        ({"type": "number"}, "9" * 4400, "Enter a number."),
        ({"type": "number"}, "nan", "Enter a number."),
        ({"type": "boolean"}, "yes", "Select a valid choice. yes is not one of the available choices."),
        ({"enum": ["a", "b"]}, "c", "Select a valid choice. c is not one of the available choices."),
        ({"type": "array"}, "[1", "This is not JSON: Expecting ',' delimiter: line 1 column 3 (char 2)."),
        ({"type": "array"}, "[NaN]", "This is not JSON: NaN is no JSON."),
        ({"type": "array"}, '["\\u0000"]', "This is not JSON: it holds a NUL character."),
        ({"enum": [1, 2]}, "one", "This is not JSON: Expecting value: line 1 column 1 (char 0)."),
    ],
)
def test_what_cannot_be_an_argument_is_told_at_its_field(described: dict[str, Any], text: str, sentence: str) -> None:
    tool = {"name": "t", "parameters": {"properties": {"a": described}, "required": ["a"]}}
    form = MoveForm({"argument-a": text}, tool=tool)
    assert not form.is_valid()
    assert form.errors == {"argument-a": [sentence]}
    if len(text) < 100 and "\0" not in text and "Select" not in sentence:
        assert posted(form.as_p())["argument-a"] == text


def test_an_argument_is_optional_unless_it_is_required() -> None:
    described = {"day": {"enum": ["a"], "description": "w" * 400}, "on": {"type": "boolean"}, "any": {}, "odd": True}
    tool = {"name": "t", "parameters": {"properties": described}}
    page = MoveForm(tool=tool).as_p()
    assert set(posted(page)) == {"text", *(f"argument-{name}" for name in described)}
    assert (page.count('<option value="" selected>–</option>'), "w" * 300 in page, "w" * 301 in page) == (
        2,
        True,
        False,
    )
    form = MoveForm({"argument-any": "null"}, tool=tool)
    assert form.is_valid()
    assert form.message("c").tool_calls[0].arguments == {}
    assert MoveForm({"text": "Hi "}, tool=None).is_valid()


def test_a_person_plays_a_call_in_the_browser_form(tasks: Tasks, cast: Cast, sign_in: SignIn) -> None:
    tasks("workplace", 12)
    client = sign_in(cast.builder)
    answer = client.post(reverse("environments:play_any", args=[cast.project.slug, "workplace"]))
    play = Play.objects.get()
    here = reverse("environments:play", args=[cast.project.slug, play.pk])
    assert answer.headers["Location"] == here
    page = client.get(here, {"tool": "calendar.search_events"}).content.decode()
    assert re.search(r'name="argument-\w+"', page)
    client.post(
        reverse("environments:say", args=[cast.project.slug, play.pk]),
        {"tool": "calendar.search_events", "argument-query": "lunch", "at": "0"},
    )
    play.refresh_from_db()
    assert [message["role"] for message in play.messages][-2:] == ["assistant", "tool"]
    assert play.messages[-2]["tool_calls"][0]["name"] == "calendar.search_events"
    assert "Target" in client.get(here, {"hint": "1"}).content.decode()


def test_what_was_played_stands_with_the_task(cast: Cast, build: Build, sign_in: SignIn) -> None:
    task = build.task(Split.TRAIN)
    play = verbs.start(task=task, actor=Actor(cast.builder))
    page = sign_in(cast.viewer).get(
        reverse("environments:task", args=[cast.project.slug, task.environment.name, task.number])
    )
    assert reverse("environments:play", args=[cast.project.slug, play.pk]) in page.content.decode()


def test_a_program_plays_an_episode(tasks: Tasks, client: Client, key: Callable[..., dict[str, str]]) -> None:
    task = tasks("workplace")[0]
    headers = key(Scope.READ, Scope.BUILD)

    def post(path: str, body: dict[str, Any]) -> Any:
        return client.post(f"/api/v1{path}", body, content_type="application/json", headers=headers)

    opened = post(f"/environments/workplace/tasks/{task.number}/plays", {"seed": 0})
    assert opened.status_code == 201
    play, moves = opened.json(), 0
    calls = [ToolCall("", call["tool"], call["arguments"]) for call in task.target["calls"]]
    for call in calls:
        body = {"at": moves, "tool_calls": [{"name": call.name, "arguments": call.arguments}]}
        play, moves = post(f"/plays/{play['id']}/moves", body).json(), moves + 1
    tables = client.get(f"/api/v1/plays/{play['id']}/state", headers=headers).json()
    assert [table["name"] for table in tables] == ["calendar", "emails", "tasks", "contacts"]
    assert sum(len(table["changed"]) for table in tables) == 1  # what the last call was to do
    done = post(f"/plays/{play['id']}/moves", {"at": moves, "content": "Done."})
    assert done.json()["verdict"]["score"] == 1.0
    assert post(f"/plays/{play['id']}/moves", {"at": moves, "content": "Done."}).status_code == 409
    assert client.get(f"/api/v1/plays/{play['id']}", headers=headers).json()["is_over"] is True
    assert post(f"/plays/{play['id']}/take-back", {"at": moves + 1}).json()["is_over"] is False


def test_the_state_of_a_game_marks_what_the_last_move_changed(tasks: Tasks, cast: Cast) -> None:
    play = verbs.start(task=tasks("tictactoe")[0], actor=Actor(cast.builder))
    (board,) = world_state.state(play)
    assert (board.name, board.changed, len(board.rows)) == ("board", [], 3)
    move = verbs.hint(play)
    assert move is not None
    (board,) = world_state.state(verbs.say(play=play, message=move, at=0))
    changed = [cell for row in board.changed for cell in row.cells if cell.before is not None]
    assert sorted(cell.text for cell in changed) == ["O", "X"]
    assert all(cell.before in "012345678" for cell in changed if cell.before is not None)


@pytest.mark.parametrize("tool", ["create", "update", "delete", "search"])
def test_the_state_of_a_workplace_tells_new_rows_from_changed_and_gone_ones(
    tasks: Tasks, cast: Cast, tool: str
) -> None:
    play = verbs.start(task=tasks("workplace")[0], actor=Actor(cast.builder))
    before = {table.name: table for table in world_state.state(play)}
    assert list(before) == ["calendar", "emails", "tasks", "contacts"]
    first = before["contacts"].rows[0].key
    ada = {"name": "Ada Byron", "email": "ada@atlas.com", "phone": "1", "team": "Sales"}
    arguments = {
        "create": ada,
        "update": {"contact_id": first, "field": "team", "new_value": "Nobody's"},
        "delete": {"contact_id": first},
        "search": {"query": "a"},
    }
    name = f"contacts.{tool}_contact{'s' * (tool == 'search')}"
    call = Message("assistant", "", (ToolCall("c", name, arguments[tool]),))
    after = {table.name: table for table in world_state.state(verbs.say(play=play, message=call, at=0))}
    contacts = after.pop("contacts")
    assert not any(table.changed for table in after.values())
    found = [(row.change, [(cell.before, cell.text) for cell in row.cells if cell.before is not None])
             for row in contacts.changed]  # fmt: skip
    team = before["contacts"].rows[0].cells[-1].text
    wanted: dict[str, Any] = {
        "create": [("new", [])],
        "update": [("changed", [(team, "Nobody's")])],
        "delete": [("gone", [])],
        "search": [],
    }
    assert found == wanted[tool]


def test_a_sealed_task_is_neither_played_nor_tried_on(cast: Cast, build: Build) -> None:
    task = build.task(Split.SEALED, cluster="c", digest="d")
    with pytest.raises(Refused, match="is sealed: only a candidate's final comparison asks it"):
        verbs.start(task=task, actor=Actor(cast.builder))
    with pytest.raises(Refused, match="is sealed"):
        trials.submit(
            environment=task.environment,
            verifier={"kind": "rubric", "parts": [{"name": "right", "type": "environment", "weight": 1}]},
            tasks=[task.number],
            actor=Actor(cast.builder),
            key=uuid.uuid4(),
        )
    assert trials.suggested(task.environment) == []


def test_a_verdict_that_was_stopped_can_be_asked_for_again(
    cast: Cast, build: Build, sign_in: SignIn, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    task = build.task(Split.TRAIN)
    source = 'def verify(trace, target):\n    return {"score": 0.5, "reason": "half"}\n'
    verifier = {"kind": "rubric", "parts": [{"type": "python", "name": "own", "source": source}]}
    newest = environment_versions.latest(task.environment)
    environment_version(
        environment=task.environment, actor=Actor(cast.builder), config=newest.config, verifier=verifier
    )
    play = verbs.start(task=task, actor=Actor(cast.builder))
    builder, page = sign_in(cast.builder), reverse("environments:play", args=["acme", play.pk])
    again = reverse("environments:judge_play", args=["acme", play.pk])
    builder.post(again, {"at": 0})
    assert not play.turns.exists(), "nothing is over yet"
    play = verbs.say(play=play, message=Message("assistant", "Hello"), at=0)
    assert "Judge it" not in page_of(builder.get(page))
    builder.post(reverse("environments:stop_play", args=["acme", play.pk]))
    assert "Judge it" in page_of(builder.get(page))
    assert "Judge it" not in page_of(sign_in(cast.viewer).get(page))
    for _ in range(2):  # a double click asks once
        builder.post(again, {"at": 1})
    turn = play.turns.exclude(state=State.CANCELLED).get()
    carry_out(PlayTurn, turn.pk, playground_moves.make_moves)
    play.refresh_from_db()
    assert play.verdict is not None
    assert (play.verdict["score"], play.verdict["reason"]) == (0.5, "own: half")
    assert "Judge it" not in page_of(builder.get(page))
    headers, asked = key(Scope.BUILD), f"/api/v1/plays/{play.pk}/judge"
    refused = client.post(asked, {"at": 1}, content_type="application/json", headers=headers)
    assert (refused.status_code, refused.json()["detail"]) == (409, "the episode is judged already")
    Play.objects.filter(pk=play.pk).update(verdict=None)
    told = client.post(asked, {"at": 1}, content_type="application/json", headers=headers)
    assert (told.status_code, told.json()["waiting"]["version"]) == (202, None)


def test_a_replays_user_answers_who_plays_by_hand(cast: Cast, build: Build, sign_in: SignIn) -> None:
    config = {
        "tools": TOOLS,
        "judged": "end",
        "user": "script",
        "script": [{"say": "On friday.", "after": "Which day?"}],
    }
    row = environment(
        project=cast.project,
        name="played",
        actor=Actor(cast.builder),
        config=config,
        verifier={"kind": "episode"},
        terms=Terms("episode"),
    )
    book = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
    wanted = {"wanted": [{"type": "calls", "calls": [book]}]}
    task = build.task(Split.TRAIN, row, prompt="Meet Bako", target=wanted, state={})
    play = verbs.start(task=task, actor=Actor(cast.builder))
    hinted = verbs.hint(play)
    assert hinted is not None
    assert hinted.content == "Which day?"
    verbs.say(play=play, message=Message("assistant", "Which day is it?"), at=0)
    play.refresh_from_db()
    assert [message.content for message in verbs.conversation(play)][-1] == "On friday."
    page = page_of(sign_in(cast.builder).get(reverse("environments:play", args=["acme", play.pk])))
    assert "On friday." in page
    assert "Environment</header>" not in page
    call = ToolCall("c1", "calendar.create_event", {"person": "Bako", "day": "friday"})
    verbs.say(play=play, message=Message("assistant", "", (call,)), at=1)
    play.refresh_from_db()
    verbs.say(play=play, message=Message("assistant", "Booked."), at=2)
    play.refresh_from_db()
    assert play.verdict is not None
    assert (play.is_over, play.verdict["score"]) == (True, 1.0)
