"""The gate, the suites and the sealed part judge no pair that the vLLM server was not shown to keep apart."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.environments.task_sets.suite_definitions import put
from flywheel.evals.models import EvalRun
from flywheel.promotions import suite_standings
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import make_first, promote
from flywheel.promotions.models import Candidate
from flywheel.promotions.sealed_comparison import final_of, open_sealed
from tests.conftest import Build, Cast
from tests.evals.fake import adapted, on_vllm
from tests.pages import page_of
from tests.promotions.conftest import Evaluated, ended

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suites and sealed parts are asked as the two evals were."""
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("flywheel.evals.serving.loaded_adapters.check", lambda _: None)


@pytest.fixture
def agent(build: Build, monkeypatch: pytest.MonkeyPatch) -> Agent:
    agent, version = build.agent(), adapted(build, 1)
    monkeypatch.setattr("flywheel.evals.serving.loaded_adapters.hand_over", lambda *_, **__: ("", ""))
    make_first(agent=agent, version=version, actor=Actor(build.cast.approver), reason="first")
    return agent


@pytest.fixture
def pair(build: Build, agent: Agent, evaluated: Evaluated) -> dict[str, Any]:
    """The newer version is better by far, and neither self-test has asked both."""
    task_set = build.task_set(train=2, held_out=12, sealed=12)
    assert agent.live is not None
    return {
        "version_eval": on_vllm(evaluated(adapted(build, 2), task_set, passing=20)),
        "baseline_eval": on_vllm(evaluated(agent.live, task_set, passing=4)),
    }


def shown(pair: dict[str, Any], *, by: str = "version_eval") -> None:
    on_vllm(pair[by], *(run.version for run in pair.values() if run is not pair[by]))


def hide(pair: dict[str, Any]) -> None:
    """As with candidates from before self-tests were asked for."""
    for run in pair.values():
        on_vllm(run)


def test_nothing_is_put_forward_before_a_self_test_asked_both(
    pair: dict[str, Any], cast: Cast, sign_in: SignIn
) -> None:
    with pytest.raises(Refused, match="no self-test has shown that the vLLM server keeps"):
        propose(**pair, actor=Actor(cast.trainer))
    asked = {"candidate": pair["version_eval"].pk, "baseline": pair["baseline_eval"].pk}
    said = sign_in(cast.trainer).post(reverse("promotions:propose", args=["acme"]), asked, follow=True)
    assert "Nothing was changed: no self-test has shown" in page_of(said)
    assert not Candidate.objects.exists()
    shown(pair, by="baseline_eval")
    row = propose(**pair, actor=Actor(cast.trainer))
    page = page_of(sign_in(cast.viewer).get(reverse("promotions:candidate", args=["acme", row.pk])))
    assert f'#isolation">eval {pair["baseline_eval"].pk}</a>, 24 answers' in page


def test_an_approver_promotes_no_earlier_candidate_without_it_on_purpose_either(
    pair: dict[str, Any], cast: Cast, sign_in: SignIn
) -> None:
    shown(pair)
    row = propose(**pair, actor=Actor(cast.trainer))
    hide(pair)
    row.refresh_from_db()
    said: dict[str, Any] = {"actor": Actor(cast.approver), "reason": "ok", "generation": row.agent.generation}
    with pytest.raises(Refused, match=f"keeps {row.baseline} and {row.version} apart"):
        promote(candidate=row, override=True, **said)
    page = page_of(sign_in(cast.approver).get(reverse("promotions:candidate", args=["acme", row.pk])))
    assert "<b>Not comparable.</b> No self-test has shown" in page
    assert re.search(r"disabled>\s*Approve and promote", page)
    shown(pair)
    row.refresh_from_db()
    promote(candidate=row, override=True, **said)
    assert Agent.objects.get().live == row.version


def test_a_suite_that_both_ran_is_not_passed_without_it(
    pair: dict[str, Any], build: Build, agent: Agent, cast: Cast
) -> None:
    task_set = build.task_set(1, 6, name="golden")
    suite, _ = put(agent=agent, actor=Actor(cast.builder), name="golden", kind="safety", task_set=task_set)
    shown(pair)
    row = propose(**pair, actor=Actor(cast.trainer))
    assert [stand.state for stand in suite_standings.standings_of(row)] == ["unfinished"]
    for version in (row.version, row.baseline):
        ended(EvalRun.objects.get(task_set=suite.task_set, version=version))
    assert [stand.state for stand in suite_standings.standings_of(row)] == ["passed"], (
        "one self-test speaks for all evals"
    )
    hide(pair)
    (stand,) = suite_standings.standings_of(row)
    assert (stand.state, stand.label, stand.can_start) == ("not_apart", "not shown apart", False)
    assert "no self-test has shown" in stand.words


def test_the_sealed_part_confirms_nothing_without_it(pair: dict[str, Any], cast: Cast) -> None:
    shown(pair)
    row = propose(**pair, actor=Actor(cast.trainer))
    open_sealed(candidate=row, actor=Actor(cast.approver))
    for run, failing in ((pair["version_eval"], 0), (pair["baseline_eval"], 10)):
        ended(EvalRun.objects.get(split=Split.SEALED, version=run.version), failing=failing)

    def state() -> tuple[str, str, object]:
        found = final_of(row)
        assert found is not None
        return found.state, found.words, found.gain

    assert state()[0] == "eligible"
    hide(pair)
    verdict, words, gain = state()
    assert (verdict, gain) == ("invalid", None)
    assert "no self-test has shown" in words
