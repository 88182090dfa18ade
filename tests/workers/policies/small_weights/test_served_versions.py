"""Which versions are loaded: what is live and what was just before, and else only what is asked for."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from django.utils import timezone

from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Version
from flywheel.agents.weights import served_weights
from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.traces import Message
from flywheel.promotions.models import Promotion
from tests.agents.splits.splitting import split_of
from tests.conftest import Build
from tests.waiting import PATIENCE_S, wait_for
from tests.workers.policies.small_weights.conftest import Engine
from workers.policies.small_weights import served_versions
from workers.policies.small_weights.chat_completions import ChatCompletion
from workers.policies.small_weights.served_calls import Refused
from workers.policies.small_weights.served_versions import ServedVersions
from workers.reference.build import POLICY

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def three(build: Build) -> list[Version]:
    weights = artifacts.store(POLICY, "model")
    return [build.version(weights=weights, system_prompt=f"Prompt {number}") for number in range(3)]


@pytest.fixture
def versions() -> Iterator[ServedVersions]:
    made = ServedVersions()
    yield made
    made.close()


def ask(versions: ServedVersions, version: Version, max_tokens: int = 8) -> None:
    request = ChatRequest((Message("user", "Hi"),), Sampling(1.0, 1.0, max_tokens), 1)
    _, waiter = versions.ask(ChatCompletion(served_weights.name_of(version), request))
    heard = waiter.heard.get(timeout=PATIENCE_S)
    if isinstance(heard, Refused):
        raise heard


def go_live(version: Version, build: Build) -> None:
    agent = Agent.objects.get(pk=version.agent_id)
    Promotion.objects.create(
        agent=agent,
        kind=Promotion.Kind.ROLLBACK if agent.live else Promotion.Kind.FIRST,
        generation=agent.generation + 1,
        before=agent.live,
        after=version,
        approved_by=build.cast.approver,
    )
    Agent.objects.filter(pk=agent.pk).update(live=version, generation=agent.generation + 1)


def names(*versions: Version) -> list[str]:
    return sorted(map(served_weights.name_of, versions))


def test_both_versions_of_an_open_split_are_loaded_and_stay(
    versions: ServedVersions,
    three: list[Version],
    build: Build,
    engine: type[Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = three
    go_live(first, build)
    ask(versions, first)
    split = split_of(first, second, share=0)
    versions.tend()
    assert versions.names() == names(first, second), "before anybody is sent there"
    monkeypatch.setattr(served_versions, "IDLE_S", -1.0)
    ask(versions, third)
    versions.tend()
    assert versions.names() == names(first, second)
    split.closed_at = timezone.now()
    split.save()
    versions.tend()
    assert versions.names() == names(first)


def test_what_goes_live_is_loaded_and_what_was_live_stays(
    versions: ServedVersions,
    three: list[Version],
    build: Build,
    engine: type[Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = three
    go_live(first, build)
    versions.tend()
    assert versions.names() == [], "nobody has asked yet"
    ask(versions, first)
    go_live(second, build)
    versions.tend()
    assert versions.names() == names(first, second), "which answers before somebody waits for it"
    ask(versions, third)
    versions.tend()
    assert versions.names() == names(*three), "a candidate stays while it is asked for"
    monkeypatch.setattr(served_versions, "IDLE_S", -1.0)
    versions.tend()
    assert versions.names() == names(first, second)
    go_live(third, build)
    versions.tend()
    assert versions.names() == names(second, third)
    wait_for(lambda: len(engine.made) == 4, "each was loaded when it was needed")


def test_the_one_asked_longest_ago_gives_way(
    versions: ServedVersions, three: list[Version], engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_versions, "MOST_LOADED", 2)
    for version in three:
        ask(versions, version)
    assert versions.names() == names(*three[1:])
    monkeypatch.setattr(served_versions.ServedVersion, "is_busy", True)
    with pytest.raises(Refused, match="no more are loaded at once") as refused:
        ask(versions, three[0])
    assert refused.value.status == 503


def test_nothing_gives_way_for_what_nobody_has_asked_for(
    versions: ServedVersions,
    three: list[Version],
    build: Build,
    engine: type[Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two agents of which more is wanted than there is room for would take it from each other for ever."""
    monkeypatch.setattr(served_versions, "MOST_LOADED", 2)
    for version in three[:2]:
        ask(versions, version)
    go_live(three[2], build)
    versions.tend()
    assert versions.names() == names(*three[:2])
    ask(versions, three[2])
    assert versions.names() == names(*three[1:])


def test_weights_that_are_damaged_say_so_and_are_not_tried_at_once_again(
    versions: ServedVersions, three: list[Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = three[0].weights
    assert weights is not None
    tried = []

    def local(_: object) -> None:
        tried.append(time.monotonic())
        raise artifacts.ArtifactError(f"model.safetensors of {weights} is damaged")

    monkeypatch.setattr(artifacts, "local", local)
    for _ in range(2):
        with pytest.raises(Refused, match=r"assistant@1 does not answer: model\.safetensors of .* is damaged"):
            ask(versions, three[0])
    assert len(tried) == 1


def test_a_killed_process_is_started_anew(
    versions: ServedVersions, three: list[Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_versions, "PAUSE_S", 0.0)
    ask(versions, three[0])
    (served,) = versions._served.values()
    assert served._engine is not None
    os.kill(served._engine._process._process.pid, signal.SIGKILL)
    with pytest.raises(Refused, match="ended killed by SIGKILL"):
        ask(versions, three[0])
    ask(versions, three[0])


def test_a_name_is_one_content(three: list[Version], build: Build) -> None:
    one, other = three[:2]
    assert served_weights.find(served_weights.name_of(one)) == one
    assert served_weights.find(f"assistant-v1-{other.digest[:16]}") is None
    assert served_weights.find("assistant@1") is None
    assert served_weights.is_served(one)
    assert not served_weights.is_served(build.version()), "no weights of it are here"
    assert not served_weights.is_served(
        build.version(endpoint={"kind": "openai", "base_url": "http://h", "model": "m"})
    )
