"""Several datasets as one: rows by weight, each told where it belongs, none of any held-out task."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core import digests
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, TaskSet, TaskSetMember
from flywheel.training.datasets.contamination_checks import checked
from flywheel.training.datasets.dataset_builder import build, open_rows
from flywheel.training.datasets.dataset_mix import draft, mix, shares
from flywheel.training.models import Dataset
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


def other_set(room: Room, name: str = "calendar", train: int = 3) -> TaskSet:
    """A set of another environment whose tasks bear the same numbers as the room's."""
    environment = room.build.environment(name)
    numbers = list(room.task_set.tasks.filter(split=Split.TRAIN).values_list("number", flat=True))
    tasks = [
        room.build.task(Split.TRAIN, environment, number=number, prompt=f"{name} {number}", bucket="wrong_tool")
        for number in numbers[:train]
    ]
    tasks += [room.build.task(Split.HELD_OUT, environment, prompt=f"{name} held {number}") for number in range(3)]
    made = TaskSet.objects.create(
        project=room.cast.project,
        environment_version=environment.latest,
        name=name,
        version=1,
        digest=digests.digest([task.digest for task in tasks]),
        created_by=room.cast.builder,
    )
    TaskSetMember.objects.bulk_create([TaskSetMember(task_set=made, task=task, split=task.split) for task in tasks])
    return made


def of(room: Room, task_set: TaskSet, kind: str = "tasks") -> Dataset:
    return build(name=task_set.name, kind=kind, task_set=task_set, actor=Actor(room.cast.trainer))


def mixed(room: Room, *parts: tuple[Dataset, float]) -> Dataset:
    return mix(name="both", parts=parts, actor=Actor(room.cast.trainer))


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    with open_rows(dataset) as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("kind", ["tasks", "sft"])
def test_rows_say_where_they_belong_and_come_by_weight(room: Room, kind: str) -> None:
    mail, calendar = of(room, room.task_set, kind), of(room, other_set(room), kind)
    both = mixed(room, (mail, 1), (calendar, 2))
    found = rows(both)
    assert (both.rows, both.kind, both.task_set) == (9, kind, room.task_set)
    assert Counter(row["environment"] for row in found) == {"mail": 3, "calendar": 6}
    assert all(row.get("task_id", row.get("id", "")).startswith(row["environment"] + "/") for row in found)
    assert [(part["name"], part["rows"], part["of"]) for part in both.mix] == [(str(mail), 3, 6), (str(calendar), 6, 3)]
    assert set(Counter(json.dumps(row) for row in found if row["environment"] == "calendar").values()) == {2}


def test_the_same_parts_and_weights_are_the_same_mix(room: Room) -> None:
    mail, calendar = of(room, room.task_set), of(room, other_set(room))
    assert mixed(room, (mail, 1), (calendar, 2)) == mixed(room, (mail, 1), (calendar, 2))
    assert mixed(room, (mail, 1), (calendar, 1)) != mixed(room, (mail, 1), (calendar, 2))


def test_it_is_checked_against_the_held_out_tasks_of_every_environment(room: Room) -> None:
    calendar = other_set(room)
    held_out = calendar.tasks.filter(split=Split.HELD_OUT).earliest("number")
    train = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    type(train).objects.filter(pk=train.pk).update(prompt=held_out.prompt, target=held_out.target)
    parts = (of(room, room.task_set), 1.0), (of(room, calendar), 1.0)
    with pytest.raises(Refused, match=r"held-out tasks of calendar@1 are in the training data"):
        mixed(room, *parts)
    assert not Dataset.objects.filter(name="both").exists()


def test_tasks_of_the_same_number_in_two_environments_are_not_one(room: Room) -> None:
    calendar = other_set(room)
    both = mixed(room, (of(room, room.task_set), 1), (of(room, calendar), 1))
    for task_set in (room.task_set, calendar):
        assert checked(both, task_set).verdict == "clean"


def test_what_does_not_go_together_is_refused_and_named(room: Room) -> None:
    mail, calendar = of(room, room.task_set), of(room, other_set(room))
    both = mixed(room, (mail, 1), (calendar, 1))
    assert calendar.task_set is not None
    refused: list[tuple[list[tuple[Dataset, Any]], str]] = [
        ([(mail, 1)], "parts: 1 datasets are no mix"),
        ([(mail, 1), (mail, 1)], "parts.1: mail is there already"),
        ([(mail, 1), (both, 1)], r"parts.1: both@1 is a mix itself"),
        ([(mail, 1), (of(room, calendar.task_set, "sft"), 1)], r"parts.1: calendar@2 holds demonstrations"),
        ([(mail, 1), (calendar, 0)], "parts.1.weight: 0 is not a number above 0"),
        ([(mail, 1), (calendar, float("nan"))], "parts.1.weight: nan is not a number above 0"),
        ([(mail, 1), (calendar, 1e308)], "parts.1.weight: 1e[+]308 is not a number above 0"),
    ]
    for parts, said in refused:
        with pytest.raises(Refused, match=said):
            draft(parts)


def test_the_page_shows_what_weights_give_and_writes_it(room: Room, sign_in: Callable[[User], Client]) -> None:
    mail, calendar = of(room, room.task_set), of(room, other_set(room))
    page, trainer = "/p/acme/training/datasets/mix/", sign_in(room.cast.trainer)
    asked = {"kind": "tasks", f"w{mail.pk}": "1", f"w{calendar.pk}": "2", "first": str(calendar.pk), "name": "both"}
    assert "9 rows, always in the same shuffled order" in trainer.get(page, asked).content.decode()
    written = trainer.post(page, asked)
    made = Dataset.objects.get(name="both")
    assert (written.status_code, written["Location"]) == (302, "/p/acme/training/datasets/both/1/")
    assert made.task_set == calendar.task_set
    assert str(mail) in trainer.get(written["Location"]).content.decode()
    wrong = trainer.post(page, {**asked, f"w{mail.pk}": "lots"})
    assert (wrong.status_code, "expected a number above 0" in wrong.content.decode()) == (422, True)


def test_the_page_begins_with_the_kind_of_the_newest_dataset(room: Room, sign_in: Callable[[User], Client]) -> None:
    of(room, room.task_set)
    newest = of(room, room.task_set, "sft")
    page = sign_in(room.cast.trainer).get("/p/acme/training/datasets/mix/")
    assert [row["dataset"] for row in page.context["rows"]] == [newest]


def test_the_launch_form_leads_to_the_audit_that_is_missing(room: Room, sign_in: Callable[[User], Client]) -> None:
    calendar = other_set(room)
    both = mixed(room, (of(room, room.task_set), 1), (of(room, calendar), 1))
    asked = {"base": str(room.base), "task_set": str(room.task_set), "algorithm": "grpo", "dataset": str(both)}
    page = sign_in(room.cast.trainer).get("/p/acme/training/launch/", asked).content.decode()
    assert "Locked." in page
    assert "task_set=calendar%401" in page
    assert f"reward/?version={quote(str(room.base))}&amp;task_set={quote(str(room.task_set))}" not in page


def test_a_runs_page_says_what_it_did_to_the_other_environments(room: Room, sign_in: Callable[[User], Client]) -> None:
    calendar = other_set(room)
    both = mixed(room, (of(room, room.task_set, "sft"), 1), (of(room, calendar, "sft"), 1))
    run = room.launch(dataset=both)
    run.produced = room.build.version(parent=room.base)
    run.save()
    page = f"/p/acme/training/runs/{run.pk}/"
    before = room.evaluated(task_set=calendar)
    assert "On calendar@1 too" not in sign_in(room.cast.viewer).get(page).content.decode()
    after = room.evaluated(task_set=calendar, success=[True])
    type(after).objects.filter(pk=after.pk).update(version=run.produced)
    shown = sign_in(room.cast.viewer).get(page).content.decode()
    assert "On calendar@1 too" in shown
    assert f"/p/acme/evals/{after.pk}/against/{before.pk}/" in shown


def test_programs_mix_too_and_learn_what_is_wrong(room: Room, client: Client, key: Callable[..., Any]) -> None:
    mail, calendar = of(room, room.task_set), of(room, other_set(room))

    def post(parts: list[dict[str, Any]]) -> Any:
        body = {"name": "both", "parts": parts}
        return client.post("/api/v1/datasets/mix", body, content_type="application/json", headers=key("train"))

    made = post([{"dataset": str(mail), "weight": 3}, {"dataset": str(calendar)}])
    assert (made.status_code, made.json()["rows"]) == (201, 9)
    assert "parts: 1 datasets are no mix" in post([{"dataset": str(mail)}]).json()["detail"]


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0.05, 20)), min_size=2, max_size=6),
)
def test_shares_follow_the_weights_and_add_up(parts: list[tuple[int, float]]) -> None:
    own, weights = [count for count, _ in parts], [weight for _, weight in parts]
    try:
        counts = shares(own, weights)
    except Refused:
        assert any(sum(own) * weight / sum(weights) > 100 * count for count, weight in parts)
        return
    assert sum(counts) >= sum(own)
    assert sum(counts) - sum(own) <= counts.count(1)
    exact = [sum(own) * weight / sum(weights) for weight in weights]
    assert all(abs(count - share) <= 1 or count == 1 for count, share in zip(counts, exact, strict=True))
