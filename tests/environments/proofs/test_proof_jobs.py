"""Stopping a trial and the proofs that a worker makes: what is there by then stays."""

import uuid
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Scope
from flywheel.edge.jobs import State
from flywheel.environments.models import Proving, Trial
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.versions import trials
from tests.conftest import Build, Cast
from workers.jobs.task_proofs import prove_tasks

pytestmark = pytest.mark.django_db(transaction=True)

RUBRIC = {"kind": "rubric", "parts": [{"type": "environment"}]}


@pytest.fixture
def jobs(build: Build, cast: Cast) -> tuple[Trial, Proving]:
    environment, task = build.environment(), build.task()
    task.proof = {"recorded": {"role": "assistant", "content": ""}, "is_failure": None, "checks": []}
    task.save()
    trial = trials.submit(environment=environment, verifier=RUBRIC, actor=Actor(cast.builder), key=uuid.uuid4())
    return trial, proof_jobs.ask(environment, Actor(cast.builder))


def test_a_button_stops_what_waits_and_what_runs(
    jobs: tuple[Trial, Proving], cast: Cast, sign_in: Callable[..., Client]
) -> None:
    trial, proofs = jobs
    slug, client = cast.project.slug, sign_in(cast.builder)
    page = client.get(reverse("environments:trial", args=[slug, trial.pk])).content.decode()
    assert (stop := reverse("environments:stop_trial", args=[slug, trial.pk])) in page
    assert "stopped" in client.post(stop).content.decode()
    assert client.post(stop).status_code == 200, "a second click finds it over"
    home = reverse("environments:environment", args=[slug, proofs.environment.name])
    assert (stop := reverse("environments:stop_proving", args=[slug, proofs.pk])) in client.get(home).content.decode()
    lease = Proving.claim(proofs.pk)
    assert lease is not None
    assert client.post(stop).status_code == 302
    assert "stopping" in client.get(home).content.decode()
    with lease:
        lease._renew()
        prove_tasks(lease)
    for job in jobs:
        job.refresh_from_db()
        assert job.state == State.CANCELLED
    assert proof_jobs.waiting(proofs.environment, proofs.environment.latest).count() == 1, "nothing was proved any more"
    actions = AuditEntry.objects.filter(action__startswith="environments.stop_").values_list("action", flat=True)
    assert sorted(actions) == ["environments.stop_proving", "environments.stop_trial"]


def test_a_program_stops_them_once(
    jobs: tuple[Trial, Proving], client: Client, key: Callable[..., dict[str, str]]
) -> None:
    trial, proofs = jobs
    paths = [f"/api/v1/trials/{trial.pk}/cancel", f"/api/v1/environments/{proofs.environment.name}/proofs/cancel"]
    for path in paths:
        assert client.post(path, headers=key(Scope.READ)).status_code == 403
        answer = client.post(path, headers=key(Scope.BUILD))
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        assert client.post(path, headers=key(Scope.BUILD)).status_code == 409
