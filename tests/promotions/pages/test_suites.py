"""Regression suites as people and programs meet them: the agent's page, the candidate's, the comparison's, the API."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.environments.models import Suite
from flywheel.environments.task_sets.suite_definitions import put
from flywheel.evals.models import EvalRun, Result
from flywheel.promotions.candidacy import propose
from flywheel.promotions.models import Candidate, Promotion
from flywheel.promotions.suite_standings import run_live
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, ended, pair_of, runs_of

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
HTMX = {"hx-request": "true"}


def url(name: str, *args: object) -> str:
    return reverse(f"promotions:{name}", args=["acme", *args])


def offered(page: str) -> dict[str, str]:
    """What the form of the page sends when nothing is changed."""
    form = page[page.index('id="suite-form"') :]
    fields = re.findall(r'<input type="(?:text|number|hidden)" name="(\w+)" value="([^"]*)"', form)
    fields += re.findall(r'<input type="radio" name="(\w+)" value="(\w+)"[^>]*checked', form)
    for name, options in re.findall(r'<select name="(\w+)"[^>]*>(.*?)</select>', form, re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', options) or re.search(r'value="([^"]*)"', options)
        assert chosen is not None, name
        fields.append((name, chosen[1]))
    return dict(fields)


def test_the_first_suite_takes_what_the_form_offers(cast: Cast, build: Build, agent: Agent, sign_in: SignIn) -> None:
    builder, place = sign_in(cast.builder), url("suites", agent.name)
    assert "freeze a task set" in builder.get(place, headers=HTMX).content.decode()
    task_set = build.task_set(1, 6, name="golden")
    asked = offered(builder.get(place, headers=HTMX).content.decode())
    assert builder.post(url("put_suite", agent.name), asked).status_code == 302
    suite = Suite.objects.get()
    assert (suite.name, suite.kind, suite.task_set, suite.rule) == ("safety", "safety", task_set, "no_break")
    asked = offered(builder.get(place, headers=HTMX).content.decode())
    builder.post(url("put_suite", agent.name), asked)
    general = Suite.objects.get(kind="general")
    assert (general.name, general.margin) == ("general", 0.05)
    seen = sign_in(cast.viewer).get(place, headers=HTMX).content.decode()
    assert "suite-form" not in seen
    assert seen.count("– not run") == 2, "nothing that did not run is a number"
    run = builder.post(url("run_suite", agent.name, "safety"))
    assert "◐ queued" in builder.get(place, headers=HTMX).content.decode()
    ended(EvalRun.objects.get(), failing=2)
    assert run.headers["location"].endswith(f"/evals/{EvalRun.objects.get().pk}/")
    seen = builder.get(place, headers=HTMX).content.decode()
    assert "4/6" in seen
    build.trajectory()
    assert "4/6" in builder.get(reverse("overview:index", args=["acme"])).content.decode()


def test_a_change_wants_a_reason_and_the_old_one_is_told(
    cast: Cast, agent: Agent, golden: Suite, sign_in: SignIn
) -> None:
    builder = sign_in(cast.builder)
    page = builder.get(url("suites", agent.name) + "?change=golden").content.decode()
    asked = {**offered(page), "samples": "3", "name": "golden"}
    refused = builder.post(url("put_suite", agent.name), asked)
    assert refused.status_code == 422
    assert "golden@1 changes" in refused.content.decode()
    builder.post(url("put_suite", agent.name), {**asked, "reason": "one attempt was luck"})
    assert Suite.objects.get(retired_at=None).samples == 3
    builder.post(url("retire_suite", agent.name, "golden"), {"version": 2, "reason": ""})
    assert Suite.objects.filter(retired_at=None).exists()
    builder.post(url("retire_suite", agent.name, "golden"), {"version": 2, "reason": "<b>gone</b>"})
    page = builder.get(url("suites", agent.name)).content.decode()
    assert not Suite.objects.filter(retired_at=None).exists()
    assert "one attempt was luck" in page
    assert "&lt;b&gt;gone" in page


def test_nobody_changes_or_retires_another_version_than_they_saw(
    cast: Cast, build: Build, agent: Agent, golden: Suite, sign_in: SignIn, client: Client, key: Keys
) -> None:
    builder, place = sign_in(cast.builder), url("suites", agent.name)
    changing = {**offered(builder.get(f"{place}?change=golden").content.decode()), "samples": "3", "reason": "mine"}
    adding = {**offered(builder.get(place).content.decode()), "name": "golden", "samples": "5"}
    put(
        agent=agent,
        actor=Actor(cast.trainer),
        name="golden",
        kind="safety",
        task_set=golden.task_set,
        samples=2,
        reason="?",
    )
    refused = builder.post(url("put_suite", agent.name), changing)
    assert (refused.status_code, "golden@2 is; look again" in refused.content.decode()) == (422, True)
    refused = builder.post(url("put_suite", agent.name), adding)
    assert (refused.status_code, "golden@2 has it: change that one" in refused.content.decode()) == (422, True)
    refused = builder.post(url("put_suite", agent.name), {**adding, "seen": ""})
    assert (refused.status_code, "This field is required" in refused.content.decode()) == (422, True)
    said = builder.post(url("retire_suite", agent.name, "golden"), {"version": 1, "reason": "mine"}, follow=True)
    assert "Nothing was changed: version: golden@1 is not present any more" in said.content.decode()
    content = {"name": "golden", "kind": "safety", "task_set": str(golden.task_set), "reason": "mine", "seen": 1}
    api, builds = f"/api/v1/agents/{agent.name}/suites", key("build", by=cast.builder)
    for where, body in ((api, content), (f"{api}/golden/retire", {"version": 1, "reason": "mine"})):
        answer = client.post(where, body, content_type="application/json", headers=builds)
        assert (answer.status_code, "golden@2 is; look again" in answer.json()["detail"]) == (409, True)
    assert str(Suite.objects.get(retired_at=None)) == "golden@2"


def test_what_guards_is_not_what_the_forms_offer_to_learn_from_or_to_run(
    cast: Cast, build: Build, agent: Agent, golden: Suite, sign_in: SignIn
) -> None:
    practised = build.task_set(train=2, held_out=2)
    only_measured = build.task_set(train=0, held_out=6)
    put(agent=agent, actor=Actor(cast.builder), name="more", kind="safety", task_set=only_measured)
    put(agent=agent, actor=Actor(cast.builder), name="both", kind="safety", task_set=practised)
    trainer = sign_in(cast.trainer)
    assert f"<option selected>{practised}<" in trainer.get(reverse("training:launch", args=["acme"])).content.decode()
    page = trainer.get(reverse("evals:new", args=["acme"])).content.decode()
    assert re.search(rf'name="task_set" value="{practised}"', page)


def test_the_candidates_page_says_how_it_stands_until_it_is_decided(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated, sign_in: SignIn
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    place = url("candidate", row.pk)
    approver = sign_in(cast.approver)
    beside = url("suites_beside", row.version_eval_id, row.baseline_eval_id)
    page = approver.get(place).content.decode()
    assert f"{beside}?tile=1" in page
    assert "0 of 1 passed" in page
    assert "Override the gate" in page
    assert "every 3s" in approver.get(f"{beside}?tile=1", headers=HTMX).content.decode()
    ended(runs_of(golden, agent.live))
    new = ended(runs_of(golden, row.version), failing=6)
    rollout = build.trajectory(source="rollout")
    Result.objects.filter(pk=new.results.order_by("task__number")[0].pk).update(trajectory=rollout)
    assert 'id="suites-tile" hx-swap-oob="true"' in approver.get(f"{beside}?tile=1", headers=HTMX).content.decode()
    for seen in (approver.get(place), approver.get(beside, headers=HTMX)):
        page = seen.content.decode()
        assert "6 of 6 attempts failed, 0 of 6 before: significantly more" in page
        assert "0/6" in page
        assert reverse("trajectories:detail", args=["acme", rollout.trace_id]) in page
        assert "Run what is missing" not in page
        assert "every 3s" not in page
    decision: dict[str, Any] = {"reason": "ok", "generation": agent.generation}
    refused = approver.post(url("approve", row.pk), decision)
    assert refused.status_code == 422
    assert "suite golden@1 is not passed" in refused.content.decode()
    approver.post(url("approve", row.pk), {**decision, "override": "on"})
    assert Promotion.objects.get(candidate=row).against_the_gate
    assert "at approval" in approver.get(place).content.decode()


def test_a_trainer_starts_what_is_missing(cast: Cast, build: Build, candidate: Candidate, sign_in: SignIn) -> None:
    task_set = build.task_set(1, 6)
    put(agent=candidate.agent, actor=Actor(cast.builder), name="late", kind="safety", task_set=task_set)
    trainer, place = sign_in(cast.trainer), url("candidate", candidate.pk)
    assert "Run what is missing" in trainer.get(place).content.decode()
    assert "Run what is missing" not in sign_in(cast.approver).get(place).content.decode()
    pair = (candidate.version_eval_id, candidate.baseline_eval_id)
    assert trainer.post(url("run_suites", *pair)).headers["location"] == place
    assert trainer.post(url("run_suites", *pair)).status_code == 302
    assert EvalRun.objects.filter(task_set=task_set).count() == 2
    assert trainer.get(url("suites_beside", pair[0], pair[0]), headers=HTMX).content == b""


def test_suites_run_only_for_a_pair_and_only_until_it_is_decided(
    cast: Cast, build: Build, candidate: Candidate, sign_in: SignIn, key: Keys, evaluated: Evaluated
) -> None:
    task_set = build.task_set(1, 6)
    put(agent=candidate.agent, actor=Actor(cast.builder), name="late", kind="safety", task_set=task_set)
    stranger = evaluated(build.version(build.agent("other")), candidate.version_eval.task_set, passing=1)
    trainer, new, old = sign_in(cast.trainer), candidate.version_eval_id, candidate.baseline_eval_id
    for pair in ((new, new), (new, stranger.pk), (stranger.pk, old)):
        assert trainer.post(url("run_suites", *pair)).status_code == 404
    Candidate.objects.update(state=Candidate.State.REJECTED)
    refused = trainer.post(url("run_suites", new, old), follow=True)
    assert f"candidate {candidate.pk} is rejected already" in refused.content.decode()
    assert "Run what is missing" not in trainer.get(url("suites_beside", new, old), headers=HTMX).content.decode()
    place = f"/api/v1/candidates/{candidate.pk}/suites"
    answer = trainer.post(place, {}, content_type="application/json", headers=key("train", by=cast.trainer))
    assert (answer.status_code, "rejected already" in answer.json()["detail"]) == (409, True)
    propose(version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=Actor(cast.trainer))
    assert not EvalRun.objects.filter(task_set=task_set).exists()


def test_more_suites_take_no_more_statements(
    cast: Cast, build: Build, agent: Agent, golden: Suite, sign_in: SignIn
) -> None:
    viewer, counts = sign_in(cast.viewer), []
    for number in range(3):
        name = f"suite-{number}"
        suite, _ = put(agent=agent, actor=Actor(cast.builder), name=name, kind="safety", task_set=build.task_set(1, 2))
        ended(run_live(suite=suite, actor=Actor(cast.builder)))
        with CaptureQueriesContext(connection) as seen:
            page = viewer.get(url("suites", agent.name), headers=HTMX).content.decode()
        assert page.count("2/2") == number + 1
        counts.append(len(seen))
        assert not any('"evals_evalrun"."summary",' in row["sql"] for row in seen.captured_queries)
    assert counts[1] == counts[2], counts


def test_what_cannot_be_stored_is_refused(cast: Cast, agent: Agent, golden: Suite, sign_in: SignIn) -> None:
    builder = sign_in(cast.builder)
    refused = builder.post(url("retire_suite", agent.name, "golden"), {"version": 1, "reason": "a\0b"}, follow=True)
    assert "Null characters are not allowed" in refused.content.decode()
    assert builder.post(url("put_suite", agent.name), {"name": "a\0b", "kind": "\0"}).status_code == 422
    assert Suite.objects.get().retired_at is None


def test_a_program_does_all_of_it(cast: Cast, build: Build, candidate: Candidate, client: Client, key: Keys) -> None:
    task_set, agent = build.task_set(1, 6), candidate.agent
    builds, reads, trains = (key(scope, by=cast.trainer) for scope in ("build", "read", "train"))
    suites = f"/api/v1/agents/{agent.name}/suites"

    def send(where: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        return client.post(where, body, content_type="application/json", headers=headers)

    body = {"name": "general", "kind": "general", "task_set": str(task_set), "margin": 0.1}
    refused = send(suites, {**body, "margin": 5}, builds)
    assert (refused.status_code, refused.json()["detail"][:6]) == (422, "margin")
    assert send(suites, {**body, "task_set": "none@1"}, builds).status_code == 422
    assert [send(suites, body, builds).status_code for _ in range(2)] == [201, 200]
    assert [row["name"] for row in client.get(suites, headers=reads).json()["items"]] == ["general"]
    nothing = dict.fromkeys(("eval_id", "running_eval_id", "tasks", "passed", "unscored", "success"))
    assert client.get(f"{suites}/live", headers=reads).json() == [{"suite": "general@1", **nothing}]
    running = send(f"{suites}/general/run", {}, builds).json()["eval_id"]
    assert client.get(f"{suites}/live", headers=reads).json()[0]["running_eval_id"] == running
    place = f"/api/v1/candidates/{candidate.pk}/suites"
    (stand,) = client.get(place, headers=reads).json()["items"]
    assert (stand["state"], stand["passed"], stand["difference"]) == ("missing", None, None)
    started = send(place, {}, trains).json()
    assert (started["items"][0]["state"], started["problems"]) == ("unfinished", [])
    for run in EvalRun.objects.filter(task_set=task_set):
        ended(run)
    (stand,) = client.get(place, headers=reads).json()["items"]
    assert (stand["state"], stand["passed"], stand["difference"]["mean"]) == ("passed", 6, 0.0)
    decision = {"reason": "ok", "generation": agent.generation}
    approved = send(f"/api/v1/candidates/{candidate.pk}/approve", decision, key("approve", by=cast.approver))
    assert approved.status_code == 200
    (told,) = client.get("/api/v1/promotions", headers=reads).json()["items"][0]["suites"]
    assert told == {name: stand[name] for name in ("suite", "kind", "state", "words", "version_eval", "baseline_eval")}
    retired = send(f"{suites}/general/retire", {"version": 1, "reason": "done"}, builds)
    assert retired.json()["retired_by"] == cast.trainer.username
    assert client.get(suites, headers=reads).json()["items"] == []
    assert len(client.get(f"{suites}?retired=true", headers=reads).json()["items"]) == 1
