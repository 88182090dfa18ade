"""A teacher is chosen at launch: another version with weights here, of the same tokens."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.agents import artifacts
from flywheel.agents.models import Artifact, Version
from flywheel.edge.refusals import Refused
from flywheel.environments.task_sets import leaks
from flywheel.evals.serving import loaded_adapters
from flywheel.training.datasets import contamination_checks
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
    hosted = room.build.version(endpoint={"kind": "openai", "base_url": "http://x/v1", "model": "m"})
    assert refused(room) == (
        "teacher",
        "is missing: Distillation learns from another version, one with weights here",
    )
    assert refused(room, teacher=hosted) == (
        "teacher",
        f"{hosted} has no weights here, and its probabilities are read from them",
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
