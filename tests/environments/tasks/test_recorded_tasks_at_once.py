"""Two people, or one double click, at the very same moment: the rows decide, once."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from flywheel.accounts.actors import Actor
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.failures.labels.decisions import Superseded, decide
from flywheel.failures.models import Failure
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db(transaction=True)
RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The answers, or what was raised, of calls that start together."""
    gate = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def go(place: int, call: Callable[[], Any]) -> None:
        gate.wait()
        try:
            answers[place] = call()
        except Exception as error:
            answers[place] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=go, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


def test_of_two_reviewers_one_is_told_about_the_other(cast: Cast, build: Build) -> None:
    row = build.trajectory()
    answers = at_once(
        lambda: decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool", seen=0),
        lambda: decide(trajectory=row, actor=Actor(cast.builder), bucket="format_error", seen=0),
    )
    assert {type(answer) for answer in answers} == {Failure, Superseded}
    assert Failure.objects.filter(current=True).count() == 1


def test_ten_clicks_make_one_task(cast: Cast, build: Build) -> None:
    environment = build.environment()
    row = build.trajectory(answer="{", metadata={"state": {"people": ["Bako"]}})
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error", corrected=RIGHT)
    answers = at_once(*[lambda: task_from(failure=failure, environment=environment, actor=Actor(cast.builder))] * 10)
    assert sorted(is_new for _, is_new in answers) == [False] * 9 + [True]
    assert Task.objects.count() == 1


def test_ten_clicks_freeze_one_set(cast: Cast, build: Build) -> None:
    build.task(Split.TRAIN)
    build.task(Split.HELD_OUT)
    environment = build.environment()
    answers = at_once(*[lambda: freeze(environment=environment, name="mail", actor=Actor(cast.builder))] * 10)
    assert len({answer.pk for answer in answers}) == 1
    assert TaskSet.objects.count() == 1
