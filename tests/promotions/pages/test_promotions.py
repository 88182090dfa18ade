from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, User
from flywheel.agents.models import Agent
from flywheel.core.evidence.gate.decision import LIMITS
from flywheel.evals.models import EvalRun
from flywheel.failures.buckets.bucket_lifecycle import close
from flywheel.failures.labels.decisions import decide
from flywheel.promotions.live_version import promote
from flywheel.promotions.models import Candidate, Promotion
from tests.conftest import Build, Cast
from tests.pages import page_of

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]


def test_the_candidate_page_says_the_verdict_its_interval_and_who(
    candidate: Candidate, cast: Cast, sign_in: SignIn
) -> None:
    page = sign_in(cast.approver).get(reverse("promotions:candidate", args=["acme", candidate.pk])).content.decode()
    assert "Eligible: success up" in page
    shown = page.split('<p class="verdict', 1)[1].split("</p>")[0]
    parts = ["Shown to be better.", "8 tasks fixed, 0 broken.", "Overall", "<em>better</em>"]
    assert [part for part in parts if part in shown] == parts
    assert sorted(shown.index(part) for part in parts) == [shown.index(part) for part in parts]
    assert "Approve and promote" in page
    assert "trainer" in page


def test_whoever_opens_a_candidate_has_looked_at_the_held_out_rollouts_of_both_evals(
    candidate: Candidate, cast: Cast, sign_in: SignIn
) -> None:
    evals = (candidate.version_eval, candidate.baseline_eval)
    EvalRun.objects.filter(pk__in=[run.pk for run in evals]).update(done=24)
    sign_in(cast.viewer).get(reverse("promotions:candidate", args=["acme", candidate.pk]))
    looks = candidate.version_eval.task_set.openings.filter(kind="page", actor=cast.viewer)
    assert {look.subject for look in looks} == {str(run) for run in evals}


def test_a_program_that_reads_a_report_has_looked_at_both_evals_too(
    candidate: Candidate, cast: Cast, client: Client, key: Keys
) -> None:
    evals = (candidate.version_eval, candidate.baseline_eval)
    EvalRun.objects.filter(pk__in=[run.pk for run in evals]).update(done=24)
    client.get(f"/api/v1/candidates/{candidate.pk}", headers=key("read", by=cast.viewer))
    wanted = {"candidate_eval": evals[0].pk, "baseline_eval": evals[1].pk}
    headers = key("train", by=cast.trainer)
    client.post("/api/v1/candidates", wanted, content_type="application/json", headers=headers)
    for actor in (cast.viewer, cast.trainer):
        looks = candidate.version_eval.task_set.openings.filter(kind="page", actor=actor)
        assert {look.subject for look in looks} == {str(run) for run in evals}


def test_who_launched_sees_why_they_cannot_approve(candidate: Candidate, cast: Cast, sign_in: SignIn) -> None:
    page = sign_in(cast.trainer).get(reverse("promotions:candidate", args=["acme", candidate.pk])).content.decode()
    assert "Approve and promote" not in page
    assert "An approver decides" in page


def test_approving_and_rolling_back_by_click(candidate: Candidate, cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.approver)
    data = {"generation": candidate.agent.generation, "reason": "better"}
    answer = client.post(reverse("promotions:approve", args=["acme", candidate.pk]), data)
    assert answer.status_code == 302
    agent = Agent.objects.get(pk=candidate.agent_id)
    assert agent.live == candidate.version
    page = client.get(reverse("promotions:index", args=["acme"])).content.decode()
    assert "Roll back" in page
    back = {"generation": agent.generation, "version": candidate.baseline.number, "reason": "complaints"}
    client.post(reverse("promotions:roll_back", args=["acme", agent.name]), back)
    agent.refresh_from_db()
    assert agent.live == candidate.baseline
    page = client.get(reverse("promotions:index", args=["acme"])).content.decode()
    assert f"Make version {candidate.version.number} live again" in page, "which is newer, so nothing is rolled back"
    assert "no reason yet" not in client.get(reverse("promotions:index", args=["acme"])).content.decode()


@pytest.mark.parametrize(("serve", "said"), [("", "make serve"), ("vllm", "Evals › vLLM server")])
def test_a_rollback_that_no_server_takes_says_how_to_restart_it(
    candidate: Candidate, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch, serve: str, said: str
) -> None:
    promote(candidate=candidate, actor=Actor(cast.approver), reason="x", generation=candidate.agent.generation)
    Agent.objects.update(served="a-name")
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FLYWHEEL_SERVE", serve)
    data = {
        "generation": candidate.agent.generation + 1,
        "version": candidate.baseline.number,
        "reason": "x",
    }
    asked = reverse("promotions:roll_back", args=["acme", candidate.agent.name])
    page = page_of(sign_in(cast.approver).post(asked, data, follow=True))
    assert f"{candidate.baseline} is live again" in page
    assert said in page.partition("Restart it")[2].partition(" to serve the live version")[0]


def test_the_reason_of_a_rollback_may_follow_and_is_marked_until_it_does(
    candidate: Candidate, cast: Cast, sign_in: SignIn
) -> None:
    client = sign_in(cast.approver)
    data = {"generation": candidate.agent.generation, "reason": "better"}
    client.post(reverse("promotions:approve", args=["acme", candidate.pk]), data)
    generation = Agent.objects.get(pk=candidate.agent_id).generation
    back = {"generation": generation, "version": candidate.baseline.number, "reason": ""}
    client.post(reverse("promotions:roll_back", args=["acme", candidate.agent.name]), back)
    index = reverse("promotions:index", args=["acme"])
    page = client.get(index).content.decode()
    assert page.count("no reason yet") == 1
    reason = reverse("promotions:say_why", args=["acme", candidate.agent.name, generation + 1])
    assert reason in page
    assert reason not in sign_in(cast.viewer).get(index).content.decode()
    client.post(reason, {"reason": "  complaints of the night  "})
    page = client.get(index).content.decode()
    assert "no reason yet" not in page
    assert "complaints of the night" in page
    assert "approver, <time" in page


def test_the_form_is_checked_before_the_name_is_typed_again(candidate: Candidate, cast: Cast, sign_in: SignIn) -> None:
    approver = sign_in(cast.approver)
    url = reverse("promotions:candidate", args=["acme", candidate.pk])
    assert 'name="override"' not in approver.get(url).content.decode()
    Candidate.objects.filter(pk=candidate.pk).update(verdict="not_shown")
    page = page_of(approver.get(url))
    assert '<input type="checkbox" name="override" required id="id_override">' in page
    assert "formnovalidate>Reject</button>" in page


def test_clicking_approve_twice_promotes_once(candidate: Candidate, cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.approver)
    data = {"generation": candidate.agent.generation, "reason": "better"}
    codes = [client.post(reverse("promotions:approve", args=["acme", candidate.pk]), data).status_code for _ in "12"]
    assert codes == [302, 422]
    assert Promotion.objects.filter(kind="promote").count() == 1


def test_a_refusal_stands_at_the_form_and_keeps_the_reason(candidate: Candidate, cast: Cast, sign_in: SignIn) -> None:
    data = {"generation": candidate.agent.generation + 5, "reason": "my careful reason"}
    answer = sign_in(cast.approver).post(reverse("promotions:approve", args=["acme", candidate.pk]), data)
    assert answer.status_code == 422
    assert "changed while you decided" in answer.content.decode()
    assert "my careful reason" in answer.content.decode()


@pytest.mark.parametrize("name", ["approve", "reject"])
def test_only_approvers_decide(candidate: Candidate, cast: Cast, sign_in: SignIn, name: str) -> None:
    url = reverse(f"promotions:{name}", args=["acme", candidate.pk])
    for person in (cast.viewer, cast.reviewer, cast.trainer, cast.admin):
        assert sign_in(person).post(url, {"reason": "x", "generation": 1}).status_code == 403
    assert sign_in(cast.stranger).post(url, {"reason": "x", "generation": 1}).status_code == 404


def test_a_policy_is_changed_by_form(cast: Cast, build: Build, sign_in: SignIn) -> None:
    url = reverse("promotions:policy", args=["acme"])
    client = sign_in(cast.admin)
    page = client.get(url).content.decode()
    assert [limit.label for limit in LIMITS.values() if limit.label not in page] == []
    assert [name for name, limit in LIMITS.items() if (f'name="{name}"' in page) != bool(limit.label)] == []
    assert cast.project.policies.count() == 0, "looking changes nothing"
    data = {
        "delta_min": "2",
        "min_clusters": "8",
        "min_fill": "98",
        "invalid_margin": "1",
        "unsafe_margin": "0",
        "cost_margin": "",
        "reason": "surer",
    }
    assert client.post(url, data).status_code == 302
    rules = cast.project.policies.latest("version").rules
    assert (rules["delta_min"], rules["min_clusters"], rules["cost_margin"]) == (0.02, 8, None)


def test_the_overview_shows_what_waits_and_for_whom(
    candidate: Candidate, cast: Cast, build: Build, sign_in: SignIn
) -> None:
    build.trajectory(outcome="failed", proposed_bucket="wrong_tool", proposed_score=0.9)
    page = sign_in(cast.approver).get(reverse("overview:index", args=["acme"])).content.decode()
    assert "candidate to decide" in page
    assert "proposal to review" in page
    build.trajectory(outcome="failed", proposed_bucket="wrong_tool", proposed_score=0.9)
    page = sign_in(cast.approver).get(reverse("overview:index", args=["acme"])).content.decode()
    assert "proposals to review" in page
    assert sign_in(cast.stranger).get(reverse("overview:index", args=["acme"])).status_code == 404


def test_the_overview_begins_with_what_is_live(cast: Cast, build: Build, sign_in: SignIn) -> None:
    version = build.version()
    version.agent.live = version
    version.agent.save()
    build.agent("aardvark")
    page = sign_in(cast.viewer).get(reverse("overview:index", args=["acme"]))
    assert [row["agent"].name for row in page.context["live"]] == ["assistant", "aardvark"]


def test_the_overview_leaves_out_buckets_that_are_closed(cast: Cast, build: Build, sign_in: SignIn) -> None:
    for bucket in ("wrong_tool", "bad_planning"):
        decide(trajectory=build.trajectory(started_at=timezone.now()), actor=Actor(cast.reviewer), bucket=bucket)
    close(project=cast.project, key="wrong_tool", actor=Actor(cast.builder), reason="it is gone")
    page = sign_in(cast.viewer).get(reverse("overview:index", args=["acme"])).content.decode()
    shown = page[page.index("Open failures by") :]
    assert "Bad planning" in shown
    assert "Wrong tool" not in shown


def test_an_empty_project_says_how_to_begin(cast: Cast, sign_in: SignIn) -> None:
    page = sign_in(cast.viewer).get(reverse("overview:index", args=["acme"])).content.decode()
    assert reverse("trajectories:connect", args=["acme"]) in page


def test_the_api_approves_and_rolls_back_like_a_click(
    candidate: Candidate, cast: Cast, client: Client, key: Keys
) -> None:
    headers = key("read", "approve", by=cast.approver)
    listed = client.get("/api/v1/candidates", headers=headers).json()["items"]
    assert [item["id"] for item in listed] == [candidate.pk]
    body = {"reason": "better", "generation": listed[0]["generation"]}
    url = f"/api/v1/candidates/{candidate.pk}/approve"
    assert client.post(url, body, content_type="application/json", headers=headers).json()["kind"] == "promote"
    stale = {"version": candidate.baseline.number, "reason": "x", "generation": body["generation"]}
    back = f"/api/v1/agents/{candidate.agent.name}/roll-back"
    assert client.post(back, stale, content_type="application/json", headers=headers).status_code == 409
    stale["generation"] += 1
    assert client.post(back, stale, content_type="application/json", headers=headers).json()["kind"] == "rollback"
    assert len(client.get("/api/v1/promotions", headers=headers).json()["items"]) == 3


def test_a_key_of_a_trainer_cannot_approve(candidate: Candidate, cast: Cast, client: Client, key: Keys) -> None:
    url = f"/api/v1/candidates/{candidate.pk}/approve"
    body = {"reason": "mine", "generation": candidate.agent.generation}
    headers = key("approve", by=cast.trainer)
    assert client.post(url, body, content_type="application/json", headers=headers).status_code == 403


def test_a_lone_admin_is_told_on_the_candidate_who_could_decide(
    candidate: Candidate, cast: Cast, sign_in: SignIn
) -> None:
    Membership.objects.filter(project=cast.project).exclude(user=cast.admin).delete()
    url = reverse("promotions:candidate", args=["acme", candidate.pk])
    client = sign_in(cast.admin)
    assert "You are the only member.</b> Give yourself the approver role?" in page_of(client.get(url))
    client.post(reverse("settings:become_approver", args=["acme"]), {"next": url})
    assert "Give yourself" not in page_of(client.get(url))
    Candidate.objects.update(proposed_by=cast.admin)
    assert "You are the only member: add one under Settings." in page_of(client.get(url))
