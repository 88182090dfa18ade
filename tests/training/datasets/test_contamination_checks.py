"""A dataset beside every held-out set: found when it is built, kept for ever, and in the way of a launch."""

from typing import Any

import pytest
from django.db import DatabaseError, transaction

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Artifact
from flywheel.core.evidence.compared_items import Item
from flywheel.core.evidence.contamination import check
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task, TaskSet, TaskSetMember
from flywheel.environments.task_sets.suite_definitions import put, retire
from flywheel.training.datasets import contamination_checks
from flywheel.training.datasets.dataset_builder import build
from flywheel.training.models import ContaminationCheck, Dataset, TrainingRun
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


def made(room: Room, kind: str = "sft", name: str = "mail") -> Dataset:
    return build(name=name, kind=kind, task_set=room.task_set, actor=Actor(room.cast.trainer))


def another_set(room: Room, *held_out: Task, environment: Any = None) -> TaskSet:
    """A set that holds out these tasks."""
    environment = environment or room.build.environment("home")
    task_set = TaskSet.objects.create(
        project=room.cast.project,
        environment_version=environment.latest,
        name="home",
        version=next(room.build.numbers),
        digest="d",
        created_by=room.cast.builder,
    )
    TaskSetMember.objects.bulk_create(
        TaskSetMember(task_set=task_set, task=task, split=Split.HELD_OUT) for task in held_out
    )
    return task_set


def trained(room: Room) -> Task:
    return room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")


def say_alike(room: Room) -> None:
    """Requests that differ in a name."""
    for task in room.task_set.tasks.all():
        task.prompt = (
            f"Please put a meeting with {task.prompt.split()[1]} into my calendar on friday, as early as you can"
        )
        task.save()


def like(room: Room, task: Task, **fields: Any) -> Task:
    """A held-out task of another environment that asks and wants what this one does."""
    same = {"prompt": f" {task.prompt.upper()}!", "target": task.target}
    return room.build.task(Split.HELD_OUT, room.build.environment("home"), **{**same, **fields})


@pytest.mark.parametrize("kind", ["sft", "tasks"])
def test_it_is_checked_against_every_set_when_it_is_built(room: Room, kind: str) -> None:
    say_alike(room)
    other = another_set(room, like(room, trained(room)))
    dataset = made(room, kind)
    own, away = (ContaminationCheck.objects.get(dataset=dataset, task_set=each) for each in (room.task_set, other))
    assert (own.verdict, away.verdict) == ("warned", "contaminated")
    assert away.report["counts"]["content"] == 1
    assert own.report["train"] == dataset.rows
    assert own.report["held_out"] == 8


@pytest.mark.parametrize(
    ("fields", "level"),
    [({"cluster": ""}, "content"), ({"prompt": "Something else altogether", "target": {"tool": "x"}}, "source")],
)
def test_content_and_sources_are_seen_across_environments(room: Room, fields: dict[str, Any], level: str) -> None:
    task = trained(room)
    source = room.build.trajectory(task.prompt)
    Task.objects.filter(pk=task.pk).update(source=source)
    if level == "source":
        fields = {**fields, "source": source}
    dataset = made(room)
    check = contamination_checks.checked(dataset, another_set(room, like(room, task, **fields)))
    assert {name for name, count in check.report["counts"].items() if count} == {level}


def test_a_task_of_another_environment_with_the_same_number_is_another(room: Room) -> None:
    task = trained(room)
    away = room.build.task(Split.HELD_OUT, room.build.environment("home"), prompt="Quite another", number=task.number)
    assert contamination_checks.checked(made(room), another_set(room, away)).verdict == "clean"


def test_it_is_found_once_and_never_changes(room: Room, django_assert_num_queries: Any) -> None:
    dataset = made(room)
    check = contamination_checks.checked(dataset, room.task_set)
    with django_assert_num_queries(3):
        assert contamination_checks.checked(dataset, room.task_set) == check
    with pytest.raises(DatabaseError), transaction.atomic():
        ContaminationCheck.objects.filter(pk=check.pk).update(verdict="clean")


def test_a_set_that_was_frozen_later_is_made_up_for(room: Room) -> None:
    dataset = made(room)
    other = another_set(room, like(room, trained(room)))
    assert [check.task_set for check in contamination_checks.at_hand(dataset)] == [other, room.task_set]


def test_a_page_waits_for_no_long_check(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = made(room)
    another_set(room, like(room, trained(room)))
    monkeypatch.setattr(contamination_checks, "AT_ONCE", 3)
    assert [check.task_set for check in contamination_checks.at_hand(dataset)] == [room.task_set]
    assert contamination_checks.preview([], room.task_set) is None


def test_rows_that_the_storage_lost_are_checked_by_their_tasks(room: Room) -> None:
    dataset = made(room)
    lost = Dataset.objects.create(
        **{name: getattr(dataset, name) for name in ("project", "kind", "task_set", "digest", "created_by")},
        name="lost", version=1, rows=6, file="datasets/none.jsonl",
    )  # fmt: skip
    other = another_set(room, like(room, trained(room)))
    assert contamination_checks.checked(lost, other).verdict == "contaminated"


# It blocks


def contaminated(room: Room) -> Dataset:
    """A dataset of a set whose held-out part also has one of its train tasks, as no verb of ours would freeze it."""
    dataset = made(room)
    ContaminationCheck.objects.all().delete()
    held_out = room.task_set.tasks.filter(split=Split.HELD_OUT).earliest("number")
    task = trained(room)
    Task.objects.filter(pk=held_out.pk).update(prompt=task.prompt, target=task.target)
    return dataset


def test_a_launch_on_it_is_refused_whatever_the_reason(room: Room) -> None:
    dataset = contaminated(room)
    with pytest.raises(Refused, match=r"1 of 8 held-out tasks of mail@\d+ are in the training data.*asks and wants"):
        room.launch(dataset=dataset, override_reason="I know better")
    assert not TrainingRun.objects.exists()


def test_the_refusal_names_a_task_however_many_are_blocked(room: Room) -> None:
    ids = [f"mail/t-{number}" for number in range(40, 141)]
    report = check([Item(each, each) for each in ids], [Item(each, each) for each in ids])
    assert contamination_checks.refusal(report, room.task_set).startswith("101 of 101 held-out tasks of ")


def test_nothing_of_a_regression_suite_of_the_agent_is_trained_on(room: Room) -> None:
    golden = another_set(room, like(room, trained(room)))
    suite, _ = put(agent=room.base.agent, actor=Actor(room.cast.builder), name="golden", kind="safety", task_set=golden)
    with pytest.raises(Refused, match=r"1 of 1 held-out tasks of home@\d+ are.*golden@1 guards") as refused:
        room.launch(dataset=made(room))
    assert refused.value.field == "dataset"
    retire(suite=suite, actor=Actor(room.cast.builder), reason="practised from now on")
    room.launch(dataset=made(room))


def test_a_base_that_learnt_from_it_is_refused_too(room: Room) -> None:
    run = room.launch()
    weights = Artifact.objects.create(digest="b" * 64, manifest={}, kind="model", size=2_800_000)
    run.produced = room.build.version(weights=weights, parent=room.base)
    run.save()
    child = room.build.version(weights=weights, parent=run.produced)
    assert contamination_checks.datasets_of(child) == [run.dataset]
    ContaminationCheck.objects.all().delete()
    task = trained(room)
    other = another_set(room, like(room, task), environment=room.build.environment())
    TaskSetMember.objects.create(task_set=other, task=room.build.task(Split.TRAIN), split=Split.TRAIN)
    room.base = child
    room.evaluated(task_set=other)
    with pytest.raises(Refused, match="base: 1 of 1 held-out tasks"):
        room.launch(base=child, task_set=other)


# Duplicates


def test_rows_that_say_the_same_are_dropped_and_counted(room: Room) -> None:
    task = trained(room)
    twin = room.task_set.tasks.filter(split=Split.TRAIN).latest("number")
    Task.objects.filter(pk=twin.pk).update(prompt=f"{task.prompt}  ", target=task.target)
    dataset = made(room)
    assert (dataset.rows, dataset.recipe["duplicates"]) == (5, 1)


def test_requests_that_are_nearly_the_same_are_listed(room: Room) -> None:
    say_alike(room)
    listed = made(room).recipe["alike"]
    assert listed["requests"] == 5
    assert {"one", "other", "likeness", "asked", "also"} == set(listed["pairs"][0])


def test_sealed_tasks_are_guarded_as_held_out_ones_are(room: Room) -> None:
    task_set = another_set(room)
    sealed = like(room, trained(room))
    Task.objects.filter(pk=sealed.pk).update(split=Split.SEALED)
    TaskSetMember.objects.create(task_set=task_set, task=sealed, split=Split.SEALED)
    check = contamination_checks.checked(made(room), task_set)
    assert check.verdict == "contaminated"
    assert check.report["blocked"] == [f"home/{sealed}"]
    assert {(finding["asked"], finding["shared"]) for finding in check.report["findings"]} == {("", "")}
