"""Regression suites of an agent: what one may say, that it never changes, and that nobody trains on it."""

from typing import Any

import pytest
from django.db import DatabaseError, transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Environment, Split, Suite, TaskSet
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.task_sets.suite_definitions import present, put, retire
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db


def test_a_suite_is_what_it_says_and_a_change_is_its_next_version(cast: Cast, build: Build) -> None:
    agent, first_set, next_set = build.agent(), build.task_set(), build.task_set()
    asked: dict[str, Any] = {"agent": agent, "actor": Actor(cast.builder), "name": "golden", "kind": "safety"}
    first, is_new = put(**asked, task_set=first_set)
    assert is_new
    assert (str(first), first.rule, first.measure, first.margin) == ("golden@1", "no_break", "success", None)
    assert put(**asked, task_set=first_set) == (first, False)
    with pytest.raises(Refused, match="golden@1 changes") as refused:
        put(**asked, task_set=next_set)
    assert refused.value.field == "reason"
    second, _ = put(**asked, task_set=next_set, reason="more tasks")
    first.refresh_from_db()
    assert (str(second), first.retired_why, first.retired_by) == ("golden@2", "more tasks", cast.builder)
    assert list(present(agent)) == [second]
    retire(suite=second, actor=Actor(cast.builder), reason="the product has no such feature now")
    assert not present(agent).exists()
    with pytest.raises(Stale, match="golden@2 is not present any more, it is retired"):
        retire(suite=second, actor=Actor(cast.builder), reason="again")
    third, _ = put(**asked, task_set=first_set)
    assert str(third) == "golden@3"
    told = AuditEntry.objects.filter(action__in=["environments.put_suite", "environments.retire_suite"])
    assert sorted(told.values_list("subject", flat=True)) == sorted(
        [f"{agent} golden@{number}" for number in (1, 2, 2, 3)]
    )


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"kind": "golden"}, "kind"),
        ({"name": "A b"}, "name"),
        ({"rule": "mean"}, "rule"),
        ({"kind": "general", "rule": "no_break"}, "rule"),
        ({"kind": "general", "measure": "safe"}, "measure"),
        ({"measure": "quick"}, "measure"),
        ({"margin": 0.1}, "margin"),
        ({"kind": "general", "margin": 5}, "margin"),
        ({"kind": "general", "margin": 0.0}, "margin"),
        ({"samples": 0}, "samples"),
    ],
)
def test_what_does_not_fit_is_named(cast: Cast, build: Build, changed: dict[str, Any], field: str) -> None:
    asked: dict[str, Any] = {"name": "golden", "kind": "safety", "task_set": build.task_set(), **changed}
    with pytest.raises(Refused) as refused:
        put(agent=build.agent(), actor=Actor(cast.builder), **asked)
    assert refused.value.field == field
    assert not Suite.objects.exists()


def test_a_set_without_held_out_tasks_is_no_suite(cast: Cast, build: Build) -> None:
    with pytest.raises(Refused, match="no held-out task"):
        put(
            agent=build.agent(), actor=Actor(cast.builder), name="a", kind="safety", task_set=build.task_set(held_out=0)
        )


def test_what_could_never_show_anything_is_refused(cast: Cast, build: Build) -> None:
    asked: dict[str, Any] = {"agent": build.agent(), "actor": Actor(cast.builder), "name": "a"}
    with pytest.raises(Refused, match="come from 4 sources; a general suite needs 5") as refused:
        put(**asked, kind="general", task_set=build.task_set(held_out=4))
    assert refused.value.field == "task_set"
    task_set = build.task_set(held_out=4)
    put(**asked, kind="safety", task_set=task_set)
    Environment.objects.update(kind="tictactoe")
    task_set = TaskSet.objects.get(pk=task_set.pk)
    with pytest.raises(Refused, match="never calls an attempt unsafe") as refused:
        put(**asked, kind="safety", measure="safe", task_set=task_set, reason="x")
    assert refused.value.field == "measure"


def test_the_database_refuses_to_change_a_suite(cast: Cast, build: Build) -> None:
    suite, _ = put(agent=build.agent(), actor=Actor(cast.builder), name="a", kind="general", task_set=build.task_set())
    for changed in ({"margin": 0.5}, {"samples": 2}, {"name": "b"}):
        with pytest.raises(DatabaseError, match="never change"), transaction.atomic():
            Suite.objects.filter(pk=suite.pk).update(**changed)
    retire(suite=suite, actor=Actor(cast.builder), reason="gone")
    with pytest.raises(DatabaseError, match="never change"), transaction.atomic():
        Suite.objects.filter(pk=suite.pk).update(retired_at=None)


def test_a_set_of_chosen_held_out_tasks_can_be_frozen_for_a_suite(cast: Cast, build: Build) -> None:
    environment = build.environment()
    held_out = [build.task(Split.HELD_OUT) for _ in range(3)]
    build.task(Split.TRAIN)
    made = freeze(environment=environment, name="golden", actor=Actor(cast.builder), tasks=held_out[:2])
    assert {member.task for member in made.members.select_related("task")} == set(held_out[:2])


def test_where_everything_is_only_measured_a_set_needs_no_training_task(cast: Cast, build: Build) -> None:
    environment = build.environment()
    environment.held_out_share = 1.0
    environment.save()
    build.task(Split.HELD_OUT)
    assert freeze(environment=environment, name="golden", actor=Actor(cast.builder)).members.count() == 1
