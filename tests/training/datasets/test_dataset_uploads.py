"""Uploaded datasets: good rows are taken with their card, the others are named by line and field."""

import io
import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from django.db import connection

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.core.envs.replay.episode_replay import KIND
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.training.datasets import contamination_checks, dataset_builder, dataset_files, dataset_mix, uploaded_rows
from flywheel.training.datasets.dataset_builder import build, open_rows
from flywheel.training.datasets.dataset_uploads import use_of
from flywheel.training.datasets.demonstrations import Wanted
from flywheel.training.datasets.uploaded_rows import Problem
from flywheel.training.models import Dataset, DatasetBuild
from flywheel.trajectories.models import Label
from flywheel.trajectories.operations import deletion
from tests.training.conftest import Room, frozen, uploaded

pytestmark = pytest.mark.django_db

CARD = {"licence": "CC-BY-4.0", "description": "Chats of a help desk", "source": "our own", "language": "English"}


def lines(*rows: Any) -> io.BytesIO:
    return io.BytesIO("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode())


def chat(asked: str = "What is the capital of France?", said: str = "Paris", **said_also: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said, **said_also}]}


@dataclass
class Found:
    """What a build left out."""

    problems: list[Problem]
    repeated: int
    measured: list[str]
    use: str


def taken(room: Room, source: io.BytesIO, name: str = "helpdesk", **fields: Any) -> tuple[Dataset, Found]:
    made = uploaded(room, source, name, **{"card": CARD, **fields})
    recipe = DatasetBuild.objects.latest("pk").report
    problems = [Problem(**problem) for problem in recipe["problems"]]
    return made, Found(problems, recipe["duplicates"], recipe["measured"]["first"], use_of(recipe["kind"]))


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    with open_rows(dataset) as file:
        return [json.loads(line) for line in file]


def problems(found: Found) -> list[tuple[str, str]]:
    return [(problem.at, problem.field) for problem in found.problems]


def test_good_rows_are_taken_and_the_others_are_named(room: Room) -> None:
    made, found = taken(
        room,
        lines(
            chat("First?"),
            "{broken",
            chat("Third?"),
            {"messages": [{"role": "robot", "content": "x"}]},
            chat("Fifth?"),
            {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y", "tool_call_id": "c"}]},
            {"prompt": "only"},
            chat("Eighth?", ""),
            ["no object"],
            {"messages": "What is a lamp?"},
        ),
    )
    assert [row["task_id"] for row in rows(made)] == ["uploaded line 1", "uploaded line 3", "uploaded line 5"]
    assert problems(found) == [
        ("line 2", ""),
        ("line 4", "messages[0].role"),
        ("line 6", "messages[1].tool_call_id"),
        ("line 7", ""),
        ("line 8", "messages[1].content"),
        ("line 9", ""),
        ("line 10", "messages"),
    ]
    assert found.problems[-1].reason == '"What is a lamp?" is no list of messages'
    assert (made.recipe["lines"], made.recipe["problem_count"]) == (10, 7)
    assert made.recipe["problems"][1]["field"] == "messages[0].role"


def test_each_answer_is_a_row_and_what_has_no_weight_is_none(room: Room) -> None:
    talk = chat("One?", "1", weight=0)["messages"] + chat("Two?", "2")["messages"]
    (row,) = rows(taken(room, lines({"messages": talk}))[0])
    assert [message["content"] for message in row["prompt"]] == ["One?", "1", "Two?"]
    assert row["completion"] == [{"role": "assistant", "content": "2"}]


def test_sharegpt_with_calls(room: Room) -> None:
    talk = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
        {"from": "observation", "value": "sunny"},
        {"from": "gpt", "value": "Sunny."},
    ]
    tools = json.dumps([{"name": "weather", "description": "", "parameters": {}}])
    made, found = taken(room, lines({"conversations": talk, "tools": tools}, {"conversations": [{"from": "alien"}]}))
    first, last = rows(made)
    assert first["completion"][0]["tool_calls"][0]["function"]["name"] == "weather"
    assert last["completion"] == [{"role": "assistant", "content": "Sunny."}]
    assert first["tools"][0]["function"]["name"] == "weather"
    assert problems(found) == [("line 2", "conversations[0].from")]
    assert made.recipe["native_calls"] == 1


def test_preferences_with_a_prompt_and_without(room: Room) -> None:
    asked = {"role": "user", "content": "2 + 2?"}
    good, bad = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "5"}
    made, found = taken(
        room,
        lines(
            {"prompt": "3 + 3?", "chosen": "6", "rejected": "7"},
            {"chosen": [asked, good], "rejected": [asked, bad]},
            {"prompt": "1?", "chosen": "same", "rejected": "same"},
            {"chosen": "no", "rejected": "beginning"},
        ),
    )
    assert (made.kind, made.rows) == ("pairs", 2)
    assert [(row["prompt"][0]["content"], row["chosen"][0]["content"]) for row in rows(made)] == [
        ("3 + 3?", "6"),
        ("2 + 2?", "4"),
    ]
    assert problems(found) == [("line 3", "rejected"), ("line 4", "chosen")]


def test_thumbs_from_a_table_and_prompts(room: Room) -> None:
    made, found = taken(
        room, io.BytesIO(b"prompt,completion,label\nHi?,Hello!,True\nBye?,Go away,0\nWhat?,That,maybe\n")
    )
    assert [(row["completion"][0]["content"], row["label"]) for row in rows(made)] == [
        ("Hello!", True),
        ("Go away", False),
    ]
    assert (made.kind, problems(found)) == ("thumbs", [("row 4", "label")])
    assert found.use == "KTO can learn from it."
    asked, told = taken(room, lines({"prompt": "Write a poem"}), name="asked")
    assert asked.kind == "prompts"
    assert "no environment can score" in told.use


def group(*attempts: Any, prompt: str = "Hi?", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "attempts": list(attempts), **fields}


def attempt(said: Any = "Hello!", score: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"completion": said, "score": score, **fields}


def test_scored_attempts_of_a_request_are_compared_with_each_other(room: Room) -> None:
    later = [("assistant", "When?"), ("user", "Friday"), ("assistant", "Done")]
    talk = [{"role": role, "content": content} for role, content in later]
    made, found = taken(
        room,
        lines(
            group(attempt(logprobs=[-0.5, -1]), attempt("Go away", -0.5)),
            group(attempt(talk, 0.5), prompt="Book", group="book"),
        ),
    )
    about = [(row["group"], row["attempt"], row["score"], row.get("logprobs")) for row in rows(made)]
    assert about == [
        ("uploaded line 1", "line 1, attempt 1", 1.0, [-0.5, -1.0]),
        ("uploaded line 1", "line 1, attempt 2", -0.5, None),
        ("book", "line 2, attempt 1", 0.5, None),
        ("book", "line 2, attempt 1", 0.5, None),
    ]
    assert [len(row["prompt"]) for row in rows(made)] == [1, 1, 1, 3]
    scores = {"attempts": 3, "groups": 2, "telling": 1, "least": -0.5, "most": 1.0}
    assert made.recipe["scores"] == {**scores, "answers": 4, "recorded": 1}
    assert found.use == "AWR can learn from it."


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        (group(), "attempts", "is empty"),
        (group(attempt(), "Hello!"), "attempts[1]", '"Hello!" is not an object'),
        (group(attempt(score="good")), "attempts[0].score", '"good" is not a number from -10 to 1'),
        (group(attempt(), attempt(score=1.5)), "attempts[1].score", "1.5 is not a number from -10 to 1"),
        (group(attempt(score=True)), "attempts[0].score", "true is not a number from -10 to 1"),
        (group(attempt(logprobs=[-1, 0.5])), "attempts[0].logprobs[1]", "0.5 is not a number of at most 0"),
        (group(attempt(logprobs=-1)), "attempts[0].logprobs", "-1 is not a list"),
        (group(attempt(""), prompt="Hi?"), "attempts[0].completion[1].content", "is empty"),
        ({"attempts": [attempt()]}, "prompt", "is empty"),
        (group(attempt(), group=["a"]), "group", '["a"] is not a string'),
        ({"prompt": "Hi?", "attempts": None}, "attempts", "is null"),
    ],
)
def test_a_wrong_attempt_is_named_by_its_place(room: Room, row: Any, field: str, reason: str) -> None:
    _, found = taken(room, lines(group(attempt(), attempt("Go", 0)), row))
    assert found.problems == [Problem("line 2", field, reason)]


def test_nothing_that_is_measured_is_among_scored_attempts(room: Room) -> None:
    room.build.task(Split.SEALED, prompt=HELD_OUT)
    made, found = taken(room, lines(group(attempt(), attempt("Go", 0)), group(attempt("Done"), prompt=HELD_OUT)))
    assert (made.rows, found.measured) == (2, ["line 2"])


def test_parquet(room: Room) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([chat("A?"), chat("B?")]), file)
    assert taken(room, file)[0].rows == 2


def test_a_row_is_kept_once_and_nothing_that_is_measured(room: Room) -> None:
    room.build.task(Split.SEALED, prompt="Cancel my lunch with Bako on tuesday")
    made, found = taken(
        room, lines(chat("Hello?"), chat("hello?"), chat("cancel my lunch with bako on  Tuesday", "Done"))
    )
    assert (made.rows, found.repeated, found.measured) == (1, 1, ["line 3"])


@pytest.mark.parametrize(
    ("card", "field"), [({}, "licence"), ({"licence": " "}, "licence"), ({**CARD, "language": "x" * 101}, "language")]
)
def test_a_card_needs_a_licence(room: Room, card: dict[str, str], field: str) -> None:
    with pytest.raises(Refused) as error:
        taken(room, lines(chat()), card=card)
    assert error.value.field == field
    assert taken(room, lines(chat()), card={"licence": "unknown"})[0].card["licence"] == "unknown"


def test_a_name_has_numbered_versions(room: Room) -> None:
    first, _ = taken(room, lines(chat("A?")))
    again, _ = taken(room, lines(chat("A?")))
    second, _ = taken(room, lines(chat("B?")))
    relicensed, _ = taken(room, lines(chat("B?")), card={**CARD, "licence": "MIT"})
    assert [each.version for each in (first, again, second, relicensed)] == [1, 1, 2, 3]
    assert AuditEntry.objects.filter(action="training.dataset").count() == 3


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02", b"PAR1nothing", b'{"a": 1}\n'])
def test_a_file_without_a_row_is_refused(room: Room, content: bytes) -> None:
    with pytest.raises(Refused) as error:
        taken(room, io.BytesIO(content))
    assert error.value.field == "file"


def test_a_file_with_too_many_lines_is_taken_as_far_as_it_is_read(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded_rows, "MOST_LINES", 2)
    made, found = taken(room, lines(*(chat(f"{number}?") for number in range(4))))
    assert (made.rows, problems(found)) == (2, [("the rest", "")])


def test_a_run_learns_from_it_unless_its_program_reads_other_calls(room: Room) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    plain, _ = taken(room, lines(chat()))
    calls, _ = taken(room, lines(chat("Weather?", "", tool_calls=[call])), name="calls")
    assert room.launch(dataset=plain).dataset == plain
    text = room.build.version(weights=room.base.weights, form="json")
    room.base = text
    room.baseline = room.evaluated()
    with pytest.raises(Refused, match="makes native calls"):
        room.launch(dataset=calls)
    with pytest.raises(Refused, match="holds prompts of an upload"):
        room.launch(dataset=taken(room, lines({"prompt": "Hi?"}), name="asked")[0])


def test_a_mix_has_uploaded_rows_beside_those_of_tasks(room: Room) -> None:
    own = build(name="mail", kind="sft", task_set=room.task_set, actor=Actor(room.cast.trainer))
    plain, _ = taken(room, lines(chat("A?"), chat("B?")))
    both = dataset_mix.mix(name="both", parts=[(own, 1), (plain, 1)], actor=Actor(room.cast.trainer))
    found = [row for row in rows(both) if row["origin"] == "uploaded"]
    assert {row["environment"] for row in found} == {"mail"}
    assert {row["task_id"] for row in found} <= {"helpdesk/uploaded line 1", "helpdesk/uploaded line 2"}
    assert (both.task_set, both.task_sets) == (room.task_set, [room.task_set])
    with pytest.raises(Refused, match="put mail@1 first"):
        dataset_mix.mix(name="both", parts=[(plain, 1), (own, 1)], actor=Actor(room.cast.trainer))
    other, _ = taken(room, lines(chat("C?")), name="other")
    alone = dataset_mix.mix(name="alone", parts=[(plain, 1), (other, 1)], actor=Actor(room.cast.trainer))
    assert (alone.task_set, alone.is_placed) == (None, False)
    assert room.launch(dataset=alone).task_sets == [room.task_set]


@pytest.mark.parametrize("weight", [0, -1, True, float("nan"), 1e308])
def test_a_weight_that_is_none_is_refused_of_rows_from_elsewhere_too(room: Room, weight: Any) -> None:
    plain, _ = taken(room, lines(chat("A?")))
    other, _ = taken(room, lines(chat("C?")), name="other")
    with pytest.raises(Refused, match="is not a number above 0") as error:
        dataset_mix.check([(plain, 1), (other, weight)])
    assert error.value.field == "parts.1.weight"


def test_rows_from_elsewhere_are_in_a_mix_once(room: Room) -> None:
    """Versions of one name have rows of the same names."""
    first, _ = taken(room, lines(chat("A?")))
    second, _ = taken(room, lines(chat("C?")))
    with pytest.raises(Refused, match="helpdesk is there already") as error:
        dataset_mix.check([(first, 1), (second, 1)])
    assert error.value.field == "parts.1"


def test_a_line_whose_rows_are_too_long_is_named_and_the_others_are_taken(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_builder, "MOST_CHARACTERS", 20_000)
    long = [each for number in range(100) for each in chat(f"Number {number}?", "Yes")["messages"]]
    made, found = taken(room, lines(chat("First?"), {"messages": long}, chat("Third?")))
    assert [row["task_id"] for row in rows(made)] == ["uploaded line 1", "uploaded line 3"]
    (problem,) = found.problems
    assert problem.at == "line 2"
    assert "100 rows, each answer with all that came before it, are " in problem.reason
    assert " of 20,000 that a dataset may have 19," in problem.reason


def test_rows_of_a_line_share_their_messages() -> None:
    talk = [each for number in range(200) for each in chat(f"Number {number}?", "Yes")["messages"]]
    (line,) = uploaded_rows.read_rows(lines({"messages": talk})).lines()
    assert line is not None
    assert len(line.rows) == 200
    assert len({id(each) for row in line.rows for each in [*row["prompt"], *row["completion"]]}) == 400


def test_a_null_is_refused_by_field_and_changes_no_kind(room: Room) -> None:
    made, found = taken(
        room,
        lines(
            {"prompt": "Hi?", "completion": "Hello!", "label": None},
            {"prompt": "Bye?", "completion": "Bye!", "label": True},
            {"prompt": "Why?", "completion": None, "label": False},
        ),
    )
    assert (made.kind, made.rows, problems(found)) == ("thumbs", 1, [("line 1", "label"), ("line 3", "completion")])
    pairs, told = taken(
        room,
        lines(
            {"prompt": "3 + 3?", "chosen": "6", "rejected": None}, {"prompt": "3 + 3?", "chosen": "6", "rejected": "7"}
        ),
        name="pairs",
    )
    assert (pairs.kind, pairs.rows, problems(told)) == ("pairs", 1, [("line 1", "rejected")])
    talks, _ = taken(room, lines({**chat("A?"), "conversations": None, "completion": None}), name="talks")
    assert (talks.kind, talks.rows) == ("sft", 1)


def test_a_system_message_stands_first_or_nowhere(room: Room) -> None:
    system = {"role": "system", "content": "It is nine."}
    talk = chat("Hello?")["messages"]
    made, found = taken(room, lines({"messages": [system, *talk]}, {"messages": [*talk, system, *talk]}))
    assert (made.rows, problems(found)) == (1, [("line 2", "messages[2].role")])


HELD_OUT = "Cancel my lunch with Bako on tuesday"


def pair(rejected: list[tuple[str, str]], chosen: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    usual = [("assistant", "When?"), ("user", "On friday"), ("assistant", "Done.")]
    said = {"chosen": chosen or usual, "rejected": rejected}
    talks = {name: [{"role": role, "content": text} for role, text in turns] for name, turns in said.items()}
    return {"prompt": "Book a room for me", **talks}


def test_what_is_measured_does_not_come_in_through_what_is_rejected(room: Room) -> None:
    replay = room.build.environment("recorded")
    type(replay).objects.filter(pk=replay.pk).update(kind=KIND)
    begun = [("user", "Book a room for me"), ("assistant", "No."), ("user", "On friday")]
    messages = [{"role": role, "content": text} for role, text in begun]
    room.build.task(Split.HELD_OUT, prompt=HELD_OUT)
    room.build.task(Split.SEALED, replay, prompt="On friday", state={"messages": messages})
    made, found = taken(
        room,
        lines(
            pair([("assistant", "No!"), ("user", HELD_OUT), ("assistant", "Done.")]),
            pair([("assistant", "No."), ("user", "On friday"), ("assistant", "So?")]),
            pair([("assistant", "Later."), ("user", "On friday"), ("assistant", "So?")]),
        ),
    )
    assert [row["task_id"] for row in rows(made)] == ["uploaded line 3"]
    assert problems(found) == [("line 1", "rejected")]
    assert found.measured == ["line 2"]


def test_a_mix_with_native_calls_is_no_programs_that_reads_text(room: Room) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    calls, _ = taken(room, lines(chat("Weather?", "", tool_calls=[call])), name="calls")
    text = room.build.version(weights=room.base.weights, form="json")
    own = build(name="mail", kind="sft", task_set=room.task_set, version=text, actor=Actor(room.cast.trainer))
    both = dataset_mix.mix(name="both", parts=[(own, 1), (calls, 1)], actor=Actor(room.cast.trainer))
    assert dataset_builder.unfit(own, text) == ""
    assert "makes native calls" in dataset_builder.unfit(both, text)


def test_a_mix_opening_with_an_upload_is_written_for_whom_its_other_parts_are(room: Room) -> None:
    room.build.trajectory(label=Label.PASS)
    plain, _ = taken(room, lines(chat("A?")))
    own = frozen(room, Wanted(version=room.base))
    both = dataset_mix.mix(name="both", parts=[(plain, 1), (own, 1)], actor=Actor(room.cast.trainer))
    assert dataset_builder.unfit(both, room.base) == ""
    assert "is written for" in dataset_builder.unfit(both, room.build.version(system_prompt="Other."))


def test_what_was_made_of_a_trajectory_names_the_mixes_too(room: Room) -> None:
    row = room.build.trajectory(label=Label.PASS)
    plain, _ = taken(room, lines(chat("A?")))
    own = frozen(room, Wanted(version=room.base))
    both = dataset_mix.mix(name="both", parts=[(plain, 1), (own, 1)], actor=Actor(room.cast.trainer))
    assert both.recipe["from_traces"] == [row.trace_id]
    assert deletion.made_of(row).datasets == [own, both]


def measured_later(room: Room, prompt: str, answer: str) -> None:
    task = room.build.task(Split.HELD_OUT, prompt=prompt, target={"answer": answer})
    room.task_set.members.create(task=task, split=Split.HELD_OUT)


def test_a_large_one_is_compared_before_anybody_sees_it(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination_checks, "AT_ONCE", 1)
    made, _ = taken(room, lines(chat("First?"), chat(HELD_OUT, "Done.")))
    assert made.recipe["alike"] is None
    (check,) = contamination_checks.at_hand(made)
    assert (check.task_set, check.verdict) == (room.task_set, "clean")


@pytest.mark.parametrize("other", [chat("And the weather?", "Sunny."), chat("The weather?", "Sunny.")])
def test_what_is_measured_later_is_found_at_any_turn(room: Room, other: dict[str, Any]) -> None:
    talk = [*chat(HELD_OUT, "Cancelled.")["messages"], *other["messages"]]
    made, _ = taken(room, lines({"messages": talk}))
    measured_later(room, HELD_OUT, "Cancelled.")
    later = room.build.task_set(name="later")
    task = room.task_set.tasks.get(prompt=HELD_OUT)
    later.members.create(task=task, split=Split.HELD_OUT)
    assert contamination_checks.checked(made, later).report["counts"]["content"] == 1


def test_what_is_measured_later_is_found_in_a_turn_of_a_preference(room: Room) -> None:
    turns = [("assistant", "No!"), ("user", HELD_OUT), ("assistant", "Cancelled.")]
    made, _ = taken(room, lines(pair(turns, [("assistant", "Yes?"), *turns[1:]])))
    replay = room.build.environment("recorded")
    type(replay).objects.filter(pk=replay.pk).update(kind=KIND)
    begun = [{"role": "user", "content": "Book a room for me"}, {"role": "assistant", "content": "No!"}]
    messages = [*begun, {"role": "user", "content": HELD_OUT}]
    later = room.build.task_set(name="later")
    task = room.build.task(
        Split.HELD_OUT, replay, prompt=HELD_OUT, state={"messages": messages}, target={"answer": "Cancelled."}
    )
    later.members.create(task=task, split=Split.HELD_OUT)
    check = contamination_checks.checked(made, later)
    assert (check.verdict, check.report["counts"]["content"], check.report["train"]) == ("contaminated", 1, 1)


def test_nothing_long_is_done_under_the_lock(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    depth, found = len(connection.savepoint_ids), list[int]()

    def watched(real: Any, *given: Any) -> Any:
        found.append(len(connection.savepoint_ids))
        return real(*given)

    for module, name in ((contamination_checks, "check"), (dataset_files, "alike")):
        monkeypatch.setattr(module, name, partial(watched, getattr(module, name)))
    taken(room, lines(chat()))
    assert found == [depth, depth]
