"""Task sets are frozen: once, only what is proved, and nothing changes them afterwards."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, InternalError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core import verifiers
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Split, TaskSet, TaskSetMember
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.task_sets.leaks import inside
from flywheel.environments.versions.environment_versions import environment_version
from tests.conftest import TOOLS, Build, Cast
from tests.pages import page_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def environment(build: Build) -> Environment:
    for split in (Split.TRAIN, Split.TRAIN, Split.HELD_OUT):
        build.task(split)
    return build.environment()


def test_freezing_the_same_twice_makes_one_set(cast: Cast, environment: Environment) -> None:
    first = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert freeze(environment=environment, name="mail", actor=Actor(cast.trainer)) == first
    assert (str(first), first.members.count()) == ("mail@1", 3)


def test_other_code_that_judges_makes_the_next_version_of_the_same_settings(
    cast: Cast, environment: Environment, sign_in: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or scores of an upgraded verifier would stand under the digest of the one before."""
    settings = {"config": environment.latest.config, "verifier": environment.latest.verifier}
    old = environment_version(environment=environment, actor=Actor(cast.builder), **settings)
    first = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    page = reverse("environments:environment", args=["acme", environment.name])
    warning = "code changed since"
    assert warning not in sign_in(cast.builder).get(page).content.decode()
    monkeypatch.setattr(verifiers, "REVISION", 99)
    assert warning in sign_in(cast.builder).get(page).content.decode()
    new = environment_version(environment=environment, actor=Actor(cast.builder), **settings)
    assert (new.number, new.digest) == (old.number + 1, old.digest)
    assert new.verifier_digest != old.verifier_digest
    assert warning not in sign_in(cast.builder).get(page).content.decode()
    second = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert (second.version, second.environment_version) == (2, new)
    assert freeze(environment=environment, name="mail", actor=Actor(cast.builder)) == second
    assert first.environment_version == old


def test_a_new_task_or_a_new_verifier_makes_the_next_version(
    cast: Cast, build: Build, environment: Environment
) -> None:
    first = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    build.task(Split.HELD_OUT)
    second = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    config = {"tools": TOOLS}
    verifier = {"kind": "tool_call", "weights": {"exact": 1}}
    environment_version(environment=environment, actor=Actor(cast.builder), config=config, verifier=verifier)
    third = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert [made.version for made in (first, second, third)] == [1, 2, 3]
    assert len({made.digest for made in (first, second, third)}) == 3
    assert first.members.count() == 3


def test_the_name_of_the_newest_set_is_offered_but_not_that_of_a_suite(
    cast: Cast, environment: Environment, sign_in: Callable[[User], Client]
) -> None:
    freeze(environment=environment, name="all", actor=Actor(cast.builder))
    golden = environment.tasks.filter(split=Split.HELD_OUT)
    freeze(environment=environment, name="golden", actor=Actor(cast.builder), tasks=list(golden))
    page = sign_in(cast.builder).get(f"/p/{cast.project.slug}/environments/e/{environment.name}/")
    assert re.search(r'<input id="set-name" name="name"[^>]* value="all"', page_of(page))


def test_only_proved_tasks_in_use_are_taken(cast: Cast, build: Build, environment: Environment) -> None:
    build.task(Split.TRAIN, is_proved=False)
    build.task(Split.TRAIN, retired_at=timezone.now() - timedelta(days=1))
    made = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert made.members.count() == 3


@pytest.mark.parametrize("missing", [Split.TRAIN, Split.HELD_OUT])
def test_a_set_without_one_of_its_splits_is_refused(cast: Cast, build: Build, missing: Split) -> None:
    build.task(Split.HELD_OUT if missing == Split.TRAIN else Split.TRAIN)
    with pytest.raises(Refused, match=f"no proved {missing.label.lower()} task"):
        freeze(environment=build.environment(), name="mail", actor=Actor(cast.builder))


@pytest.mark.parametrize("name", ["", "Mail", "a b", "-a", "x" * 101, "a@1"])
def test_a_name_that_cannot_stand_in_an_address_is_refused(cast: Cast, environment: Environment, name: str) -> None:
    with pytest.raises(Refused, match="name"):
        freeze(environment=environment, name=name, actor=Actor(cast.builder))


def test_tasks_that_contradict_each_other_are_refused(cast: Cast, build: Build, environment: Environment) -> None:
    same: dict[str, Any] = {"prompt": "Meet them", "state": {}, "cluster": "one"}
    build.task(Split.TRAIN, **same, target={"tool": "email.send", "arguments": {}})
    build.task(Split.TRAIN, **same, target={"tool": "calendar.create_event", "arguments": {}})
    with pytest.raises(Refused, match="ask the same and want different calls"):
        freeze(environment=environment, name="mail", actor=Actor(cast.builder))


def test_a_name_belongs_to_one_environment(cast: Cast, build: Build, environment: Environment) -> None:
    freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    other = build.environment("calendar")
    for split in (Split.TRAIN, Split.HELD_OUT):
        build.task(split, other)
    with pytest.raises(Refused, match="is a task set of mail"):
        freeze(environment=other, name="mail", actor=Actor(cast.builder))
    with pytest.raises(Refused, match="all of them must be of calendar"):
        freeze(environment=other, name="x", actor=Actor(cast.builder), tasks=list(environment.tasks.all()))


def test_the_database_refuses_every_change_of_a_frozen_set(cast: Cast, environment: Environment) -> None:
    made = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    changes: list[Callable[[], int]] = [
        lambda: TaskSet.objects.filter(pk=made.pk).update(name="other"),
        lambda: TaskSetMember.objects.filter(task_set=made).update(split=Split.TRAIN),
        lambda: environment.versions.update(number=9),
    ]
    for change in changes:
        with pytest.raises((IntegrityError, InternalError)), transaction.atomic():
            change()
    made.refresh_from_db()
    assert made.name == "mail"


def test_a_member_set_aside_is_refused_by_the_database(cast: Cast, build: Build, environment: Environment) -> None:
    made = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    with pytest.raises(IntegrityError), transaction.atomic():
        TaskSetMember.objects.create(task_set=made, task=build.task(Split.SET_ASIDE), split=Split.SET_ASIDE)
    assert connection.is_usable()


def test_a_request_that_repeats_is_taken_once_and_those_left_out_are_counted(
    cast: Cast, build: Build, environment: Environment
) -> None:
    first = environment.tasks.filter(split=Split.TRAIN).earliest("number")
    build.task(Split.TRAIN, prompt=f"{first.prompt.upper()}. ", state=first.state, target=first.target)
    build.task(Split.TRAIN, prompt=first.prompt, state={"people": ["Somebody else"]}, target=first.target)
    made = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert (made.members.count(), inside(made)["left_out"]) == (4, 1)
    assert first in made.tasks.all()


def test_requests_that_are_nearly_the_same_are_listed(cast: Cast, build: Build, environment: Environment) -> None:
    for name in ("Sam", "Tim"):
        build.task(
            Split.TRAIN, prompt=f"Please put a meeting with {name} into my calendar on friday, as early as you can"
        )
    (pair,) = inside(freeze(environment=environment, name="mail", actor=Actor(cast.builder)))["pairs"]
    assert ("Tim" in pair.asked, "Sam" in pair.also) == (True, True)
