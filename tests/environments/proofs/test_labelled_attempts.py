"""A label on an attempt is a probe of the verifier: judged under each version, listed, shown before it is used."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.environments.models import Environment, Split, Task
from flywheel.environments.proofs import labelled_attempts, proof_jobs
from flywheel.environments.proofs.red_green_proof import begun, prove_again
from flywheel.environments.versions.environment_versions import environment_version
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Decision
from flywheel.training.models import TrainingAttempt, TrainingRun
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import Cast
from tests.pages import page_of
from tests.training.conftest import WRONG, Room, right, room

__all__ = ["room"]
pytestmark = pytest.mark.django_db
LENIENT = {"kind": "rubric", "parts": [{"type": "regex", "read": "answer", "pattern": "email.send", "name": "sends"}]}


@pytest.fixture
def environment(room: Room) -> Environment:
    return room.task_set.environment_version.environment


def task_of(room: Room, split: str = Split.TRAIN) -> Task:
    task = room.task_set.tasks.filter(split=split).earliest("number")
    task.proof = begun(None, None)
    task.save()
    return task


def tried(room: Room, task: Task, answer: str, score: float, *, run: TrainingRun | None = None, mix: str = "") -> Any:
    """An attempt of a training run, as its worker stores it."""
    row = room.build.trajectory(task.prompt, answer, source=Source.TRAINING)
    run = run or room.launch(algorithm="grpo")
    named = f"{mix}{task}"
    TrainingAttempt.objects.create(run=run, step=1, place=row.pk, task=named, seed=1, score=score, trajectory=row)
    return row


def label(cast: Cast, row: Trajectory, *, passes: bool) -> None:
    bucket = "" if passes else "wrong_tool"
    decision = Decision.REJECTED if passes else Decision.ADDED
    decide(trajectory=row, actor=Actor(cast.reviewer), decision=decision, bucket=bucket)


def probes(environment: Environment) -> list[tuple[str, str, bool, bool | None]]:
    found = labelled_attempts.probes_of(environment.latest)
    return [(each.trace_id, each.label, each.is_judged, each.agrees) for each in found]


def test_a_label_of_an_attempt_is_listed_beside_the_verdict_that_it_had(room: Room, environment: Environment) -> None:
    task = task_of(room)
    good, fooled = tried(room, task, right(task), 1.0), tried(room, task, WRONG, 1.0)
    assert probes(environment) == []
    label(room.cast, good, passes=True)
    label(room.cast, fooled, passes=False)
    assert probes(environment) == [(fooled.trace_id, "fail", True, False), (good.trace_id, "pass", True, True)]
    assert labelled_attempts.disagreements(environment.latest) == 1


def test_attempts_of_evals_and_of_mixes_are_probes_and_held_out_ones_are_not(
    room: Room, environment: Environment
) -> None:
    task, measured = task_of(room), task_of(room, Split.HELD_OUT)
    rollout = room.build.trajectory(task.prompt, right(task), source=Source.ROLLOUT)
    run = room.evaluated(split=Split.TRAIN, success=(False,))
    run.results.filter(task=task, sample=0).update(trajectory=rollout)
    mixed = tried(room, task, right(task), 1.0, mix=f"{environment.name}/")
    others = [tried(room, measured, WRONG, 0.0), tried(room, task, WRONG, 0.0, mix="calendar/")]
    for row in (rollout, mixed, *others):
        label(room.cast, row, passes=True)
    assert {trace for trace, *_ in probes(environment)} == {rollout.trace_id, mixed.trace_id}


def test_it_is_judged_anew_under_a_new_version_and_the_disagreement_is_told(
    room: Room, environment: Environment, sign_in: Callable[[User], Client]
) -> None:
    task = task_of(room)
    row = tried(room, task, WRONG, 0.0)
    label(room.cast, row, passes=False)
    prove_again(task, environment.latest)
    assert probes(environment) == [(row.trace_id, "fail", True, True)]
    made = environment_version(
        environment=environment, actor=Actor(room.cast.builder), config=environment.latest.config, verifier=LENIENT
    )
    assert probes(environment) == [(row.trace_id, "fail", True, False)]
    task.refresh_from_db()
    (check,) = task.proof["labelled"]
    assert (check["wanted"], check["passed"], check["score"]) == ("fails", False, 1.0)
    assert "disagrees with people on 1 labelled attempts" in proof_jobs.proof_notice(environment, made)
    client, slug = sign_in(room.cast.builder), room.cast.project.slug
    page = page_of(client.get(reverse("environments:environment", args=[slug, environment.name])))
    assert f"{made} disagrees with people on 1 labelled attempt." in page
    assert "disagrees" in page_of(client.get(reverse("environments:task", args=[slug, environment.name, task.number])))


def test_what_was_labelled_since_the_proof_waits_until_a_worker_is_asked(
    room: Room, environment: Environment, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    task = task_of(room)
    row = tried(room, task, WRONG, 0.0)
    environment_version(
        environment=environment, actor=Actor(room.cast.builder), config=environment.latest.config, verifier=LENIENT
    )
    label(room.cast, row, passes=False)
    address = f"/api/v1/environments/{environment.name}/probes"
    (item,) = client.get(address, headers=key("read")).json()["items"]
    assert (item["source"], item["task"], item["label"]) == ("training", str(task), "fail")
    assert (item["judged"], item["agrees"], item["by"]) == (False, None, str(room.cast.reviewer))
    assert client.post(f"{address}/judge", headers=key("build")).json()["waiting"] == 1
    for waiting in proof_jobs.waiting(environment, environment.latest):
        prove_again(waiting, environment.latest)
    assert probes(environment) == [(row.trace_id, "fail", True, False)]
    (item,) = client.get(address, headers=key("read")).json()["items"]
    assert (item["judged"], item["agrees"]) == (True, False)


def test_the_verifiers_page_lists_them_and_its_words_are_hostile(
    room: Room, environment: Environment, sign_in: Callable[[User], Client]
) -> None:
    row = tried(room, task_of(room), WRONG, 0.0)
    TrainingAttempt.objects.update(reason="<script>no</script>")
    label(room.cast, row, passes=True)
    address = reverse("environments:verifier", args=[room.cast.project.slug, environment.name])
    page = sign_in(room.cast.builder).get(address).content.decode()
    listed = page.partition('id="probes"')[2]
    assert f"/trajectories/{row.trace_id}/" in listed
    assert "disagrees" in listed
    assert "<script>no" not in listed


def test_what_is_deleted_or_taken_back_is_no_probe(room: Room, environment: Environment) -> None:
    task = task_of(room)
    row = tried(room, task, WRONG, 0.0)
    label(room.cast, row, passes=False)
    Trajectory.objects.filter(pk=row.pk).delete()
    assert probes(environment) == []
