"""What people and programs see of contamination: dataset, task set, launch, comparison, candidate."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Artifact
from flywheel.environments.models import Split, Task
from flywheel.promotions.candidacy import propose
from flywheel.training.datasets.contamination_checks import check_version
from flywheel.training.models import ContaminationCheck, TrainingRun
from tests.conftest import Cast
from tests.training.conftest import Room
from tests.training.datasets.test_contamination_checks import another_set, contaminated, like, made, say_alike, trained

pytestmark = pytest.mark.django_db


SignIn = Callable[[User], Client]


def test_a_dataset_shows_every_held_out_part_and_the_pairs(room: Room, sign_in: SignIn, cast: Cast) -> None:
    say_alike(room)
    task = trained(room)
    other = another_set(room, like(room, task, prompt=f"{task.prompt}"))
    dataset = made(room)
    address = reverse("training:dataset", args=["acme", dataset.name, dataset.version])
    text = sign_in(cast.viewer).get(address).content.decode()
    assert "1 same request and answer" in text
    assert f"{other}</a>" in text
    assert "its own set" in text
    assert "Near-duplicates inside" in text
    there = sign_in(cast.viewer).get(reverse("environments:task_set", args=["acme", other.name, other.version]))
    assert f"{dataset}</a>" in there.content.decode()
    assert "contaminated" in there.content.decode()


def test_what_agents_and_people_wrote_is_shown_as_text(room: Room, sign_in: SignIn, cast: Cast) -> None:
    task = trained(room)
    Task.objects.filter(pk=task.pk).update(prompt="<script>alert(1)</script> now")
    task.refresh_from_db()
    another_set(room, like(room, task, prompt=task.prompt))
    dataset = made(room)
    text = sign_in(cast.viewer).get(reverse("training:dataset", args=["acme", dataset.name, 1])).content.decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_the_launch_page_says_what_blocks_and_does_not_launch(
    room: Room, sign_in: SignIn, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = sign_in(cast.trainer)
    address = reverse("training:launch", args=["acme"])
    assert "Cannot be launched" not in client.get(address).content.decode()
    contaminated(room)
    monkeypatch.setattr("flywheel.training.datasets.dataset_builder.refuse_overlap", lambda _: None)
    text = client.get(address, {"algorithm": "sft"}).content.decode()
    assert "Cannot be launched" in text
    assert "1 of 8 held-out tasks" in text
    page = client.get(address, {"algorithm": "sft"})
    sent = {
        "key": page.context["form"].cleaned_data["key"],
        "base": str(room.base),
        "task_set": str(room.task_set),
        "algorithm": "sft",
    }
    answer = client.post(address, {**sent, "reason": "I know better", "seed": "1", "mode": "full"})
    assert answer.status_code == 422
    assert not TrainingRun.objects.exists()


def test_the_launch_page_warns_of_sets_that_the_rows_block(room: Room, sign_in: SignIn, cast: Cast) -> None:
    other = another_set(room, like(room, trained(room)))
    asked = {"algorithm": "sft", "task_set": str(room.task_set)}
    text = sign_in(cast.trainer).get(reverse("training:launch", args=["acme"]), asked).content.decode()
    assert f"Not to be compared on {other}" in text
    assert "Cannot be launched" not in text


def produced(room: Room) -> Any:
    """A run's version with its eval, and the baseline's."""
    baseline, run = room.baseline, room.launch()
    weights = Artifact.objects.create(digest="b" * 64, manifest={}, kind="model", size=2_800_000)
    run.produced = room.build.version(weights=weights, parent=room.base)
    run.save()
    room.base = run.produced
    return room.evaluated(success=(True, True)), baseline


def test_the_gate_refuses_what_learnt_from_the_set_it_is_compared_on(room: Room, sign_in: SignIn, cast: Cast) -> None:
    after, before = produced(room)
    contaminated(room)
    row = propose(version_eval=after, baseline_eval=before, actor=Actor(cast.trainer))
    assert row.verdict == "invalid"
    assert "1 task of the hold-out also in training" in row.report["decision"]["words"]
    page = sign_in(cast.approver).get(reverse("promotions:candidate", args=["acme", row.pk])).content.decode()
    assert "contaminated" in page
    compared = sign_in(cast.viewer).get(reverse("evals:compare", args=["acme", after.pk, before.pk])).content.decode()
    assert "<b>Invalid.</b>" in compared
    assert f"{after.version} was trained on one of these tasks" in compared
    assert "held-out opened" in compared


def test_a_comparison_says_that_a_version_learnt_from_a_set_that_was_frozen_later(
    room: Room, sign_in: SignIn, cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    task, other_task = trained(room), room.task_set.tasks.filter(split=Split.HELD_OUT).earliest("number")
    base, learnt = room.base, produced(room)[0].version
    other = another_set(room, like(room, task), like(room, other_task))
    room.base = base
    before = room.evaluated(task_set=other)
    room.base = learnt
    after = room.evaluated(task_set=other)
    place = f"/api/v1/evals/{after.pk}/against/{before.pk}"

    def found() -> Any:
        return client.get(place, headers=key("read")).json()

    assert found()["contamination"][str(learnt)]["verdict"] == "unchecked"
    check_version(learnt, other)
    told = found()["contamination"]
    assert found()["is_valid"] is False
    assert (told[str(learnt)]["verdict"], told[str(learnt)]["datasets"]) == ("contaminated", ["mail-sft@1"])
    assert told[str(learnt)]["blocked"] == [f"home/{other.tasks.earliest('number')}"]
    assert told[str(before.version)] == {"verdict": "none", "blocked": [], "datasets": []}
    assert client.get(f"/api/v1/evals/{after.pk}", headers=key("read")).json()["contamination"] == told[str(learnt)]
    swapped = client.get(f"/api/v1/evals/{before.pk}/against/{after.pk}", headers=key("read")).json()
    assert swapped["is_valid"] is False
    grid = client.get(f"/api/v1/task-sets/{other.name}/{other.version}/grid", headers=key("read")).json()
    assert [column["contamination"]["verdict"] for column in grid["columns"]] == ["none", "contaminated"]
    said = f"{learnt} was trained on one of these tasks (mail-sft@1)"
    pages = {
        reverse("evals:compare", args=["acme", after.pk, before.pk]): "✕ invalid",
        reverse("evals:compare", args=["acme", before.pk, after.pk]): "✕ invalid",
        reverse("evals:run", args=["acme", after.pk]): "Invalid.",
        reverse("evals:grid", args=["acme", other.name, other.version]): "✕ invalid",
    }
    trainer = sign_in(cast.trainer)
    for address, marked in pages.items():
        text = trainer.get(address).content.decode()
        assert said in text
        assert marked in text
        assert f"Put {learnt} forward" not in text


def test_similar_tasks_leave_a_verdict_and_the_gain_is_told_without_them(
    room: Room, sign_in: SignIn, cast: Cast
) -> None:
    task = trained(room)
    near = room.task_set.tasks.filter(split=Split.HELD_OUT).earliest("number")
    for each, name in ((task, "Sam"), (near, "Tim")):
        prompt = f"Please put a meeting with {name} into my calendar on friday, as early as you can"
        Task.objects.filter(pk=each.pk).update(prompt=prompt)
    row = propose(
        **dict(zip(("version_eval", "baseline_eval"), produced(room), strict=True)), actor=Actor(cast.trainer)
    )
    found = row.report["contamination"]
    judged = {check["name"]: check["passed"] for check in row.report["decision"]["checks"]}
    assert judged["contamination"] is True
    assert ([each["verdict"] for each in found["datasets"]], found["flagged"]) == (["warned"], 1)
    assert found["without"]["n"] == 7
    page = sign_in(cast.viewer).get(reverse("promotions:candidate", args=["acme", row.pk])).content.decode()
    assert "Without similar tasks" in page


def test_programs_read_the_same(
    room: Room, client: Client, key: Callable[..., dict[str, str]], cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = another_set(room, like(room, trained(room)))
    dataset = made(room)
    place = f"/api/v1/datasets/{dataset.name}/{dataset.version}/contamination"
    away, own = client.get(place, headers=key("read")).json()
    assert (away["task_set"], away["verdict"], away["counts"]["content"]) == (str(other), "contaminated", 1)
    assert (own["task_set"], own["blocked"], own["opened"]) == (str(room.task_set), [], 0)
    (finding,) = away["findings"]
    assert (finding["level"], finding["held_out"]) == ("content", away["blocked"][0])
    there = client.get(f"/api/v1/task-sets/{other.name}/{other.version}/contamination", headers=key("read")).json()
    assert there == [away]
    ContaminationCheck.objects.all().delete()
    monkeypatch.setattr("flywheel.training.datasets.contamination_checks.AT_ONCE", 1)
    assert client.get(place, headers=key("read")).json() == []
    assert client.post(place, headers=key("read")).status_code == 403
    assert client.post(place, headers=key("train")).json() == [away, own]
    elsewhere = key("read", by=cast.stranger, project=cast.elsewhere)
    assert client.get(place, headers=elsewhere).status_code == 404
