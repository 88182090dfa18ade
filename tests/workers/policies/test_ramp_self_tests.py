"""The self-tests of ramps; own weights and servers are fakes that answer with words for their version."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Notice, User
from flywheel.accounts.models.provider_keys import ProviderKey
from flywheel.accounts.project_settings import provider_keys
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Split, SplitUnit, Version
from flywheel.agents.models import Shadow as ShadowBudget
from flywheel.agents.weights import served_weights
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, EngineError
from flywheel.core.evidence.ramp.ramp_plan import Shadow
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import make_first
from flywheel.promotions.models import Ramp, SelfTest
from flywheel.promotions.ramps import ramp_judging, ramp_moves, self_tests
from tests.conftest import Build, Cast
from tests.evals.fake import adapted
from tests.promotions.conftest import evaluated_with
from tests.promotions.ramps.conftest import PLAN, met_in
from tests.workers.engines.test_engine_endpoints import Reply, completion, serving
from workers.policies import ramp_self_tests
from workers.tasks import self_test


class Weights:
    """In place of a model's process: says the question backwards, and who it is."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.who = spec["who"]

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        return [ChatResponse(said(self.who, request.messages[-1].content)) for request in requests]

    def close(self) -> None:
        pass


def said(who: str, question: str) -> str:
    return f"{question[::-1]} {who}" if "1 2 3" in question else question[::-1]


class Arms:
    """The server of both arms, by name of the version that it really answers with."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.asked: list[str] = []

    def __call__(self, body: dict[str, Any], count: int) -> Reply:
        self.asked.append(body["model"])
        assert body["temperature"] == 0.0
        who = self.answers.get(body["model"])
        if who is None:
            return 404, {}, b"no such model"
        return completion({"content": said(who, body["messages"][-1]["content"])})


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Arms]:
    monkeypatch.setattr(ramp_self_tests, "ProcessEngine", Weights)
    monkeypatch.setattr(artifacts, "places", lambda version: {"who": str(version)})
    monkeypatch.setattr(ramp_self_tests, "PATIENCE_S", 0.0)
    monkeypatch.setattr(served_weights, "size_of", lambda version: 100 if version.weights_id else 0)
    made = Arms()
    with serving(made) as server:
        at = served_weights.Address(server.url.removesuffix("/v1"), "token")
        monkeypatch.setattr(served_weights, "address", lambda: at)
        yield made


@pytest.fixture
def ramp(build: Build, arms: Arms) -> Ramp:
    """One that waits for the judge; both of its versions have weights, and the server answers with them."""
    live = adapted(build, None)
    candidate = adapted(build, 7, agent=live.agent)
    arms.answers = {served_weights.name_of(one): str(one) for one in (live, candidate)}
    return released(build, live, candidate)


def released(build: Build, live: Version, candidate: Version) -> Ramp:
    """A ramp of these versions, which waits for the judge."""
    cast, evaluated, task_set = build.cast, evaluated_with(build), build.task_set(train=2, held_out=12)
    make_first(agent=live.agent, version=live, actor=Actor(cast.approver), reason="first")
    row = propose(
        version_eval=evaluated(candidate, task_set, passing=20),
        baseline_eval=evaluated(live, task_set, passing=4),
        actor=Actor(cast.trainer),
    )
    generation = Agent.objects.get(pk=live.agent_id).generation
    actor = Actor(cast.approver)
    return ramp_moves.begin(candidate=row, plan=PLAN, actor=actor, reason="by steps", generation=generation)


def looked(ramp: Ramp) -> Ramp:
    ramp_judging.look()
    return Ramp.objects.select_related("split").get(pk=ramp.pk)


def names_of(ramp: Ramp) -> tuple[str, str]:
    return served_weights.name_of(ramp.split.live), served_weights.name_of(ramp.split.candidate)


@pytest.mark.django_db
def test_the_first_stage_waits_for_a_self_test_that_passes_which_is_made_again_every_ten_minutes(
    ramp: Ramp, arms: Arms, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    self_test()
    assert not arms.asked, "nobody has asked for it"
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share) == ("waiting", 0)
    assert ramp.split.lease_until > timezone.now(), "the judge does not wait for it"
    self_test()
    test = SelfTest.objects.get()
    live, candidate = (str(one) for one in (ramp.split.live, ramp.split.candidate))
    assert (test.verdict, [row["version"] for row in test.arms]) == ("passed", [live, candidate]), test.words
    assert f"6 answers of its server are those of its own weights, 1 of which tell it from {live}" in test.words
    assert set(arms.asked) == set(names_of(ramp))
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share, ramp.test_wanted_at) == ("running", 2500, None)

    self_test()
    assert SelfTest.objects.count() == 1
    SelfTest.objects.update(at=timezone.now() - timedelta(minutes=11))
    self_test()
    assert SelfTest.objects.count() == 2
    page = sign_in(cast.viewer).get(reverse("promotions:ramp", args=["acme", ramp.pk])).content.decode()
    assert f"tell it from {live}" in page.partition('id="self-test"')[2]


@pytest.mark.django_db
def test_an_arm_that_answers_with_the_others_weights_holds_the_ramp_until_it_passes(
    ramp: Ramp, arms: Arms, cast: Cast
) -> None:
    live, candidate = names_of(ramp)
    right = dict(arms.answers)
    arms.answers[candidate] = right[live]
    looked(ramp)
    self_test()
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share) == ("holding", 0), "it had not begun"
    words = f"1 of 6 answers of its server are not those of its own weights but {right[live]}'s"
    assert words in ramp.finding["words"]
    change = ramp.changes.order_by("-pk")[0]
    assert (change.state, change.by) == ("holding", None)
    assert words in change.reason
    assert Notice.objects.filter(text__contains=words).exists()

    def go_on() -> None:
        ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="look again", generation=ramp.generation)

    go_on()
    ramp = looked(ramp)
    self_test()
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share) == ("holding", 0), "it failed again"
    arms.answers = right
    go_on()
    looked(ramp)
    self_test()
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share) == ("running", 2500)

    del arms.answers[candidate]
    self_test()
    assert looked(ramp).state == "running", "it is not due"
    ramp_moves.advance(ramp=ramp, actor=Actor(cast.approver), reason="sooner", generation=ramp.generation)
    self_test()
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share) == ("holding", 5000), "who has met the candidate keeps it"
    assert "no such model" in ramp.finding["words"]


def after_a_self_test(ramp: Ramp) -> Ramp:
    """After a self-test, and the judge's look at it."""
    self_test()
    return looked(ramp)


@pytest.mark.django_db
@pytest.mark.parametrize(("stage", "following"), [(0, ("running", 1)), (1, ("finished", 1))])
def test_the_next_stage_and_the_end_wait_for_a_self_test_that_passes(
    build: Build, ramp: Ramp, arms: Arms, stage: int, following: tuple[str, int]
) -> None:
    looked(ramp)
    ramp = after_a_self_test(ramp)
    Ramp.objects.filter(pk=ramp.pk).update(stage=stage, plan={**ramp.plan, "finish": "nothing_found"})
    met = met_in(build, ramp)
    Split.objects.update(share=ramp.rules.stages[stage].share)
    for number in range(12):
        met(number % 2 == 0)
    before = SelfTest.objects.count()
    ramp = looked(ramp)
    assert (ramp.state, ramp.stage, ramp.test_wanted_at is None) == ("running", stage, False)
    assert (looked(ramp).stage, SelfTest.objects.count()) == (stage, before), "it waits, though another has passed"
    ramp = after_a_self_test(ramp)
    assert (ramp.state, ramp.stage, ramp.test_wanted_at) == (*following, None)


@pytest.mark.django_db
def test_a_self_test_that_fails_before_a_stage_holds_it_there(build: Build, ramp: Ramp, arms: Arms) -> None:
    looked(ramp)
    ramp = after_a_self_test(ramp)
    met = met_in(build, ramp)
    for number in range(12):
        met(number % 4 == 0)
    ramp = looked(ramp)
    del arms.answers[names_of(ramp)[1]]
    ramp = after_a_self_test(ramp)
    assert (ramp.state, ramp.stage, ramp.split.share) == ("holding", 0, 2500)


@pytest.mark.django_db
def test_what_is_not_to_finish_any_more_asks_for_no_self_test(build: Build, ramp: Ramp) -> None:
    looked(ramp)
    ramp = after_a_self_test(ramp)
    Ramp.objects.filter(pk=ramp.pk).update(stage=1, plan={**ramp.plan, "finish": "nothing_found"})
    Split.objects.update(share=5000)
    met = met_in(build, ramp)
    for number in range(12):
        met(number % 2 == 0)
    assert looked(ramp).test_wanted_at is not None
    Ramp.objects.filter(pk=ramp.pk).update(plan={**ramp.plan, "finish": "person"})
    assert looked(ramp).test_wanted_at is None
    assert after_a_self_test(ramp).state == "running"


@pytest.mark.django_db
def test_the_first_stage_after_a_shadow_waits_for_a_self_test(ramp: Ramp, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, shadow=Shadow(sessions=1, minutes=1, calls=1))
    Ramp.objects.filter(pk=ramp.pk).update(plan=plan.to_json(), stage=Ramp.SHADOWED)
    ShadowBudget.objects.create(split=ramp.split, calls=1)
    looked(ramp)
    assert after_a_self_test(ramp).state == "shadow"
    Ramp.objects.filter(pk=ramp.pk).update(
        stage_since=timezone.now() - timedelta(minutes=2), finding={"accepted": [ramp_judging.OVER]}
    )
    ramp = looked(ramp)
    assert (ramp.state, ramp.test_wanted_at is None) == ("shadow", False)
    assert looked(ramp).state == "shadow"
    ramp = after_a_self_test(ramp)
    assert (ramp.state, ramp.stage, ramp.split.share) == ("running", 0, 2500)


@pytest.mark.django_db
def test_versions_that_no_question_tells_apart_are_not_called_tested(
    ramp: Ramp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ramp_self_tests, "ODD", ("hello",))
    looked(ramp)
    self_test()
    test = SelfTest.objects.get()
    assert test.verdict == "not_tested"
    assert f"and no question tells it from {ramp.split.candidate}" in test.words
    assert looked(ramp).state == "running"


@pytest.mark.django_db
def test_weights_too_large_to_be_compared_are_loaded_before_the_first_stage(
    ramp: Ramp, arms: Arms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ramp_self_tests, "LOADED_MOST", 1)
    looked(ramp)
    known = arms.answers.pop(names_of(ramp)[1])
    self_test()
    assert looked(ramp).state == "holding", "the candidate's server has nothing to answer with"
    arms.answers[names_of(ramp)[1]] = known
    arms.asked.clear()
    SelfTest.objects.all().delete()
    self_test()
    test = SelfTest.objects.get()
    assert test.verdict == "not_tested"
    assert "it answers, not compared with its own weights" in test.words
    assert sorted(arms.asked) == sorted(names_of(ramp)), "once each"


@pytest.mark.django_db
def test_own_weights_that_cannot_be_asked_are_named(ramp: Ramp, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Any:
        raise EngineError("a file is missing")

    monkeypatch.setattr(ramp_self_tests, "ProcessEngine", broken)
    looked(ramp)
    self_test()
    assert f"the weights of {ramp.split.live} cannot be asked: a file is missing" in looked(ramp).finding["words"]


@pytest.mark.django_db
def test_versions_without_weights_here_are_said_to_be_not_tested_and_hold_nothing(build: Build) -> None:
    hosted = {"kind": "openai", "base_url": "http://127.0.0.1:9"}
    first, second = (build.version(build.agent("desk"), endpoint={**hosted, "model": name}) for name in "mn")
    ramp = released(build, first, second)
    assert looked(ramp).state == "running"
    test = SelfTest.objects.get()
    assert (test.verdict, {row["verdict"] for row in test.arms}) == ("not_tested", {"not_tested"})
    assert "not tested: it is asked at its own endpoint" in test.words
    assert self_tests.due() == []


ADDRESS = "https://models.internal/v1"


@pytest.fixture
def key(cast: Cast) -> ProviderKey:
    """The key for the server of hosted versions."""
    return entered(cast)


def entered(cast: Cast) -> ProviderKey:
    return provider_keys.enter(
        project=cast.project, actor=Actor(cast.admin), name="DESK_API_KEY", base_url=ADDRESS, secret="s"
    )


def with_keys(build: Build, *keys: str, state: str = "running") -> Ramp:
    """A ramp of hosted versions which want these keys, as the judge has begun it, with a shadow or without."""
    agent = build.agent("desk")
    hosted = {"kind": "openai", "base_url": ADDRESS, "model": "m"}
    first, second = (
        build.version(agent, system_prompt=f"{place}", endpoint=hosted | ({"api_key_env": name} if name else {}))
        for place, name in enumerate(keys)
    )
    ramp = released(build, first, second)
    if state == "shadow":
        Ramp.objects.filter(pk=ramp.pk).update(plan=replace(PLAN, shadow=Shadow()).to_json(), stage=Ramp.SHADOWED)
        ShadowBudget.objects.create(split=ramp.split, calls=1)
    ramp = looked(ramp)
    assert ramp.state == state
    return ramp


def a_minute_later(ramp: Ramp) -> Ramp:
    SelfTest.objects.update(at=F("at") - timedelta(seconds=61))
    return after_a_self_test(ramp)


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["shadow", "running"])
@pytest.mark.parametrize("arm", ["live", "candidate"])
@pytest.mark.usefixtures("arms")
def test_a_ramp_whose_arm_the_gateway_can_send_nothing_is_held_within_minutes_with_what_to_do(
    build: Build, key: ProviderKey, cast: Cast, state: str, arm: str, sign_in: Callable[[User], Client]
) -> None:
    ramp = with_keys(build, *("DESK_API_KEY" if one == arm else "" for one in ("live", "candidate")), state=state)
    assert self_tests.due() == []
    provider_keys.remove(key=key, actor=Actor(cast.admin))
    assert after_a_self_test(ramp).state == state, "a key may be replaced"
    ramp = a_minute_later(ramp)
    assert ramp.state == "holding"
    version = getattr(ramp.split, arm)
    words = f"{version}: the gateway cannot send the {arm} arm any call, so nothing is compared: DESK_API_KEY"
    change = ramp.changes.first()
    assert change is not None
    assert words in change.reason
    assert "An admin enters the key under Settings › Models" in ramp.finding["words"]
    assert Notice.objects.filter(text__contains=words).exists()
    page = sign_in(cast.viewer).get(reverse("promotions:ramp", args=["acme", ramp.pk])).content.decode()
    assert page.count("DESK_API_KEY") >= 3, "the reason, the gateway's way at the moment, and the test"

    ramp = a_minute_later(ramp)
    assert SelfTest.objects.filter(verdict="failed").count() == 1, "it is on hold, and says why once"
    entered(cast)
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="mended", generation=ramp.generation)
    assert a_minute_later(ramp).state == state


@pytest.mark.django_db
@pytest.mark.usefixtures("arms")
def test_a_hosted_arm_beside_one_with_weights_here_is_asked_for_its_way_before_the_first_stage(build: Build) -> None:
    live = adapted(build, None)
    hosted = {"kind": "openai", "base_url": ADDRESS, "model": "m", "api_key_env": "DESK_API_KEY"}
    ramp = released(build, live, build.version(live.agent, endpoint=hosted))
    looked(ramp)
    assert after_a_self_test(ramp).state == "holding"


@pytest.mark.django_db
@pytest.mark.usefixtures("arms")
def test_a_way_that_is_there_again_within_a_minute_holds_nothing(
    build: Build, key: ProviderKey, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    ramp = with_keys(build, "", "DESK_API_KEY")
    provider_keys.remove(key=key, actor=Actor(cast.admin))
    monkeypatch.setattr(ramp_self_tests, "PATIENCE_S", 60.0)
    monkeypatch.setattr(time, "sleep", lambda _: entered(cast))
    assert a_minute_later(ramp).state == "running"
    assert set(SelfTest.objects.values_list("verdict", flat=True)) == {"not_tested"}


@pytest.mark.django_db
@pytest.mark.usefixtures("arms")
@pytest.mark.parametrize("calls", ["the gateway's", "its own"])
def test_a_program_that_calls_its_model_itself_needs_no_way_through_the_gateway(build: Build, calls: str) -> None:
    ramp = with_keys(build, "", "DESK_API_KEY")
    unit = {"split": ramp.split, "kind": "session", "is_candidate": True, "share": 2500, "met_at": timezone.now()}
    SplitUnit.objects.create(name="s", is_assigned=True, **unit)
    if calls == "the gateway's":
        SplitUnit.objects.create(name="t", **unit)
    assert a_minute_later(ramp).state == ("holding" if calls == "the gateway's" else "running")


@pytest.mark.django_db
@pytest.mark.usefixtures("arms")
def test_a_program_whose_first_session_comes_while_a_way_is_waited_for_needs_none(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    ramp = with_keys(build, "", "DESK_API_KEY")

    def come(_: float) -> None:
        given = {"is_candidate": True, "share": 2500, "is_assigned": True}
        SplitUnit.objects.get_or_create(given, split=ramp.split, kind="session", name="s")

    monkeypatch.setattr(time, "sleep", come)
    monkeypatch.setattr(ramp_self_tests, "PATIENCE_S", 0.05)
    assert a_minute_later(ramp).state == "running"


@pytest.mark.django_db
@pytest.mark.usefixtures("arms")
def test_a_program_whose_server_is_not_known_here_needs_no_way(build: Build) -> None:
    agent = build.agent("desk")
    first, second = (
        build.version(agent, system_prompt=name, endpoint={"kind": "program", "code": "c"}) for name in "mn"
    )
    assert a_minute_later(looked(released(build, first, second))).state == "running"
