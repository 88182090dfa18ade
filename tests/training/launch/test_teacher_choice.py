"""A teacher is chosen at launch: another version with weights here, of the same tokens, or a hosted model."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import ModelPrice
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact, Version
from flywheel.edge.refusals import Refused
from flywheel.environments.task_sets import leaks
from flywheel.evals.serving import loaded_adapters
from flywheel.training.datasets import contamination_checks
from flywheel.training.launch import device_choice, run_budgets, teacher_choice
from flywheel.training.launch.teacher_choice import Readings
from flywheel.training.models import TrainingRun
from tests.pages import page_of
from tests.training.conftest import Room
from tests.training.datasets.test_contamination_checks_pages import SignIn

pytestmark = pytest.mark.django_db
TOKENS = {"a": 0, "b": 1, "c": 2}


def version(room: Room, letter: str, tokens: dict[str, int] | None = None, **fields: Any) -> Version:
    manifest = {"tokenizer.json": {"sha256": letter * 64, "size": 9}} if tokens else {}
    weights = Artifact.objects.create(digest=letter * 64, manifest=manifest, kind="model", size=9)
    return room.build.version(weights=weights, **fields)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Vocabularies by the digest of the weights that have them."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(artifacts, "read", lambda it, _: json.dumps(found[it.digest[0]]).encode())
    return found


def refused(room: Room, **fields: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as told:
        room.launch(**{"algorithm": "distillation", **fields})
    assert not TrainingRun.objects.exists()
    return told.value.field, told.value.problem


def test_a_teacher_is_frozen_with_the_run_and_needs_no_audit_of_the_reward(room: Room) -> None:
    one, other = version(room, "b"), version(room, "c")
    run = room.launch(algorithm="distillation", teacher=one)
    assert (run.teacher, run.reward_audit, run.audit_override) == (one, None, None)
    digests = {room.launch(algorithm="distillation", teacher=each).spec_digest for each in (one, one, other)}
    assert len(digests) == 2
    assert run.spec_digest in digests


def test_what_cannot_teach_is_refused_with_its_reason(room: Room) -> None:
    neither = room.build.version(endpoint={"kind": "transformers"})
    assert refused(room) == (
        "teacher",
        "is missing: Distillation learns from another version, with weights here or hosted",
    )
    assert refused(room, teacher=neither) == (
        "teacher",
        f"{neither} has no weights here and no endpoint, and its probabilities are read from one of them",
    )
    assert "which can teach it nothing" in refused(room, teacher=room.base)[1]
    assert refused(room, algorithm="sft", teacher=version(room, "b")) == ("teacher", "SFT learns from no teacher")


def test_a_teacher_with_another_tokenizer_is_refused(room: Room, files: dict[str, Any]) -> None:
    files |= {letter: {"model": {"vocab": TOKENS}, "added_tokens": [{"content": "<e>", "id": 3}]} for letter in "bcd"}
    files["d"] = {"model": {"vocab": TOKENS}, "added_tokens": [{"content": "<end>", "id": 3}]}
    room.base = version(room, "b", TOKENS)
    room.baseline = room.evaluated()
    other = version(room, "d", TOKENS)
    assert refused(room, base=room.base, teacher=other) == (
        "teacher",
        f"{other} has another tokenizer than {room.base}: 1 tokens differ; probabilities are compared token by token, "
        "so choose a version of the same model family",
    )
    same = version(room, "c", TOKENS)
    assert room.launch(base=room.base, algorithm="distillation", teacher=same).teacher == same


def test_the_form_offers_teachers_and_the_run_shows_its_own(room: Room, sign_in: SignIn) -> None:
    client, teacher = sign_in(room.cast.trainer), version(room, "b")
    asked = {"task_set": str(room.task_set), "base": str(room.base)}
    address = reverse("training:launch", args=["acme"])
    assert "Teacher" not in page_of(client.get(address, {**asked, "algorithm": "grpo"}))
    form = client.get(address, {**asked, "algorithm": "distillation"}).content.decode()
    assert 'name="set.teacher_from"' in form
    offered = form.partition('id="launch-teacher"')[2].partition("</select>")[0]
    assert str(teacher) in offered
    assert str(room.base) not in offered
    sent = {**asked, "algorithm": "distillation", "reason": "it is better"}
    assert "is missing: Distillation learns from" in page_of(client.post(address, sent))
    client.post(address, sent | {"teacher": str(teacher)})
    run = TrainingRun.objects.get()
    assert run.teacher == teacher
    assert str(teacher) in page_of(client.get(reverse("training:run", args=["acme", run.pk])))
    again = client.get(address, {"like": run.pk}).content.decode()
    assert f"<option selected>{teacher}</option>" in again


HOSTED = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "big-model"}
AT_ENDPOINT: dict[str, Any] = {"teacher_from": "endpoint", "steps": 10, "batch_size": 8, "max_completion_length": 50}


def test_a_hosted_model_teaches_at_its_endpoint_and_nowhere_else(room: Room) -> None:
    hosted, own = room.build.version(endpoint=HOSTED), version(room, "b")
    field = "settings.teacher_from"
    for place in ("trainer", "vllm"):
        said = f"{hosted} is a hosted model, and {place!r} needs weights here; expected endpoint"
        assert refused(room, teacher=hosted, settings={"teacher_from": place}) == (field, said)
    said = f"{own} has its weights here; expected trainer or vllm"
    assert refused(room, teacher=own, settings=AT_ENDPOINT) == (field, said)
    said = "0.5 does not go with teacher_from endpoint, which gives probabilities of given tokens at temperature 1 only"
    assert said in refused(room, teacher=hosted, settings=AT_ENDPOINT | {"temperature": 0.5})[1]
    run = room.launch(algorithm="distillation", teacher=hosted, settings=AT_ENDPOINT)
    assert (run.teacher, run.settings["teacher_from"]) == (hosted, "endpoint")


def test_the_forecast_of_a_hosted_teacher_has_its_tokens_and_dollars_where_its_price_is_known(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted, sets = room.build.version(endpoint=HOSTED), [room.task_set]
    unknown = Readings("big-model", 90, None, None)
    readings = teacher_choice.expected_readings(hosted, AT_ENDPOINT, 100, sets)
    assert readings == Readings("big-model", 90, 90 * 150, None), "an attempt each, and one a step beside"
    assert teacher_choice.expected_readings(hosted, AT_ENDPOINT, None, sets) == unknown
    assert teacher_choice.expected_readings(hosted, {**AT_ENDPOINT, "teacher_from": "vllm"}, 100, sets) is None
    assert teacher_choice.expected_readings(None, AT_ENDPOINT, 100, sets) is None
    ModelPrice.objects.create(project=room.cast.project, model="big-model", price_in=2, price_out=10)
    readings = teacher_choice.expected_readings(hosted, AT_ENDPOINT, 100, sets)
    assert readings is not None
    with monkeypatch.context() as patched:
        patched.setattr(teacher_choice, "turns_of", lambda _: 3)
        assert teacher_choice.expected_readings(hosted, AT_ENDPOINT, 100, sets) == unknown
    assert readings.usd == pytest.approx((13_500 * 2 + 90 * 10) / 1e6)
    run = room.launch(algorithm="distillation", teacher=hosted, settings=AT_ENDPOINT)
    assert run.outside_calls["expected"]["teacher"]["questions"] == 90


def test_a_budget_in_dollars_wants_the_price_of_a_hosted_teacher(room: Room) -> None:
    asked: dict[str, Any] = {"teacher": room.build.version(endpoint=HOSTED), "settings": AT_ENDPOINT}
    field, said = refused(room, budget={"usd": 1.0}, **asked)
    assert (field, "model 'big-model', whose price nobody named; name it under" in said) == ("budget.usd", True)
    ModelPrice.objects.create(project=room.cast.project, model="big-model", price_in=2, price_out=10)
    run = room.launch(algorithm="distillation", budget={"usd": 1.0}, **asked)
    report = {"models": ["big-model"], "requests": 3, "tokens_in": 9, "tokens_out": 3, "cost_usd": 0.75}
    run.outside_calls |= {"teacher": report}
    assert (run_budgets.paid_by(run), run_budgets.spent(run)) == (0.75, "")
    run.outside_calls["teacher"]["cost_usd"] = 1.25
    assert run_budgets.spent(run) == "the budget of $1 is spent: $1.2500"


def test_the_form_offers_hosted_teachers_and_says_what_one_takes(room: Room, sign_in: SignIn) -> None:
    client, hosted = sign_in(room.cast.trainer), room.build.version(endpoint=HOSTED)
    asked = {"task_set": str(room.task_set), "base": str(room.base), "algorithm": "distillation"}
    address = reverse("training:launch", args=["acme"])
    form = client.get(address, {**asked, "teacher": str(hosted), "set.teacher_from": "endpoint"}).content.decode()
    assert f"<option selected>{hosted}</option>" in form
    assert "big-model, the teacher, reads up to" in form
    assert "at a cost that is not known" in form
    run = room.launch(algorithm="distillation", teacher=hosted, settings=AT_ENDPOINT)
    report = {"models": ["big-model"], "requests": 3, "tokens_in": 9, "tokens_out": 3, "cost_usd": 0.75}
    TrainingRun.objects.filter(pk=run.pk).update(outside_calls=run.outside_calls | {"teacher": report})
    page = page_of(client.get(reverse("training:run", args=["acme", run.pk])))
    assert "read the attempts at its endpoint: 3 requests with 9 tokens for $0.75, of up to 90 expected" in page


def test_a_ray_cluster_does_not_reach_a_hosted_teacher(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_RAY_ADDRESS", "http://127.0.0.1:1")
    with pytest.raises(Refused, match="its teacher is asked by the worker"):
        device_choice.refuse_cluster("distillation", {"teacher_from": "endpoint"}, [room.task_set])


def test_what_a_teacher_learnt_counts_as_learnt_wherever_it_is_asked(room: Room) -> None:
    """Of a version that learnt from one that learnt from another."""
    chain = [version(room, letter) for letter in "bcde"]
    for learner, teacher in pairwise(chain):
        run = room.launch(algorithm="distillation", teacher=teacher)
        TrainingRun.objects.filter(pk=run.pk).update(produced=learner)
    first, *_, last = chain
    assert leaks.learnt_from([first, last]) == {
        first.pk: {row.pk for each in chain for row in lines(each)},
        last.pk: {row.pk for row in lines(last)},
    }
    sft = room.launch()
    TrainingRun.objects.filter(pk=sft.pk).update(produced=last)
    assert sft.dataset in contamination_checks.datasets_of(first)
    verdicts = leaks.trained_on([first], room.task_set)
    assert verdicts[first.pk].verdict != "none"
    assert contamination_checks.trained_elsewhere(first) == ""
    unknown = version(room, "f", parent=room.base)
    taught = room.launch(algorithm="distillation", teacher=unknown)
    TrainingRun.objects.filter(pk=taught.pk).update(produced=last)
    assert contamination_checks.trained_elsewhere(first) == str(unknown)


def lines(each: Version | None) -> Iterator[Version]:
    while each is not None:
        yield each
        each = each.parent


def test_a_teacher_on_the_server_is_one_that_the_server_has(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, asked = version(room, "b"), {"settings": {"teacher_from": "vllm"}}
    field = "settings.teacher_from"
    said = refused(room, teacher=teacher, **asked)
    assert (said[0], "no vLLM server is set" in said[1]) == (field, True)
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://127.0.0.1:1")
    rows = [{"id": "base-other", "parent": None}]
    monkeypatch.setattr(loaded_adapters, "_call", lambda *_, **__: {"data": rows})
    said = refused(room, teacher=teacher, **asked)
    assert (said[0], f"serves base-other, and {teacher} is made of base-bbbbbbbbbbbb" in said[1]) == (field, True)
    rows[0]["id"] = "base-bbbbbbbbbbbb"
    run = room.launch(algorithm="distillation", teacher=teacher, **asked)
    assert run.settings["teacher_from"] == "vllm"


def test_by_api(room: Room, client: Client, key: Any) -> None:
    teacher = version(room, "b")
    body = {"base": str(room.base), "task_set": str(room.task_set), "algorithm": "distillation", "override_reason": "x"}
    url, headers = "/api/v1/training-runs", key("train")
    answer = client.post(url, body, content_type="application/json", headers=headers)
    assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (422, "teacher")
    served = body | {"teacher": str(teacher), "settings": {"teacher_from": "vllm"}}
    answer = client.post(url, served, content_type="application/json", headers=headers)
    assert answer.json()["detail"].startswith("settings.teacher_from: no vLLM server is set")
    made = client.post(url, {**body, "teacher": str(teacher)}, content_type="application/json", headers=headers)
    assert made.json()["teacher"] == str(teacher)
