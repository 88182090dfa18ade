"""Rollouts as training data: collected on train tasks alone, filtered with every loss told, written once."""

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Split, Task
from flywheel.evals.models import EvalRun, Result
from flywheel.training.datasets import dataset_builder
from flywheel.training.datasets.dataset_builder import open_rows
from flywheel.training.models import Dataset, Dropped
from flywheel.training.rollouts import rollout_datasets, rollout_selection
from flywheel.training.rollouts.rollout_choice import Choice, read
from flywheel.training.rollouts.rollout_datasets import draft, write
from flywheel.training.rollouts.rollout_selection import (
    Rollout,
    drop,
    prefer,
    rollouts_of,
    select,
    take_back,
)
from flywheel.training.rollouts.selection_overview import listed, shown
from tests.pages import page_of
from tests.training.conftest import WRONG, Room, right

SignIn = Callable[[User], Client]
pytestmark = pytest.mark.django_db


def said(task: Task, sample: int) -> str:
    """The first sample is right, the second right in other words, the third wrong, the fourth right as the first."""
    words = [right(task), right(task).replace('"tool"', ' "tool" '), WRONG, right(task)]
    return words[sample]


@pytest.fixture
def run(room: Room) -> EvalRun:
    return room.evaluated(said, split=Split.TRAIN, samples=4, success=(True, True, False, True))


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    with open_rows(dataset) as file:
        return [json.loads(line) for line in file]


def written(room: Room, run: EvalRun, **chosen: Any) -> Dataset:
    return write(name="games", run=run, choice=read(chosen), actor=Actor(room.cast.trainer))


def steps(run: EvalRun, **chosen: Any) -> dict[str, int]:
    choice = read(chosen)
    return {step.name: step.out for step in prefer(select(rollouts_of(run), choice), choice).steps if step.out}


def test_held_out_rollouts_are_refused(room: Room) -> None:
    with pytest.raises(Refused, match="nobody may train"):
        written(room, room.evaluated(said, samples=2), alike="")
    assert not Dataset.objects.exists()


def test_every_filter_tells_what_it_left_out(room: Room, run: EvalRun) -> None:
    first = run.results.order_by("task__number", "sample").first()
    assert first is not None
    Result.objects.filter(pk=first.pk).update(score=None, success=None)
    other = run.results.filter(score=1.0).order_by("task__number", "sample").first()
    assert other is not None
    drop(result=other, reason="it guesses", actor=Actor(room.cast.trainer))
    assert steps(run, alike="1", cap="1") == {"unscored": 1, "dropped": 1, "reward": 6, "alike": 5, "cap": 5}
    made, _ = draft(run, read({"alike": "1", "cap": "1"}))
    assert [(step["before"], step["after"]) for step in made.recipe["steps"]][:3] == [(24, 23), (23, 22), (22, 22)]
    assert made.recipe["dropped"] == [
        {"rollout": str(other.trajectory and other.trajectory.trace_id), "reason": "it guesses"}
    ]


def test_demonstrations_come_of_good_rollouts_and_name_them(room: Room, run: EvalRun) -> None:
    made = written(room, run, alike="1", cap="1")
    found = rows(made)
    traces = set(run.results.filter(success=True).values_list("trajectory__trace_id", flat=True))
    assert len(found) == 6
    assert {row["rollouts"][0] for row in found} <= traces
    assert not any(row["completion"][0]["content"] == WRONG for row in found)
    assert {row["rewards"][0] for row in found} == {1.0}
    assert (made.kind, made.is_chosen_by_reward, made.recipe["policy"]) == ("sft", True, str(room.base))
    assert made.contamination_checks.get(task_set=room.task_set).verdict != "contaminated"
    assert written(room, run, alike="1", cap="1") == made


def test_nothing_is_chosen_by_reward_where_no_filter_looks_at_it(room: Room, run: EvalRun) -> None:
    assert not written(room, run, reward="", alike="", cap="").is_chosen_by_reward


def test_pairs_are_of_one_task_and_as_far_apart_as_wanted(room: Room, run: EvalRun) -> None:
    found = rows(written(room, run, form="pairs", gap="0.5", alike=""))
    assert len(found) == 6
    for row in found:
        assert row["rewards"][0] - row["rewards"][1] >= 0.5
        assert row["rejected"][0]["content"] == WRONG
        assert row["chosen"][0]["content"] != WRONG
    with pytest.raises(Refused, match="2 apart"):
        written(room, run, form="pairs", gap="2")


def test_prompts_are_tasks_that_are_solved_now_and_then(room: Room, run: EvalRun) -> None:
    easy = run.results.order_by("task__number").values_list("task", flat=True)[0]
    run.results.filter(task=easy).update(success=True, score=1.0)
    made = written(room, run, form="tasks")
    assert len(rows(made)) == 5
    assert {row["id"] for row in rows(made)} <= {str(task) for task in room.task_set.tasks.filter(split=Split.TRAIN)}
    assert made.recipe["steps"][-1]["before"] - made.recipe["steps"][-1]["after"] == 4


def test_a_part_that_is_missing_meets_no_condition(run: EvalRun) -> None:
    assert steps(run, parts="valid_json >= 1", reward="", alike="", cap="") == {}
    assert steps(run, parts="format >= 1", reward="", alike="", cap="") == {"format >= 1": 24}


@pytest.mark.parametrize(
    ("chosen", "field"),
    [
        ({"form": "dpo"}, "form"),
        ({"reward": "nan"}, "reward"),
        ({"alike": "0.2"}, "alike"),
        ({"cap": "1.5"}, "cap"),
        ({"parts": "format > 1"}, "parts"),
        ({"parts": f"format >= 1{'0' * 400}"}, "parts"),
        ({"solved_min": "0.9", "solved_max": "0.1"}, "solved_min"),
        ({"split": "held_out"}, "split"),
    ],
)
def test_a_wrong_choice_names_its_field(chosen: dict[str, str], field: str) -> None:
    with pytest.raises(Refused) as refused:
        read(chosen)
    assert refused.value.field == field


def test_a_choice_is_what_its_card_says(room: Room, run: EvalRun) -> None:
    choice = read({"parts": "valid_json >= 1", "alike": "", "turns": "3"})
    made = write(name="games", run=run, choice=choice, actor=Actor(room.cast.trainer))
    assert read(made.recipe["choice"]) == choice
    assert read(Choice().as_dict()) == Choice()


def test_a_drop_says_why_once_and_can_be_taken_back(room: Room, run: EvalRun) -> None:
    result = run.results.earliest("pk")
    with pytest.raises(Refused, match="why"):
        drop(result=result, reason="  ", actor=Actor(room.cast.trainer))
    drop(result=result, reason="cheats", actor=Actor(room.cast.trainer))
    assert drop(result=result, reason="another", actor=Actor(room.cast.trainer)).reason == "cheats"
    take_back(result=result, actor=Actor(room.cast.trainer))
    with pytest.raises(Stale):
        take_back(result=result, actor=Actor(room.cast.trainer))
    actions = AuditEntry.objects.filter(action__contains="rollout").values_list("action", flat=True)
    assert sorted(actions) == ["training.drop_rollout", "training.take_rollout_back"]
    with pytest.raises(IntegrityError), transaction.atomic():
        Dropped.objects.create(result=result, reason="", actor=room.cast.trainer)


def test_alike_are_attempts_at_one_task_that_call_and_end_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = " ".join(f"step {number} was taken" for number in range(2_000))

    def talk(last: str, to: str = "Bako") -> list[Message]:
        call = ToolCall("c", "mail.send", {"to": to})
        return [Message("user", begin), Message("assistant", tool_calls=(call,)), Message("assistant", last)]

    one = Rollout(1, 7, 1, 0, 1.0, True, {}, 9, 2, 1, "", is_synthetic=False)
    talks = [
        (7, talk("I sent it to him yesterday, as you wanted")),
        (7, talk("i sent it  to him yesterday, as you wanted.")),  # as the first
        (7, talk("I sent it to him yesterday, as you wanted", to="Ida")),
        (8, talk("I sent it to him yesterday, as you wanted")),  # a variant, say
        (7, talk("There is nobody of this name in the list of contacts")),
    ]
    made = [replace(one, pk=pk, task=task) for pk, (task, _) in enumerate(talks)]
    monkeypatch.setattr(rollout_selection, "conversations", lambda _: dict(enumerate(said for _, said in talks)))
    assert prefer(select(made, Choice(cap=None)), Choice(cap=None)).alike == {1: (0, 1.0)}


def test_nothing_is_built_of_what_was_dropped(room: Room, run: EvalRun) -> None:
    def learnt() -> int:
        made = dataset_builder.draft(kind="sft", task_set=room.task_set, rollouts=run)
        return sum(row["origin"] == "rollout" for row in made.rows)

    before = learnt()
    for result in run.results.filter(success=True):
        drop(result=result, reason="a customer's data", actor=Actor(room.cast.trainer))
    assert before > learnt() == 0


def test_the_page_filters_drops_and_writes(room: Room, run: EvalRun, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    address = f"/p/{room.cast.project.slug}/training/rollouts/{run.pk}/"
    page = client.get(f"{address}?reward=1&alike=1&cap=1")
    assert page.status_code == 200
    assert page.context["shown"].draft.recipe["from_rollouts"] == 6
    assert "Not 100% like a better one" in page_of(page)
    result = run.results.filter(success=False).earliest("pk")
    client.post(f"{address}{result.task.number}/{result.sample}/drop/?show=all", {"reason": "<b>odd</b>"})
    left = client.get(f"{address}?show=dropped")
    assert [row.rollout.pk for row in left.context["page"].items] == [result.pk]
    assert "&lt;b&gt;odd&lt;/b&gt;" in left.text
    wrong = client.get(f"{address}?reward=x")
    assert wrong.context["shown"].errors == {"reward": "'x' is not a number from -1e+06 to 1e+06"}
    refused = client.post(f"{address}write/?reward=1", {"name": "No Name"})
    assert refused.status_code == 422
    made = client.post(f"{address}write/?reward=1&alike=1&cap=1", {"name": "right"})
    dataset = Dataset.objects.get()
    assert made.headers["Location"].endswith(f"/datasets/right/{dataset.version}/")
    card = client.get(made.headers["Location"])
    assert "Reward at least 1" in card.text
    held_out = room.evaluated(said, samples=1)
    assert client.get(f"/p/{room.cast.project.slug}/training/rollouts/{held_out.pk}/").status_code == 409


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_collecting_that_goes_on_shows_how_far_it_is(room: Room, run: EvalRun, sign_in: SignIn, state: State) -> None:
    EvalRun.objects.filter(pk=run.pk).update(state=state)
    address = f"/p/{room.cast.project.slug}/training/rollouts/{run.pk}/"
    page = page_of(sign_in(room.cast.builder).get(address))
    assert f"/evals/{run.pk}/live/" in page
    assert "Stop eval" in page
    assert "Stop eval" not in page_of(sign_in(room.cast.viewer).get(address))


def test_why_collecting_failed_is_a_sentence_of_its_own(room: Room, run: EvalRun, sign_in: SignIn) -> None:
    EvalRun.objects.filter(pk=run.pk).update(state=State.FAILED, error_kind="engine", error="the server went away")
    page = sign_in(room.cast.trainer).get(f"/p/{room.cast.project.slug}/training/rollouts/{run.pk}/")
    assert "The server went away<br>" in page_of(page)


@pytest.mark.parametrize("form", ["sft", "pairs"])
def test_what_would_take_too_long_to_read_is_refused_with_a_way_out(
    room: Room, run: EvalRun, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    asked = {"form": form, "reward": "1", "alike": "", "cap": ""}
    assert shown(run, asked).problem == ""
    monkeypatch.setattr(rollout_datasets, "READ", 17)  # 24 attempts, 18 of them right
    found = shown(run, asked)
    assert (found.draft, "choose a higher reward" in found.problem) == (None, True)
    with pytest.raises(Refused, match="choose a higher reward or fewer tokens, or collect in parts"):
        written(room, run, **asked)
    assert shown(run, {"form": "tasks"}).problem != found.problem  # no text is read for prompts


def test_near_duplicates_are_looked_for_once(run: EvalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def alike(compared: list[Rollout], _: float) -> dict[int, tuple[int, float]]:
        looked.append(len(compared))
        return {}

    monkeypatch.setattr(rollout_selection, "_alike", alike)
    assert shown(run, {"form": "sft"}).draft is not None
    assert len(looked) == 1


def test_a_page_begins_after_the_last_of_the_one_before(room: Room, run: EvalRun) -> None:
    found = shown(run, {})
    seen, cursor = [], ""
    for _ in range(10):
        page = listed(found, "all", cursor, 7)
        seen += [row.rollout.pk for row in page.items]
        cursor = page.next_cursor
        if not cursor:
            break
    assert seen == [rollout.pk for rollout in found.rollouts]
    assert listed(found, "all", page.previous_cursor, 7).items[-1].rollout.pk == seen[-len(page.items) - 1]


def test_collecting_from_the_form(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    address = f"/p/{room.cast.project.slug}/training/rollouts/"
    assert client.get(address).status_code == 200
    asked = {"key": str(uuid.uuid4()), "task_set": str(room.task_set), "samples": "2", "seed": "7", "tokens": "5000"}
    both = client.post(address, {**asked, "version": str(room.base), "model": "m", "base_url": "http://127.0.0.1:1/v1"})
    assert both.status_code == 422
    teacher = {"base_url": "http://127.0.0.1:1/v1", "model": "Big/Model 7B"}
    for _ in range(2):  # a double click makes one
        made = client.post(address, {**asked, **teacher, "temperature": "0.5"})
    run = EvalRun.objects.get(seed=7)
    assert made.headers["Location"].endswith(f"/rollouts/{run.pk}/")
    assert (str(run.version), run.version.endpoint["model"]) == ("teacher-big-model-7b@1", "Big/Model 7B")
    assert (run.split, run.budget, run.sampling["temperature"]) == ("train", {"tokens": 5000}, 0.5)
    bad = client.post(address, {**asked, "key": str(uuid.uuid4()), **teacher, "base_url": "ftp://x"})
    assert bad.status_code == 422
    assert "not the address of a server" in bad.text


def test_the_api_says_the_same(room: Room, run: EvalRun, key: Any, client: Any) -> None:
    headers = key("read", "train")
    listed = client.get(f"/api/v1/rollouts/{run.pk}?alike=1&cap=1&limit=4", headers=headers).json()
    assert (listed["kept"], listed["rows"], len(listed["items"])) == (6, 6, 4)
    assert {item["left_out"] for item in listed["items"]} == {""}
    result = run.results.filter(success=True).earliest("task__number", "sample")
    place = f"/api/v1/rollouts/{run.pk}/t-{result.task.number}/{result.sample}/drop"
    assert client.put(place, {"reason": "no"}, content_type="application/json", headers=headers).status_code == 204
    body = {"name": "mine", "choice": {"form": "sft", "alike": 1, "cap": None}}
    made = client.post(f"/api/v1/rollouts/{run.pk}/dataset", body, content_type="application/json", headers=headers)
    assert made.status_code == 201
    assert made.json()["recipe"]["dropped"][0]["reason"] == "no"
    assert client.delete(place, headers=headers).status_code == 204
    assert client.delete(place, headers=headers).status_code == 409
    for field, wrong in (("form", []), ("form", {}), ("synthetic", None), ("reward", 10**400), ("cap", [[]])):
        sent = {"name": "mine", "choice": {field: wrong}}
        refused = client.post(
            f"/api/v1/rollouts/{run.pk}/dataset", sent, content_type="application/json", headers=headers
        )
        assert (refused.status_code, refused.json()["detail"][: len(field) + 1]) == (422, f"{field}:")
    held_out = room.evaluated(said, samples=1)
    assert client.get(f"/api/v1/rollouts/{held_out.pk}", headers=headers).status_code == 409
    asked = {"version": str(room.base), "task_set": str(room.task_set), "samples": 2, "budget": {"minutes": 1}}
    queued = client.post("/api/v1/rollouts", asked, content_type="application/json", headers=headers)
    assert (queued.status_code, queued.json()["split"], queued.json()["budget"]) == (201, "train", {"minutes": 1.0})


def test_scored_attempts_keep_the_worse_ones_and_each_repetition(room: Room, run: EvalRun) -> None:
    made = written(room, run, form="scored")
    assert made.kind == "scored"
    scores = {"attempts": 24, "groups": 6, "telling": 6, "least": 0.0, "most": 1.0}
    assert made.recipe["scores"] == {**scores, "answers": 24, "recorded": 0}
    assert made.is_chosen_by_reward
    assert all(row["rollouts"] == [row["attempt"]] and row["rewards"] == [row["score"]] for row in rows(made))
