"""A failure becomes a task of a team's own world: from the request on, with the recorded calls made again there."""

from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Task
from flywheel.environments.proofs.red_green_proof import failed_checks
from flywheel.environments.tasks.bulk_tasks import count_without_task, tasks_from_all, without_task
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure
from tests.conftest import Build, Cast
from tests.environments.shop import OWN, shop, work
from tests.environments.tasks.test_replay_tasks import failed, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("sandbox")]

LOOK = {"tool": "get_order", "arguments": {"order_id": "1003"}}
FOUND = '{"id": "1003", "customer": "ann@example.com", "item": "lamp", "price": 40.0, "status": "open"}'
CANCEL = {"tool": "cancel", "arguments": {"order_id": "1003"}}
REFUND = {"tool": "refund", "arguments": {"order_id": "1003", "reason": "unwanted"}}
ASKED = "Cancel order 1003, please."
SORRY = "Error: order 1003 is open; only delivered orders are refunded"


def call(number: int, made: dict[str, Any]) -> Message:
    return Message("assistant", "", (ToolCall(f"c{number}", made["tool"], made["arguments"]),))


def recorded(*, answer: str = FOUND) -> list[Message]:
    return [
        Message("system", "Be kind."),
        Message("user", ASKED),
        call(1, LOOK),
        Message("tool", answer, (), "c1", "get_order"),
        call(2, REFUND),
        Message("tool", SORRY, (), "c2", "refund"),
        Message("assistant", "Your money is on its way."),
    ]


def make(cast: Cast, world: Environment, failure: Failure) -> Task:
    task, is_new = task_from(failure=failure, environment=world, actor=Actor(cast.builder))
    assert is_new
    work()
    task.refresh_from_db()
    return task


DONE = LOOK | {"answer": FOUND}
CALLS = {"type": "calls", "order": "given"}


@pytest.mark.parametrize(
    ("corrected", "wanted", "solution"),
    [
        (CANCEL, [CALLS | {"calls": [CANCEL]}], [DONE, CANCEL]),
        ({"calls": [LOOK, CANCEL]}, [CALLS | {"calls": [LOOK, CANCEL]}], [LOOK, CANCEL]),
        ({"refuse": ""}, [{"type": "refusal", "text": ""}], [DONE]),
        ({"ask": "Shall I cancel 1003?"}, [{"type": "question", "text": "Shall I cancel 1003?"}], [DONE]),
        (
            {"avoid": ["refund"], "text": "Order 1003 is open."},
            [
                {"type": "calls", "calls": [LOOK], "order": "any"},
                {"type": "avoid", "tools": ["refund"]},
                {"type": "words", "text": "Order 1003 is open."},
            ],
            [DONE],
        ),
    ],
)
def test_a_correction_becomes_a_proved_task_whose_solution_begins_with_what_was_recorded(
    cast: Cast,
    build: Build,
    corrected: dict[str, Any],
    wanted: list[dict[str, Any]],
    solution: list[dict[str, Any]],
) -> None:
    row = run(build, recorded(), metadata={"state": OWN, "slice": "cancel"})
    task = make(cast, shop(cast), failed(cast, row, corrected, "s4"))
    assert (task.is_proved, failed_checks(task)) == (True, [])
    assert task.target == {"wanted": wanted, "solution": solution}
    assert (task.prompt, task.slice, task.state) == (ASKED, "cancel", {"state": OWN})
    assert {"recorded failure", "corrected"} <= {check["name"] for check in task.proof["checks"]}
    if DONE in solution:
        assert task.proof["recording"] == {"calls": 1, "same": 1, "first": "", "refused": ""}


def test_a_world_that_knows_none_of_it_is_told_by_its_answers(cast: Cast, build: Build) -> None:
    """The calls that are wanted decide, so the proof is green; but no answer is the one that was recorded."""
    messages = [
        Message.from_json({**message.to_json(), "content": message.content.replace("1003", "77")})
        for message in recorded()
    ]
    there, cancel = ({**made, "arguments": {"order_id": "77"}} for made in (LOOK, CANCEL))
    messages[2] = call(1, there)
    task = make(cast, shop(cast), failed(cast, run(build, messages), cancel, "s4"))
    assert task.is_proved
    recording = task.proof["recording"]
    assert (recording["calls"], recording["same"]) == (1, 0)
    assert recording["first"].startswith("get_order: “Error: there is no order 77”, recorded “{")
    assert recording["refused"] == "cancel: Error: there is no order 77"


def test_a_passing_run_guards_what_it_did_and_said(cast: Cast, build: Build) -> None:
    messages = recorded()
    messages[4:] = [
        call(2, CANCEL),
        Message("tool", "Order 1003 is cancelled.", (), "c2", "cancel"),
        Message("assistant", "Order 1003 is cancelled now."),
    ]
    passed = decide(trajectory=run(build, messages, metadata={"state": OWN}), actor=Actor(cast.reviewer), bucket="")
    task = make(cast, shop(cast), passed)
    assert (task.is_proved, failed_checks(task)) == (True, [])
    assert task.target["wanted"] == [
        {"type": "calls", "calls": [LOOK, CANCEL], "order": "any"},
        {"type": "words", "text": "Order 1003 is cancelled now."},
    ]
    assert "recorded success" in {check["name"] for check in task.proof["checks"]}


@pytest.mark.parametrize(
    ("corrected", "step", "config", "reason"),
    [
        (None, "s4", {}, "no corrected action"),
        (REFUND, "s4", {}, "equals what the agent did"),
        (CANCEL, "s1", {}, "no request by a user"),
        ({"tool": "send", "arguments": {}}, "s4", {}, "the wanted call does not fit this world: send: unknown tool"),
        ({"tool": "cancel", "arguments": {}}, "s4", {}, "does not fit this world: cancel: .*order_id"),
        ({"avoid": []}, "s4", {}, "write what the agent should have said, too"),
        ({"avoid": ["send"], "text": "No."}, "s4", {}, "this world has no tool send, which must not be called"),
        ({"avoid": ["get_order"], "text": "No."}, "s4", {}, "the agent had called get_order by then"),
        (CANCEL, "s4", {"max_turns": 1}, "the agent had made 1 calls by then"),
    ],
)
def test_what_cannot_be_a_task_of_this_world_says_what_is_missing(
    cast: Cast, build: Build, corrected: dict[str, Any] | None, step: str, config: dict[str, Any], reason: str
) -> None:
    messages = [message for message in recorded() if reason[:10] != "no request" or message.role != "user"]
    failure = failed(cast, run(build, messages), corrected, step)
    with pytest.raises(Refused, match=reason):
        task_from(failure=failure, environment=shop(cast, **config), actor=Actor(cast.builder))
    assert not Task.objects.exists()


def test_a_world_without_a_tool_that_was_called_before_says_so(cast: Cast, build: Build) -> None:
    messages = recorded()
    messages[2] = call(1, {"tool": "ask_crm", "arguments": {}})
    messages[3] = Message("tool", "Ann", (), "c1", "ask_crm")
    failure = failed(cast, run(build, messages), CANCEL)
    with pytest.raises(Refused, match="had called ask_crm by then, and this world has no such tool"):
        task_from(failure=failure, environment=shop(cast), actor=Actor(cast.builder))


def test_an_earlier_call_that_this_world_cannot_make_says_so(cast: Cast, build: Build) -> None:
    messages = recorded()
    messages[2] = call(1, {"tool": "get_order", "arguments": {"number": 1003}})
    failure = failed(cast, run(build, messages), CANCEL, "s4")
    with pytest.raises(Refused, match=r"had made a call by then that does not fit this world: get_order: .*number"):
        task_from(failure=failure, environment=shop(cast), actor=Actor(cast.builder))


def test_a_second_request_before_the_marked_step_is_for_replay(cast: Cast, build: Build) -> None:
    """What the agent said in between would be lost; before the second request nothing is."""
    messages = [*recorded(), Message("user", "And order 1004?"), Message("assistant", "That one, too.")]
    row = run(build, messages, metadata={"state": OWN})
    late = failed(cast, row, CANCEL, "s8")
    with pytest.raises(Refused, match=r"asked 2 times before the marked step.*kind Replay"):
        task_from(failure=late, environment=shop(cast), actor=Actor(cast.builder))
    task = make(cast, Environment.objects.get(), failed(cast, row, CANCEL, "s4"))
    assert (task.prompt, task.is_proved) == (ASKED, True)


def test_a_world_of_an_agent_takes_all_its_failures_and_one_of_none_takes_those_that_are_named(
    cast: Cast, build: Build
) -> None:
    failed(cast, run(build, recorded(), metadata={"state": OWN}), CANCEL)
    row = shop(cast)
    assert not without_task(row).exists()
    assert [each.waiting for each in count_without_task(Environment.objects.all())] == [0]  # type: ignore[attr-defined]
    row.agent = build.agent()
    row.save()
    assert [each.waiting for each in count_without_task(Environment.objects.all())] == [1]  # type: ignore[attr-defined]
    made = tasks_from_all(environment=row, actor=Actor(cast.builder))
    assert (len(made.made), made.refused) == (1, {})
    work()
    assert row.tasks.get().is_proved
    assert not without_task(row).exists()
