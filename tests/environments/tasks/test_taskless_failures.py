"""Failures without a task: each says what making one would be refused with, and the list reads only its own page."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.core.traces import Message
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment
from flywheel.environments.tasks import taskless_failures
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.environments.tasks.taskless_failures import look_at, reasons_of, without_any_task
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure
from flywheel.trajectories.models import Source
from tests.conftest import Build, Cast
from tests.environments.tasks.test_replay_tasks import RIGHT, RUN, SCREAM, failed, replay, run
from tests.pages import page_of

__all__ = ["replay"]

pytestmark = pytest.mark.django_db

BROKEN: list[tuple[list[Message], dict[str, Any] | None, str, str]] = [
    (RUN, None, "s6", "no corrected action"),
    (RUN, SCREAM, "s6", "equals what the agent did"),
    ([*RUN[:4], *RUN[5:]], RIGHT, "s5", "a result of calendar.find without its call"),
    (RUN[:2], RIGHT, "", "no step is marked"),
]


@pytest.fixture
def broken(cast: Cast, build: Build) -> list[Failure]:
    return [failed(cast, run(build, messages), corrected, step) for messages, corrected, step, _ in BROKEN]


def test_the_reason_is_what_making_the_task_is_refused_with(
    cast: Cast, replay: Environment, broken: list[Failure]
) -> None:
    rows = look_at(without_any_task(cast.project).order_by("pk"))
    assert [row.failure for row in rows] == broken
    for row, (_, _, _, words) in zip(rows, BROKEN, strict=True):
        with pytest.raises(Refused) as refusal:
            task_from(failure=row.failure, environment=replay, actor=Actor(cast.builder))
        assert row.reason == str(refusal.value)
        assert words in row.reason
        assert not row.can_be_made
    assert reasons_of([*rows, rows[0]])[0] == (rows[0].reason, 2)


def test_what_can_be_a_task_is_ready_and_gone_once_it_is_one(cast: Cast, build: Build, replay: Environment) -> None:
    ready = failed(cast, run(build), RIGHT)
    same = failed(cast, run(build), RIGHT)
    decide(trajectory=run(build), actor=Actor(cast.reviewer), bucket="")
    failed(cast, run(build, source=Source.ROLLOUT), RIGHT)
    build.trajectory()
    assert [(row.failure, row.reason) for row in look_at(without_any_task(cast.project))] == [(same, ""), (ready, "")]
    task_from(failure=ready, environment=replay, actor=Actor(cast.builder))
    assert list(without_any_task(cast.project)) == [same]
    task_from(failure=same, environment=replay, actor=Actor(cast.builder))
    assert not without_any_task(cast.project).exists(), "one that same request has that task"


def test_the_page_names_what_is_missing_and_leads_to_the_desk(
    cast: Cast, build: Build, replay: Environment, broken: list[Failure], sign_in: Callable[[User], Client]
) -> None:
    failed(cast, run(build, title="<b>Meet</b>"), RIGHT)
    client, home = sign_in(cast.viewer), reverse("environments:taskless", args=[cast.project.slug])
    page = page_of(client.get(home))
    for _, _, _, words in BROKEN:
        assert words in page.lower()
    assert "&lt;b&gt;Meet" in page
    assert reverse("failures:review", args=[cast.project.slug, broken[0].trajectory.trace_id]) in page
    assert "<dt>With a corrected action</dt><dd>4</dd>" in page.replace("> <", "><")
    assert "equals what the agent did" not in page_of(client.get(home + "?corrected=no"))
    assert "no corrected action" not in page_of(client.get(home + "?corrected=yes"))
    assert "No matching failures" in page_of(client.get(home + "?bucket=wrong_tool"))
    for room in ("failures:index", "environments:index"):
        assert home in page_of(client.get(reverse(room, args=[cast.project.slug])))
    of_bucket = page_of(client.get(reverse("failures:bucket", args=[cast.project.slug, "wrong_arguments"])))
    assert f"{home}?bucket=wrong_arguments" in of_bucket


def test_programs_read_it_page_by_page(
    cast: Cast, broken: list[Failure], client: Client, key: Callable[..., dict[str, str]]
) -> None:
    path, headers = "/api/v1/failures/without-task", key(Scope.READ)
    first = client.get(path, {"limit": 3}, headers=headers).json()
    rest = client.get(path, {"limit": 3, "cursor": first["next"]}, headers=headers).json()
    assert [row["failure"] for row in [*first["items"], *rest["items"]]] == [each.pk for each in reversed(broken)]
    assert rest["next"] is None
    assert [row["can_be_made"] for row in first["items"]] == [False] * 3
    assert "no step is marked" in first["items"][0]["reason"]
    assert len(client.get(path, {"corrected": "false"}, headers=headers).json()["items"]) == 1
    assert client.get(path, {"bucket": "invented"}, headers=headers).status_code == 400


def test_only_the_page_that_is_shown_is_read(
    cast: Cast, build: Build, sign_in: Callable[[User], Client], django_assert_max_num_queries: Any
) -> None:
    client, home = sign_in(cast.viewer), reverse("environments:taskless", args=[cast.project.slug])
    for _ in range(2):
        failed(cast, run(build), RIGHT)
    with django_assert_max_num_queries(40) as few:
        assert client.get(home).status_code == 200
    for _ in range(6):
        failed(cast, run(build), RIGHT)
    with django_assert_max_num_queries(len(few)):
        assert page_of(client.get(home)).count("✓ ready") == 8
    assert taskless_failures.count(cast.project).corrected == (8, False)
