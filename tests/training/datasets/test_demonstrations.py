"""Trajectories as demonstrations: what is good is learnt, what failed stays in the prompt, what is measured is left."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from flywheel.agents.models import Version
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.failures.models import Decision, Failure
from flywheel.training.datasets import dataset_builder
from flywheel.training.datasets.contamination_checks import checked
from flywheel.training.datasets.dataset_builder import open_rows, unfit
from flywheel.training.datasets.demonstrations import Gathered, Wanted
from flywheel.training.models import Dataset
from flywheel.trajectories.models import Feedback, Label, Step, Trajectory
from tests.conftest import SYSTEM
from tests.training.conftest import Room, frozen

pytestmark = pytest.mark.django_db


def call(number: int, day: str = "friday") -> Message:
    return Message("assistant", "", (ToolCall(f"c{number}", "calendar.create_event", {"person": "Ada", "day": day}),))


def result(number: int, text: str = "done") -> Message:
    return Message("tool", text, tool_call_id=f"c{number}", name="calendar.create_event")


TALK = [
    Message("system", "You were another agent."),
    Message("user", "Put Ada into my calendar for the coming friday"),
    call(1, "monday"),
    result(1),
    call(2),
    result(2),
    Message("assistant", "Ada is in your calendar."),
]


def native(room: Room, **fields: Any) -> Version:
    return room.build.version(weights=room.base.weights, form="native", **fields)


def stored(room: Room, talk: list[Message] | None = None, **fields: Any) -> Trajectory:
    row = room.build.trajectory(label=Label.PASS, **fields)
    row.steps.all().delete()
    for position, message in enumerate(talk or TALK):
        Step.objects.create(
            trajectory=row,
            span_id=f"m{position}",
            position=position,
            kind=message.role,
            tool_call_id=message.tool_call_id,
            body={"output": [message.to_json()]},
        )
    return row


def failed_at(room: Room, row: Trajectory, step: str) -> None:
    Failure.objects.create(
        project=row.project,
        trajectory=row,
        decision=Decision.ADDED,
        bucket="wrong_argument",
        step=step,
        labelled_by=room.cast.reviewer,
    )
    Trajectory.objects.filter(pk=row.pk).update(label=Label.FAILURE, label_bucket="wrong_argument")


def feedback(row: Trajectory, value: Any, key: str = "helpful") -> None:
    Feedback.objects.create(
        project=row.project,
        trace_id=row.trace_id,
        key=key,
        value=value,
        score=float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None,
        source=Feedback.Source.END_USER,
        at=datetime.now(UTC),
        identity=f"{row.trace_id} {key} {value}",
        digest="",
    )
    Trajectory.objects.filter(pk=row.pk).update(feedback_count=1)


class Read(Gathered):
    """A choice, read to its end."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self.all = list(self.rows())


def reasons(found: Any) -> dict[str, int]:
    return {each["reason"]: each["count"] for each in found.reasons}


def test_each_thing_that_the_agent_said_is_a_row_in_the_versions_own_form(room: Room) -> None:
    row = stored(room)
    found = Read(Wanted(version=native(room)))
    assert [each["completion"] for each in found.all] == [
        [TALK[2].to_openai()],
        [TALK[4].to_openai()],
        [TALK[6].to_openai()],
    ]
    first, *_, last = found.all
    assert first["prompt"] == [{"role": "system", "content": SYSTEM}, TALK[1].to_openai()]
    assert last["prompt"][1:] == [message.to_openai() for message in TALK[1:6]]
    assert {"calendar.create_event", "email.send"} <= {tool["function"]["name"] for tool in first["tools"]}
    assert {(each["trajectory"], each["cluster"]) for each in found.all} == {(row.trace_id, row.cluster)}


def test_calls_are_written_in_the_text_form_of_a_version_that_has_one(room: Room) -> None:
    stored(room)
    version = room.build.version(form="json")
    first = Read(Wanted(version=version)).all[0]
    assert "tool_calls" not in first["completion"][0]
    assert json.loads(first["completion"][0]["content"])["tool"] == "calendar.create_event"


def test_a_failing_step_stands_in_the_context_and_is_nobodys_completion(room: Room) -> None:
    row = stored(room)
    failed_at(room, row, "m2")
    feedback(row, value=True)
    found = Read(Wanted(version=native(room)))
    assert [each["completion"] for each in found.all] == [[TALK[4].to_openai()], [TALK[6].to_openai()]]
    assert all(TALK[2].to_openai() in each["prompt"] for each in found.all)
    assert found.masked == 1


def test_the_call_of_a_tool_step_that_was_marked_is_masked(room: Room) -> None:
    row = stored(room)
    failed_at(room, row, "m5")
    found = Read(Wanted(version=native(room), good="filter"))
    assert [each["completion"] for each in found.all] == [[TALK[2].to_openai()], [TALK[6].to_openai()]]


def test_a_call_that_ended_in_an_error_is_masked(room: Room) -> None:
    stored(room, [*TALK[:3], result(1, "Error: no such person"), *TALK[4:]])
    found = Read(Wanted(version=native(room)))
    assert [each["completion"] for each in found.all] == [[TALK[4].to_openai()], [TALK[6].to_openai()]]


def test_a_cut_off_answer_is_masked(room: Room) -> None:
    row = stored(room)
    row.steps.filter(span_id="m6").update(finish_reason="length")
    assert len(Read(Wanted(version=native(room))).all) == 2


def test_learning_begins_where_it_is_asked_to(room: Room) -> None:
    row, version = stored(room), native(room)
    assert len(Read(Wanted(version=version, start=2)).all) == 2
    assert len(Read(Wanted(version=version, steps={row.trace_id: "m6"})).all) == 1
    assert reasons(Read(Wanted(version=version, start=9))) == {"nothing": 1}


def test_only_what_people_or_feedback_call_good_is_chosen(room: Room) -> None:
    liked, disliked, both, _, failed = (
        room.build.trajectory(f"Book the room number {number} for me") for number in range(5)
    )
    feedback(liked, value=1)
    feedback(disliked, value=False)
    feedback(both, value=True)
    feedback(both, value="failed", key="outcome")
    Trajectory.objects.filter(pk=failed.pk).update(label=Label.FAILURE)
    found = Read(Wanted(version=native(room)))
    assert {each["trajectory"] for each in found.all} == {liked.trace_id}
    assert reasons(found) == {"not_good": 3, "failure": 1}
    by_filter = Read(Wanted(version=native(room), good="filter", q="feedback.helpful:true"))
    assert {each["trajectory"] for each in by_filter.all} == {both.trace_id}


def test_a_thumb_is_the_reviewers_or_else_the_users(room: Room) -> None:
    liked, passed, disliked, failing, both, unmarked, _ = (
        stored(room, [Message("user", f"Book the room number {number} for me"), *TALK[2:]]) for number in range(7)
    )
    Trajectory.objects.exclude(pk=passed.pk).update(label="")
    feedback(liked, value=1)
    feedback(passed, value=False)
    feedback(disliked, value=False)
    failed_at(room, failing, "m1")
    feedback(failing, value=True)
    feedback(both, value=True)
    feedback(both, value="failed", key="outcome")
    Trajectory.objects.filter(pk=unmarked.pk).update(label=Label.FAILURE)
    found = Read(Wanted(version=native(room), good="thumbs"))
    assert (found.kind, reasons(found)) == ("thumbs", {"failure": 1, "no_thumb": 2})
    thumbs = [(each["trajectory"], each["label"], each["completion"][0]) for each in found.all]
    bad = [(trace, said) for trace, label, said in thumbs if not label]
    assert sorted(bad, key=str) == sorted(
        [(disliked.trace_id, TALK[6].to_openai()), (failing.trace_id, TALK[2].to_openai())], key=str
    ), "the last answer that the user saw; the step that the reviewer marked"
    assert {trace for trace, label, _ in thumbs if label} == {liked.trace_id, passed.trace_id}
    assert found.report["thumbs"] == {"true": 6, "false": 2}


def test_a_thumb_has_nothing_of_what_is_measured(room: Room) -> None:
    bad = stored(room, session_id="one")
    Trajectory.objects.update(label="")
    feedback(bad, value=False)
    room.build.task(Split.HELD_OUT, cluster="one")
    found = Read(Wanted(version=native(room), good="thumbs"))
    assert (found.all, reasons(found)) == ([], {"measured": 1})


def test_thumbs_are_frozen_and_learnt_by_kto_once_both_are_there(room: Room) -> None:
    good, wanted = stored(room), Wanted(version=room.base, good="thumbs")
    made = frozen(room, wanted)
    assert (made.kind, made.recipe["thumbs"]) == ("thumbs", {"true": 3})
    with pytest.raises(Refused, match="good@1 has 3 good answers and no bad one, and KTO needs both"):
        room.launch(dataset=made, algorithm="kto")
    bad = stored(room, [Message("user", "Book a room"), Message("assistant", "No.")])
    Trajectory.objects.exclude(pk=good.pk).update(label="")
    feedback(bad, value=False)
    run = room.launch(dataset=frozen(room, wanted), algorithm="kto")
    assert (run.dataset.version, run.dataset.recipe["thumbs"]) == (2, {"true": 3, "false": 1})


def test_each_answer_has_the_score_of_its_trajectory(room: Room) -> None:
    liked, disliked, halfway, passed, failing, unknown = (stored(room, session_id=str(each)) for each in range(6))
    Trajectory.objects.exclude(pk=passed.pk).update(label="")
    feedback(liked, value=True)
    feedback(disliked, value=False)
    feedback(halfway, value=0.4)
    feedback(halfway, value="failed", key="outcome")
    failed_at(room, failing, "m1")
    feedback(failing, value=True)
    found = Read(Wanted(version=native(room), good="scores"))
    assert (found.kind, reasons(found)) == ("scored", {"no_score": 1}), unknown
    scores = {each["attempt"]: each["score"] for each in found.all}
    ids = [row.trace_id for row in (liked, disliked, halfway, passed, failing)]
    assert scores == dict(zip(ids, (1.0, 0.0, 0.2, 1.0, 0.0), strict=True)), "a reviewer's word weighs most"
    assert {each["group"] for each in found.all} == {""}, "compared with all"
    assert len(found.all) == 15, "also of what was said where it failed"
    assert found.report["scores"]["attempts"] == 5


def test_what_was_recorded_of_an_answers_sampling_goes_with_its_score_where_the_prompt_is_the_same(room: Room) -> None:
    told = {"token_ids": [3, 1], "logprobs": [-0.5, 0.0]}
    ours, theirs = stored(room, [Message("system", SYSTEM), *TALK[1:]]), stored(room, session_id="other")
    for span, sampling in {"m2": told, "m4": {"token_ids": [1], "logprobs": [None]}, "m6": told}.items():
        for step in Step.objects.filter(trajectory__in=(ours, theirs), span_id=span):
            step.body = {**step.body, "sampling": sampling}
            step.save()
    found = Read(Wanted(version=native(room), good="scores"))
    of = {row.trace_id: [each for each in found.all if each["attempt"] == row.trace_id] for row in (ours, theirs)}
    assert [each.get("logprobs") for each in of[ours.trace_id]] == [[-0.5, 0.0], None, [-0.5, 0.0]]
    assert of[ours.trace_id][0]["token_ids"] == [3, 1]
    assert not any("logprobs" in each for each in of[theirs.trace_id]), "it was asked with another prompt"
    assert found.report["scores"]["recorded"] == 2


def test_a_rollout_is_never_one(room: Room) -> None:
    row = stored(room, source="rollout")
    found = Read(Wanted(version=native(room), good="filter", ids=[row.trace_id]))
    assert (found.all, reasons(found)) == ([], {"rollout": 1})


@pytest.mark.parametrize("split", [Split.HELD_OUT, Split.SEALED])
def test_nothing_that_is_measured_is_learnt(room: Room, split: str) -> None:
    own, session, asked, good = (
        stored(room, session_id="one"),
        stored(room, session_id="two"),
        stored(room, [Message("user", "Cancel my lunch with Bako on tuesday"), Message("assistant", "Done.")]),
        stored(room, [Message("user", "Tell Ada that I am late"), Message("assistant", "Told.")]),
    )
    room.build.task(split, source=own, cluster="other")
    room.build.task(split, cluster="two")
    room.build.task(split, prompt="cancel my lunch with  Bako on Tuesday")
    found = Read(Wanted(version=native(room)))
    assert {each["trajectory"] for each in found.all} == {good.trace_id}
    assert set(found.left_out["measured"]["first"]) == {own.trace_id, session.trace_id, asked.trace_id}


def test_what_is_said_twice_is_learnt_once(room: Room) -> None:
    stored(room)
    stored(room)
    found = Read(Wanted(version=native(room)))
    assert (len(found.all), found.repeated, reasons(found)) == (3, 3, {"duplicate": 1})


def test_it_is_frozen_as_a_numbered_dataset_that_the_version_can_learn_from(room: Room) -> None:
    row, version = stored(room), native(room)
    wanted = Wanted(version=version, q="label:pass after:7000d")
    made = frozen(room, wanted)
    assert (str(made), made.kind, made.origin, made.task_set, made.rows) == ("good@1", "sft", "trajectories", None, 3)
    assert "after:7000d" not in made.recipe["filter"], "it says the same later"
    Trajectory.objects.filter(pk=row.pk).delete()
    with open_rows(made) as file:
        assert {json.loads(line)["trajectory"] for line in file} == {row.trace_id}
    assert not unfit(made, version)
    assert unfit(made, room.build.version(system_prompt="Other."))


def test_a_trajectory_that_is_measured_later_blocks_the_dataset(room: Room) -> None:
    row = stored(room)
    made = frozen(room, Wanted(version=native(room)))
    task_set = room.build.task_set(name="later")
    assert checked(made, task_set).verdict == "clean"
    task = room.build.task(Split.HELD_OUT, source=row)
    later = room.build.task_set(name="latest")
    later.members.create(task=task, split=Split.HELD_OUT)
    assert checked(made, later).verdict == "contaminated"


def test_a_run_learns_from_it_and_is_measured_by_its_own_set(room: Room) -> None:
    stored(room)
    made = frozen(room, Wanted(version=room.base))
    run = room.launch(dataset=made)
    assert (run.dataset, run.task_sets) == (made, [room.task_set])
    with pytest.raises(Refused, match="holds demonstrations of trajectories"):
        room.launch(dataset=made, algorithm="dpo")


def test_nothing_left_says_why(room: Room) -> None:
    room.build.trajectory()
    with pytest.raises(Refused, match="1: not rated good, or rated bad"):
        frozen(room, Wanted(version=room.base))
    with pytest.raises(Refused, match="wrong_field"):
        Read(Wanted(version=room.base, q="wrong_field:1"))
    assert not Dataset.objects.exists()


@pytest.mark.parametrize("limit", ["rows", "characters"])
def test_older_ones_are_not_looked_at_once_the_rows_are_too_many(
    room: Room, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    rows = [
        stored(room, [Message("user", f"Book the room number {number}"), *TALK[2:]], started_at=datetime.now(UTC))
        for number in range(3)
    ]
    version = native(room)
    whole = Read(Wanted(version=version))
    assert (whole.chosen, whole.beyond, len(whole.all)) == (3, 0, 9)
    if limit == "rows":
        monkeypatch.setattr(dataset_builder, "MOST_ROWS", 7)
    else:
        monkeypatch.setattr(dataset_builder, "MOST_CHARACTERS", whole.characters - 1)
    found = Read(Wanted(version=version))
    assert (found.chosen, len(found.used), found.beyond, len(found.all)) == (2, 2, 1, 6)
    assert rows[0].trace_id not in {each["trajectory"] for each in found.all}


def test_one_that_is_too_long_by_itself_is_left_out_and_the_others_are_taken(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(room, [Message("user", "Cancel my lunch"), Message("assistant", "Done.")])
    long = stored(room)
    monkeypatch.setattr(dataset_builder, "MOST_ROWS", 2)
    found = Read(Wanted(version=native(room)))
    assert (len(found.all), found.left_out) == (1, {"too_long": {"count": 1, "first": [long.trace_id]}})


@pytest.mark.parametrize(("prompt", "opening"), [(SYSTEM, SYSTEM), ("", "It is nine.")])
def test_a_row_has_no_system_message_but_the_opening_one(room: Room, prompt: str, opening: str) -> None:
    talk = [
        Message("system", "It is nine."),
        Message("user", "Put Ada into my calendar"),
        Message("assistant", "When?"),
        Message("system", "It is ten."),
        Message("user", "On friday"),
        Message("assistant", "Done."),
    ]
    stored(room, talk)
    last = Read(Wanted(version=native(room, system_prompt=prompt))).all[-1]
    assert [message["role"] for message in last["prompt"]] == ["system", "user", "assistant", "user"]
    assert last["prompt"][0]["content"] == opening
    assert last["completion"] == [talk[-1].to_openai()]
