"""The palette finds objects by name or number, pages by any of their names, and guides; never another project's."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import get_resolver, reverse

from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.server.pages import finder
from tests.accounts.test_access import walk
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
Ask = Callable[..., list[str]]


@pytest.fixture
def found(cast: Cast, sign_in: Callable[[User], Client]) -> Ask:
    """`found(words, by=user)`: the labels."""

    def ask(words: str, by: User | None = None) -> list[str]:
        answer = sign_in(by or cast.admin).get(reverse("overview:find", args=["acme"]), {"q": words})
        return [place["label"] for place in answer.json()["places"]]

    return ask


def test_objects_are_found_by_name_version_and_number(build: Build, cast: Cast, found: Ask) -> None:
    agent = build.agent("mailer")
    build.version(agent)
    build.version(agent, system_prompt="Answer in one line.")
    task_set = build.task_set(train=1, held_out=1)
    assert found("mailer") == ["mailer", "mailer@2", "mailer@1"]
    assert found("mailer@1") == ["mailer", "mailer@1"]
    assert found("mailer@x") == ["mailer"]
    assert str(task_set) in found(task_set.name)
    task = task_set.members.select_related("task__environment").earliest("pk").task
    assert f"{task} of {task.environment}" in found(str(task))
    assert f"{task} of {task.environment}" in found(str(task.number))
    assert found("r-1") == []


def test_every_address_that_is_found_opens(build: Build, cast: Cast, sign_in: Callable[[User], Client]) -> None:
    build.task_set(train=1, held_out=1)
    build.version()
    client = sign_in(cast.admin)
    for words in ("a", "e", "1", "mail", "wrong", "settings", "guide"):
        places = client.get(reverse("overview:find", args=["acme"]), {"q": words}).json()["places"]
        assert 0 < len(places) <= finder.MOST
        for place in places:
            assert client.get(place["url"]).status_code == 200, place


def test_pages_categories_and_guides_are_found_by_any_of_their_names(found: Ask) -> None:
    assert "Launch a training run: SFT, DPO, GRPO" in found("sft launch")
    assert "Settings: retention, how long data is kept" in found("retention")
    assert found("hallucinated_api") == found("invented tool") == ["Invented tool"]
    assert any("Reviewing" in label for label in found("reviewer guide"))
    assert "sealed" in " ".join(found("sealed")).lower()


def test_a_page_is_offered_only_to_who_may_open_it(cast: Cast, found: Ask) -> None:
    assert found("audit log")
    assert not found("audit log", by=cast.reviewer)
    assert not found("sft launch", by=cast.reviewer)


def test_nothing_of_another_project_is_found(cast: Cast, found: Ask) -> None:
    Agent.objects.create(project=cast.elsewhere, name="secret-agent")
    assert found("secret-agent") == []
    assert found("") == []
    assert found("\\x00%_'") == []


def test_every_page_that_is_offered_exists() -> None:
    assert set(finder.PAGES) <= {page.name for page in walk(get_resolver())}
