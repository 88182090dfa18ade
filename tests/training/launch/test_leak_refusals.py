"""What forbids to train: asked at the launch as far as nobody has to wait, and by the run's worker as a whole."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Artifact
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, TaskSetMember
from flywheel.environments.task_sets.suite_definitions import put
from flywheel.environments.versions import reward_parts
from flywheel.training.datasets import contamination_checks
from flywheel.training.launch import leak_refusals
from flywheel.training.models import ContaminationCheck, TrainingRun
from tests.conftest import Cast
from tests.environments.versions.test_reward_parts import model
from tests.training.conftest import Room
from tests.training.datasets.test_contamination_checks import another_set, contaminated, like, made, trained
from tests.training.datasets.test_contamination_checks_pages import SignIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All data has more rows than anybody waits for."""
    monkeypatch.setattr(contamination_checks, "AT_ONCE", 1)


def refused_at_once(room: Room, **fields: Any) -> str:
    with pytest.raises(Refused) as refused:
        room.launch(**fields)
    return str(refused.value.problem)


def test_a_launch_compares_no_large_data_and_reads_none_of_it(
    room: Room, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = made(room)
    monkeypatch.setattr(contamination_checks, "check", lambda *_: pytest.fail("a request compares"))
    monkeypatch.setattr(contamination_checks, "_rows", lambda _: pytest.fail("a request reads the rows"))
    room.launch(dataset=dataset)
    room.launch()
    assert not ContaminationCheck.objects.exists()


def test_what_is_known_of_large_data_is_refused_at_the_launch(room: Room, large: None) -> None:
    dataset = contaminated(room)
    run = room.launch(dataset=dataset)
    told = leak_refusals.refusal(run)
    assert told.startswith(f"1 of 8 held-out tasks of {room.task_set} are in the training data")
    assert refused_at_once(room, dataset=dataset, override_reason="I know better") == told
    assert TrainingRun.objects.count() == 1


def test_the_worker_refuses_what_a_launch_refuses_in_the_same_words(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = another_set(room, like(room, trained(room)))
    dataset = made(room)
    run = room.launch(dataset=dataset)
    put(agent=room.base.agent, actor=Actor(room.cast.builder), name="golden", kind="safety", task_set=golden)
    assert leak_refusals.refusal(run) == refused_at_once(room, dataset=dataset)


def test_the_worker_asks_what_the_base_learnt_from(room: Room, large: None) -> None:
    run = room.launch()
    weights = Artifact.objects.create(digest="b" * 64, manifest={}, kind="model", size=2_800_000)
    run.produced = room.build.version(weights=weights, parent=room.base)
    run.save()
    task = trained(room)
    other = another_set(room, like(room, task), environment=room.build.environment())
    train = room.build.task(Split.TRAIN, prompt="Quite another request", bucket="wrong_tool")
    TaskSetMember.objects.create(task_set=other, task=train, split=Split.TRAIN)
    room.base = run.produced
    room.evaluated(task_set=other)
    later = room.launch(base=room.base, task_set=other)
    assert f"1 of 1 held-out tasks of {other}" in (told := leak_refusals.refusal(later))
    assert told.endswith(f"the data is {run.dataset}")


def test_the_worker_asks_what_the_teacher_learnt_from_and_a_distilled_version_has_learnt_it_too(
    room: Room, large: None
) -> None:
    run = room.launch()
    digests = iter("bcd")
    produced = [
        room.build.version(
            weights=Artifact.objects.create(digest=next(digests) * 64, manifest={}, kind="model", size=9)
        )
        for _ in range(2)
    ]
    TrainingRun.objects.filter(pk=run.pk).update(produced=produced[0])
    other = another_set(room, like(room, trained(room)), environment=room.build.environment())
    train = room.build.task(Split.TRAIN, prompt="Quite another request", bucket="wrong_tool")
    TaskSetMember.objects.create(task_set=other, task=train, split=Split.TRAIN)
    room.evaluated(task_set=other)
    taught = room.launch(task_set=other, algorithm="distillation", teacher=produced[0])
    assert f"1 of 1 held-out tasks of {other}" in (told := leak_refusals.refusal(taught))
    assert told.endswith(f"the data is {run.dataset}")
    TrainingRun.objects.filter(pk=taught.pk).update(produced=produced[1])
    assert contamination_checks.datasets_of(produced[1]) == [run.dataset, taught.dataset]


def test_pages_say_who_compares_and_what_was_found(
    room: Room, large: None, sign_in: SignIn, cast: Cast, client: Client, key: Any
) -> None:
    dataset = made(room)
    asked = {"task_set": str(room.task_set), "dataset": str(dataset), "algorithm": "sft"}
    trainer = sign_in(cast.trainer)
    form = trainer.get(reverse("training:launch", args=["acme"]), asked).content.decode()
    assert "many rows: compared by the worker before training starts" in form
    run = room.launch(dataset=dataset)
    address = reverse("training:run", args=["acme", run.pk])
    assert "not compared yet" in trainer.get(address).content.decode()
    TrainingRun.objects.filter(pk=run.pk).update(state="running", message="comparing its data with held-out tasks")
    assert "comparing its data with held-out tasks" in trainer.get(address).content.decode()
    told = client.get(f"/api/v1/training-runs/{run.pk}", headers=key("read")).json()
    assert told["message"] == "comparing its data with held-out tasks"
    leak_refusals.refusal(run)
    page = trainer.get(address).content.decode()
    assert "not compared yet" not in page
    assert "clean" in page
    form = trainer.get(reverse("training:launch", args=["acme"]), asked).content.decode()
    assert "0 blocked" in form


def test_what_the_verifiers_reward_model_learnt_from_counts_too(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    taught, run = room.launch(dataset=made(room)), room.launch()
    taught.reward_model = model(room.build)
    taught.save()
    assert "task_set" not in {
        pair.field for pair in leak_refusals._pairs(run.base, run.dataset, run.task_set, None, None)
    }
    monkeypatch.setattr(reward_parts, "models_of", lambda *_: {"1" * 64: taught.reward_model})
    pairs = leak_refusals._pairs(run.base, run.dataset, run.task_set, None, None)
    found = [(pair.dataset, pair.task_set) for pair in pairs if pair.field == "task_set"]
    assert found == [(taught.dataset, room.task_set)]
