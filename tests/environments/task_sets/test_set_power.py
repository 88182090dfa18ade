"""What a frozen set can show stands on its page and in the API, with what it assumes."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets import set_power as module
from flywheel.environments.task_sets.set_power import measured_scope, set_power
from flywheel.evals.models import EvalRun
from flywheel.promotions.models import Policy
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
Key = Callable[..., dict[str, str]]


def test_a_set_that_nobody_evaluated_is_planned_for_with_declared_defaults(build: Build) -> None:
    found = set_power(build.task_set(train=2, held_out=12))
    assert found is not None
    scope = found.measured.scope
    assert (scope.held_out.tasks, scope.sealed.tasks, scope.samples) == (12, 0, (16, 4))
    assert "assumed, as nothing was evaluated yet" in found.assumed
    arms = "4 attempts of the candidate at each task and 16 of the baseline"
    assert f"by the default policy: {arms}, 50% success, 3.0% invalid outputs" in found.assumed


def test_a_set_without_held_out_tasks_shows_nothing(build: Build) -> None:
    task_set = build.task_set(train=3, held_out=0)
    assert set_power(task_set) is None


def evaluated(build: Build, version: Version, task_set: TaskSet, passing: int) -> None:
    run = EvalRun.objects.create(
        project=task_set.project,
        created_by=build.cast.trainer,
        version=version,
        task_set=task_set,
        samples=2,
        total=2 * task_set.members.filter(split=Split.HELD_OUT).count(),
        state=State.SUCCEEDED,
        verifier_digest=task_set.environment_version.verifier_digest,
    )
    for number, member in enumerate(task_set.members.filter(split=Split.HELD_OUT)):
        for sample in range(2):
            run.results.create(
                task=member.task,
                sample=sample,
                seed=1,
                score=float(number < passing),
                success=number < passing,
                parts={"valid_json": 1.0},
            )


def test_the_rates_are_read_off_the_eval_of_the_version_that_is_meant(
    build: Build, django_assert_max_num_queries: Any
) -> None:
    task_set = build.task_set(train=2, held_out=12)
    first, second = build.version(), build.version(system_prompt="Answer in JSON.")
    evaluated(build, first, task_set, passing=3)
    evaluated(build, second, task_set, passing=9)
    newest, of_first = measured_scope(task_set), measured_scope(task_set, first.pk)
    assert newest is not None
    assert of_first is not None
    assert (newest.scope.rates.success, of_first.scope.rates.success) == (0.75, 0.25)
    assert (newest.scope.rates.invalid, newest.scope.rates.unsafe, newest.scope.samples) == (0.0, None, (2, 4))
    assert newest.source.endswith(f"of {second}")
    with django_assert_max_num_queries(4):
        set_power(task_set)


def test_of_a_large_eval_some_tasks_are_read(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task_set = build.task_set(train=2, held_out=12)
    evaluated(build, build.version(), task_set, passing=6)
    monkeypatch.setattr(module, "MOST_READ", 4)
    drawn = {round(measured.scope.rates.success * 4, 9) for _ in range(2) if (measured := measured_scope(task_set))}
    assert len(drawn) == 1, "the same ones each time"
    assert drawn <= {0.0, 1.0, 2.0, 3.0, 4.0}


def test_the_page_and_the_api_tell_it_by_the_policy_of_the_project(
    cast: Cast, build: Build, client: Client, key: Key, sign_in: Callable[[User], Client]
) -> None:
    task_set = build.task_set(train=2, held_out=12)
    address = reverse("environments:task_set", args=["acme", task_set.name, task_set.version])
    page = sign_in(cast.viewer).get(address).content.decode()
    assert "What this set can" in page
    assert "a regression could go unseen in" in page
    assert "Guards</dt>" not in page
    Policy.objects.create(project=cast.project, version=1, rules={"strict": True}, created_by=cast.admin)
    page = sign_in(cast.viewer).get(address).content.decode()
    assert "invalid outputs (" in page
    assert "A plan by policy@1" in page
    told = client.get(f"/api/v1/task-sets/{task_set.name}/{task_set.version}/power", headers=key("read")).json()
    assert [outlook["gain"] for outlook in told["outlooks"]] == [0.1, 0.2]
    assert told["outlooks"][1]["more"]["held_out"] > 100
    assert next(each for each in told["guards"] if each["name"] == "invalid outputs")["passes"] < 0.5
    assert list(told["falls"].values()) == [None], "twelve tasks are too few to be tested"
    assert "A plan by policy@1" in told["assumed"]


def test_a_set_that_measures_nothing_is_refused(build: Build, client: Client, key: Key) -> None:
    task_set = build.task_set(train=3, held_out=0)
    answer = client.get(f"/api/v1/task-sets/{task_set.name}/{task_set.version}/power", headers=key("read"))
    assert (answer.status_code, "no held-out tasks" in answer.json()["detail"]) == (422, True)
