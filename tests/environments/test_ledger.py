"""Every opening of a held-out part, kept by one function and shown beside what rests on it."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.edge.jobs import State
from flywheel.environments import ledger
from flywheel.environments.models import Opening, Split, TaskSetMember
from flywheel.environments.versions import trials
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.rollout_looks import note_look
from tests.conftest import Build, Cast
from tests.pages import page_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


def an_eval(build: Build, split: str = Split.HELD_OUT, done: int = 8) -> EvalRun:
    return EvalRun.objects.create(
        project=build.cast.project,
        created_by=build.cast.trainer,
        version=build.version(),
        task_set=build.task_set(),
        split=split,
        samples=1,
        state=State.SUCCEEDED,
        done=done,
        total=8,
    )


def test_what_goes_on_is_one_opening_and_each_look_counts(build: Build, cast: Cast) -> None:
    task_set = build.task_set()
    for times in (1, 1):
        ledger.opened(
            task_set=task_set, kind=Opening.Kind.EVAL, subject="eval 5", actor=Actor(cast.trainer), times=times
        )
    for times in (1, 2, 3):
        ledger.opened(task_set=task_set, kind=Opening.Kind.TRAINING, subject="r-3", times=times)
    for _ in range(2):
        ledger.opened(task_set=task_set, kind=Opening.Kind.PAGE, subject="eval 5", actor=Actor(cast.viewer))
    found = ledger.openings(task_set)
    assert (found.times, found.evals, found.runs, found.people) == (4, 1, 1, 1)
    assert found.words == "by 1 eval and 1 training run; 1 person looked into it"
    assert Opening.objects.get(kind=Opening.Kind.PAGE).times == 2
    assert ledger.openings(build.task_set()).words == "not measured yet"


def test_tasks_that_stand_in_other_sets_bring_their_openings_along(build: Build, cast: Cast, sign_in: SignIn) -> None:
    old, looked = build.task_set(held_out=8), build.task_set(held_out=2)
    ledger.opened(task_set=old, kind=Opening.Kind.EVAL, subject="eval 5", actor=Actor(cast.trainer), times=10)
    ledger.opened(task_set=old, kind=Opening.Kind.PAGE, subject="eval 5", actor=Actor(cast.viewer))
    ledger.opened(task_set=looked, kind=Opening.Kind.EXPORT, subject="served to others")
    later = build.task_set(held_out=2)
    for task_set in (old, looked):
        TaskSetMember.objects.bulk_create(
            TaskSetMember(task_set=later, task=task, split=Split.HELD_OUT)
            for task in task_set.tasks.filter(split=Split.HELD_OUT)
        )
    found = ledger.openings(later)
    assert (found.times, found.evals, found.people) == (7, 0, 2), "8 of 12 tasks, ten times"
    assert found.words == "10 times in other sets, which have 8 of these 12 tasks; 2 people looked into it"
    page = sign_in(cast.viewer).get(reverse("environments:task_set", args=["acme", later.name, later.version]))
    assert "in this set; who measured its tasks in others stands on theirs" in page_of(page)
    ledger.opened(task_set=later, kind=Opening.Kind.EVAL, subject="eval 6", times=1)
    assert ledger.openings(later).times == 8
    assert ledger.openings(later).words.startswith("by 1 eval; 10 times in other sets, which have 8 of these 12 tasks")
    assert ledger.openings(old).times == 11, "an eval of the later set measured all of these"
    trained = build.task_set(held_out=1)
    TaskSetMember.objects.create(task_set=trained, task=later.tasks.earliest("pk"), split=Split.TRAIN)
    assert ledger.openings(trained).words == "not measured yet"


def test_the_openings_of_many_sets_cost_what_those_of_one_do(build: Build, django_assert_num_queries: Any) -> None:
    sets = [build.task_set() for _ in range(4)]
    with django_assert_num_queries(3):
        ledger.openings_of(sets)


def test_the_budget_is_spent_by_measuring_not_by_looking(build: Build, cast: Cast) -> None:
    task_set = build.task_set()
    ledger.opened(task_set=task_set, kind=Opening.Kind.PAGE, subject="eval 5", actor=Actor(cast.viewer), times=99)
    assert not ledger.openings(task_set).is_spent
    ledger.opened(task_set=task_set, kind=Opening.Kind.EVAL, subject="eval 5", times=ledger.BUDGET)
    assert ledger.openings(task_set).is_spent


@pytest.mark.parametrize(("split", "done", "times"), [("held_out", 8, 1), ("held_out", 0, 0), ("train", 8, 0)])
def test_only_held_out_rollouts_are_an_opening(build: Build, cast: Cast, split: str, done: int, times: int) -> None:
    note_look(an_eval(build, split, done), Actor(cast.viewer))
    assert Opening.objects.count() == times


def test_pages_and_the_api_are_looks(
    build: Build, cast: Cast, sign_in: SignIn, key: Callable[..., dict[str, str]], client: Client
) -> None:
    run = an_eval(build)
    sign_in(cast.viewer).get(reverse("evals:run", args=["acme", run.pk]))
    client.get(f"/api/v1/evals/{run.pk}/results", headers=key("read"))
    assert list(Opening.objects.order_by("kind").values_list("kind", "subject", "actor__username")) == [
        ("export", f"eval {run.pk}", "admin"),
        ("page", f"eval {run.pk}", "viewer"),
    ]


@pytest.mark.parametrize("page", ["set", "environment"])
def test_a_list_shows_what_held_out_tasks_ask_only_where_they_are_chosen_and_that_is_a_look(
    build: Build, cast: Cast, sign_in: SignIn, page: str
) -> None:
    task_set, client = build.task_set(train=2, held_out=2), sign_in(cast.viewer)
    environment = task_set.environment_version.environment.name
    address = {
        "set": reverse("environments:task_set", args=["acme", task_set.name, task_set.version]),
        "environment": reverse("environments:environment", args=["acme", environment]),
    }[page]
    asked = {split: task_set.tasks.filter(split=split).earliest("pk").prompt for split in ("train", "held_out")}
    text = client.get(address).content.decode()
    assert asked["train"] in text
    assert asked["held_out"] not in text
    client.get(f"{address}?split=train")
    assert not Opening.objects.exists(), "nobody has read what is not trained on"
    for _ in range(2):
        assert asked["held_out"] in client.get(f"{address}?split=held_out").content.decode()
    look = task_set.openings.get()
    assert (look.kind, look.subject, look.actor, look.times) == ("page", "its tasks", cast.viewer, 2)


def test_the_table_of_a_run_that_goes_on_is_one_look_however_often_it_asks(
    build: Build, cast: Cast, sign_in: SignIn
) -> None:
    run, client = an_eval(build, done=0), sign_in(cast.viewer)
    address = reverse("evals:matrix", args=["acme", run.pk])
    client.get(address)
    assert not Opening.objects.exists(), "there was nothing to see"
    EvalRun.objects.filter(pk=run.pk).update(done=4)
    for _ in range(3):
        client.get(address)
    look = Opening.objects.get()
    assert (look.subject, look.actor, look.times) == (str(run), cast.viewer, 1)


def test_a_comparison_is_a_look_at_both_its_runs(build: Build, cast: Cast, sign_in: SignIn) -> None:
    new, old = an_eval(build), an_eval(build)
    task = new.task_set.tasks.all()[0]
    sign_in(cast.viewer).get(reverse("evals:changed", args=["acme", new.pk, old.pk, task.number]))
    assert set(Opening.objects.values_list("task_set", "subject")) == {
        (run.task_set_id, str(run)) for run in (new, old)
    }


def test_a_verifier_is_tried_on_train_tasks_unless_others_are_named_and_that_is_a_look(
    build: Build, cast: Cast
) -> None:
    environment = build.environment()
    verifier = {"kind": "rubric", "parts": [{"type": "regex", "name": "any", "pattern": "."}]}

    def tried(*numbers: int) -> list[int]:
        job = trials.submit(
            environment=environment, verifier=verifier, actor=Actor(cast.builder), key=uuid.uuid4(), tasks=numbers
        )
        return list(job.tasks)

    first = build.task_set(train=0, held_out=1)
    assert tried() == [first.tasks.get().number], "where there is nothing else"
    assert [look.task_set for look in Opening.objects.all()] == [first]
    both = build.task_set(train=2, held_out=2)
    train = both.tasks.filter(split=Split.TRAIN).order_by("-pk").values_list("number", flat=True)
    assert tried() == list(train)
    assert Opening.objects.count() == 1
    held_out = both.tasks.filter(split=Split.HELD_OUT).values_list("number", flat=True)
    tried(*held_out, *train)
    look = both.openings.get()
    assert (look.kind, look.subject, look.actor, look.times) == ("page", "verifier of mail tried", cast.builder, 1)


def test_the_task_set_shows_who_opened_it(
    build: Build, cast: Cast, sign_in: SignIn, key: Callable[..., dict[str, str]], client: Client
) -> None:
    task_set = build.task_set()
    ledger.opened(
        task_set=task_set, kind=Opening.Kind.EVAL, subject="eval 5", actor=Actor(cast.trainer), times=ledger.BUDGET
    )
    address = reverse("environments:task_set", args=["acme", task_set.name, task_set.version])
    text = sign_in(cast.viewer).get(address).content.decode()
    assert "eval 5" in text
    assert f"Opened {ledger.BUDGET} times" in text
    assert sign_in(cast.stranger).get(address).status_code == 404
    place = f"/api/v1/task-sets/{task_set.name}/{task_set.version}"
    (item,) = client.get(f"{place}/openings", headers=key("read")).json()["items"]
    assert (item["kind"], item["subject"], item["actor"], item["times"]) == ("eval", "eval 5", "trainer", ledger.BUDGET)
    assert client.get(place, headers=key("read")).json()["opened"] == ledger.BUDGET
    assert client.get(f"{place}/openings", headers=key("ingest")).status_code == 403
    elsewhere = key("read", by=cast.stranger, project=cast.elsewhere)
    assert client.get(f"{place}/openings", headers=elsewhere).status_code == 404
