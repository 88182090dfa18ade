"""Submitting an eval run: by form, by API, refused where something is wrong."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, ModelPrice, User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.agents.models import Version
from flywheel.core import verifiers
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion, Split, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.submission import submit as verb
from flywheel.evals.runs.submission import usual_samples
from flywheel.promotions.live_version import make_first
from tests.conftest import Build, Cast
from tests.evals.fake import carry_out, submit

SignIn = Callable[[User], Client]
NEW = reverse("evals:new", args=["acme"])


def filled(build: Build, **changes: Any) -> dict[str, Any]:
    return {
        "key": str(uuid.uuid4()),
        "version": str(build.version()),
        "task_set": str(build.task_set()),
        "split": "held_out",
        "samples": "2",
        "seed": "3",
        **changes,
    }


def test_a_builder_starts_an_eval_and_a_double_click_makes_one(build: Build, cast: Cast, sign_in: SignIn) -> None:
    data = filled(build, temperature="0.2")
    client = sign_in(cast.builder)
    answers = [client.post(NEW, data) for _ in range(3)]
    run = EvalRun.objects.get()
    assert {answer["location"] for answer in answers} == {reverse("evals:run", args=["acme", run.pk])}
    assert (run.samples, run.seed, run.split, run.total) == (2, 3, Split.HELD_OUT, 16)
    assert run.sampling == {"temperature": 0.2, "top_p": 1.0, "max_tokens": 64}
    assert run.verifier_digest == verifiers.digest(run.task_set.environment_version.verifier)
    entry = AuditEntry.objects.get(action="evals.submit")
    assert (entry.actor, entry.data["attempts"]) == (cast.builder, 16)


def test_the_form_limits_what_a_run_may_take(build: Build, cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    assert 'name="tokens"' in client.get(NEW).content.decode()
    assert client.post(NEW, filled(build, tokens="5000", minutes="2.5")).status_code == 302
    assert EvalRun.objects.get().budget == {"tokens": 5000, "minutes": 2.5}


@pytest.mark.django_db(transaction=True)
def test_what_was_spent_is_resumed_with_a_greater_budget_or_with_none(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(build, build.task_set(held_out=20), samples=1, budget={"tokens": 100})
    carry_out(run, monkeypatch)
    assert (run.state, run.error_kind, run.results.count()) == (State.CANCELLED, "budget", 16)
    client, address = sign_in(cast.builder), reverse("evals:resume", args=["acme", run.pk])
    page = reverse("evals:run", args=["acme", run.pk])
    assert 'name="tokens" value="100"' in client.get(page).content.decode()
    for sent, says in (
        ({}, "the budget of 100 tokens is spent: 480; resume it with a greater budget, or with none"),
        ({"tokens": "480"}, "the budget of 480 tokens is spent: 480; resume it"),
        ({"tokens": "0"}, "greater than or equal to 1"),
        ({"tokens": "481", "usd": "1"}, "has no price, so its cost is unknown"),
    ):
        assert says in client.post(address, sent, follow=True).content.decode()
        run.refresh_from_db()
        assert (run.state, run.budget) == (State.CANCELLED, {"tokens": 100})
    client.post(address, {"tokens": "481", "usd": "", "minutes": ""})
    assert AuditEntry.objects.get(action="evals.resume").data["budget"] == {"tokens": 481}
    carry_out(run, monkeypatch)
    assert (run.state, run.results.count()) == (State.SUCCEEDED, 20)


@pytest.mark.django_db(transaction=True)
def test_a_program_resumes_with_another_budget(
    build: Build, cast: Cast, client: Client, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(build, build.task_set(held_out=20), samples=1, budget={"tokens": 100})
    carry_out(run, monkeypatch)
    headers, url = key("build", by=cast.builder), f"/api/v1/evals/{run.pk}/resume"
    for body, code, says in (
        (None, 422, "budget: the budget of 100 tokens is spent"),
        ({"budget": {"dollars": 1}}, 422, "budget.dollars: is unknown"),
        ({"budget": {}}, 200, ""),
    ):
        text = "" if body is None else json.dumps(body)
        answer = client.generic("POST", url, text, "application/json", headers=headers)
        assert (answer.status_code, says in answer.content.decode()) == (code, True)
    assert (answer.json()["state"], answer.json()["budget"]) == ("queued", {})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("version", "assistant@", "is not a version: expected agent@version"),
        ("version", "nobody@1", "There is no agent &#x27;nobody&#x27;; this project has assistant"),
        ("version", "assistant@77", "Assistant has no version 77; it has 1"),
        ("version", "assistant@live", "Assistant has no live version"),
        ("task_set", "mail@", "is not of the form set@version, such as mail@"),
        ("task_set", "nothing@1", "There is no task set &#x27;nothing&#x27;; this project has mail"),
        ("task_set", "mail@999", "Mail has no version 999; it has"),
        ("samples", "65", "less than or equal to 64"),
        ("seed", "-1", "greater than or equal to 0"),
        ("temperature", "nan", "Enter a number"),
        ("top_p", "0", "0 leaves nothing to choose from"),
        ("split", "secret", "not one of the available choices"),
        ("usd", "1", "has no price, so its cost is unknown"),
        ("tokens", "0", "greater than or equal to 1"),
        ("key", "x", "Enter a valid UUID"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    build: Build, cast: Cast, sign_in: SignIn, field: str, value: str, says: str
) -> None:
    answer = sign_in(cast.builder).post(NEW, filled(build, **{field: value}))
    assert answer.status_code == 422
    form = answer.context["form"]
    assert field in form.errors
    if field != "key":  # it is hidden; nobody types it
        assert says in answer.content.decode()
    assert not EvalRun.objects.exists()


def test_who_may(build: Build, cast: Cast, sign_in: SignIn) -> None:
    data = filled(build)
    assert sign_in(cast.reviewer).post(NEW, data).status_code == 403
    assert sign_in(cast.stranger).post(NEW, data).status_code == 404
    assert not EvalRun.objects.exists()


def test_the_form_starts_from_the_address(build: Build, cast: Cast, sign_in: SignIn) -> None:
    answer = sign_in(cast.builder).get(NEW, {"version": "assistant@1", "seed": "9", "key": "mine"})
    assert answer.context["form"]["version"].value() == "assistant@1"
    assert answer.context["form"]["seed"].value() == "9"
    assert answer.context["form"]["key"].value() != "mine"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"split": "set_aside"}, "split: 'set_aside' is unknown"),
        ({"samples": 0}, "samples: 0 is not between"),
        ({"seed": 2**31}, "seed: "),
        ({"sampling": {"top_k": 3}}, "sampling.top_k: is unknown, temperature, top_p, max_tokens are known"),
        ({"sampling": {"temperature": True}}, "sampling.temperature: True is not a number"),
        ({"sampling": {"max_tokens": 1.5}}, "sampling.max_tokens: 1.5 is not a whole number"),
    ],
)
def test_the_verb_refuses_what_cannot_run(build: Build, cast: Cast, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused) as refused:
        submit(build, **fields)
    assert str(refused.value).startswith(says)


def test_dollars_are_no_budget_where_nobody_knows_what_a_judge_costs(build: Build) -> None:
    part = {"type": "judge", "name": "right", "criteria": "It books.", "endpoint": "upstream", "model": "m"}
    endpoint = {"kind": "openai", "base_url": "http://x/v1", "model": "m", "price_in": 1, "price_out": 2}
    environment, priced = build.environment("priced"), build.version(endpoint=endpoint)
    assert submit(build, build.task_set(environment=environment), priced, budget={"usd": 1}).budget == {"usd": 1.0}

    def judged(number: int, **fields: Any) -> TaskSet:
        verifier = {"kind": "rubric", "parts": [{**part, **fields}]}
        version = EnvironmentVersion.objects.create(
            environment=environment,
            number=number,
            config=environment.latest.config,
            verifier=verifier,
            digest=f"d{number}",
            verifier_digest=verifiers.digest(verifier),
            created_by=build.cast.builder,
        )
        task_set = build.task_set(environment=environment)
        assert task_set.environment_version == version
        return task_set

    task_set = judged(2)
    unknown = r"budget\.usd: the judge right asks the upstream's model 'm', whose price nobody named; name it"
    with pytest.raises(Refused, match=unknown):
        submit(build, task_set, priced, budget={"usd": 1})
    assert submit(build, task_set, priced, budget={"tokens": 9}).budget == {"tokens": 9}
    set_upstream(project=build.cast.project, actor=Actor(build.cast.admin), base_url="http://127.0.0.1:9/v1")
    with pytest.raises(Refused, match=unknown):
        submit(build, task_set, priced, budget={"usd": 1})
    ModelPrice.objects.create(project=build.cast.project, model="m", price_in=1, price_out=2)
    priced = Version.objects.get(pk=priced.pk)
    assert submit(build, task_set, priced, budget={"usd": 1}).budget == {"usd": 1.0}
    own = r"budget\.usd: the judge right is asked at this installation's vLLM, which has no price; or limit"
    with pytest.raises(Refused, match=own):
        submit(build, judged(3, endpoint="vllm"), priced, budget={"usd": 1})


def test_a_version_of_another_project_is_refused(build: Build, cast: Cast) -> None:
    task_set = build.task_set()
    version = build.version()
    version.agent.project = cast.elsewhere
    version.agent.save()
    with pytest.raises(Refused, match=r"version: .* another project"):
        verb(key=uuid.uuid4(), version=version, task_set=task_set, actor=Actor(cast.builder))


def test_the_live_version_is_asked_more_often_since_it_is_asked_once(
    build: Build, cast: Cast, sign_in: SignIn, client: Client, key: Any
) -> None:
    live, other = build.version(), build.version(system_prompt="another")
    make_first(agent=live.agent, version=live, actor=Actor(cast.approver), reason="first")
    page = sign_in(cast.builder)
    for version, split, samples in ((live, "held_out", 16), (live, "train", 4), (other, "held_out", 4)):
        form = page.get(NEW, {"version": str(version), "split": split}).context["form"]
        assert int(form["samples"].value()) == samples
    assert int(page.get(NEW).context["form"]["samples"].value()) == 16, "the only live version is offered"
    assert int(page.get(NEW, {"samples": "2"}).context["form"]["samples"].value()) == 2
    body = {"version": str(live), "task_set": str(build.task_set())}
    made = client.post("/api/v1/evals", body, content_type="application/json", headers=key("build", by=cast.builder))
    assert made.json()["samples"] == 16
    live.sampling |= {"temperature": 0.0}
    assert usual_samples(live, "held_out") == 4, "one answer over and over shows nothing more"


def test_the_api_submits_the_same_way(build: Build, cast: Cast, client: Client, key: Any) -> None:
    body = {"version": str(build.version()), "task_set": str(build.task_set()), "samples": 1, "key": str(uuid.uuid4())}
    headers = key("build", "read", by=cast.builder)
    url = "/api/v1/evals"
    first, second = (client.post(url, body, content_type="application/json", headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert first.json()["state"] == "queued"
    assert AuditEntry.objects.get(action="evals.submit").through.startswith("key ")
    for change, says in (
        ({"version": "nobody@1"}, "version: there is no agent 'nobody'"),
        ({"task_set": "mail@9999"}, "task_set: mail has no version 9999"),
        ({"samples": 100}, "samples: 100 is not between"),
    ):
        refused = client.post(url, {**body, **change}, content_type="application/json", headers=headers)
        assert refused.status_code == 422
        assert refused.json()["detail"].startswith(says)
    unreadable = client.post(url, {**body, "samples": "many"}, content_type="application/json", headers=headers)
    assert unreadable.status_code == 422
    only_read = key("read", by=cast.builder)
    assert client.post(url, body, content_type="application/json", headers=only_read).status_code == 403


def test_a_program_names_what_it_wants_as_text_or_object_and_the_newest_by_name_alone(
    build: Build, cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    old, new = build.version(), build.version(system_prompt="newer")
    task_set, headers = build.task_set(), key("build", by=cast.builder)
    wanted: list[tuple[Any, Version]] = [({"name": "assistant", "version": 1}, old), ({"name": "assistant"}, new)]
    for version, meant in (*wanted, ("assistant", new)):
        body = {"version": version, "task_set": {"name": task_set.name}, "samples": 1}
        answer = client.post("/api/v1/evals", body, content_type="application/json", headers=headers)
        assert answer.status_code == 201, answer.content
        assert EvalRun.objects.latest("pk").version == meant
