"""Old rollouts under another verifier: page and API, flips first, old scores kept, nothing for others."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.edge.jobs import Cancelled, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.versions import environment_versions
from flywheel.evals import run_rescores
from flywheel.evals.models import EvalRun, Rescore
from tests.conftest import TOOLS, Build, Cast
from tests.evals.fake import QuietLease, finished, right, say, submit
from tests.workers.judging.test_attempt_verdicts import carry_out
from workers.tasks import handler

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
TUESDAY = {"kind": "rubric", "parts": [{"type": "regex", "name": "nobody", "pattern": "Nobody"}]}


@pytest.fixture
def run(build: Build, monkeypatch: pytest.MonkeyPatch) -> EvalRun:
    """Six tasks, two attempts each; those of every other task are wrong."""

    def answer(request: Any) -> Any:
        return right(request) if request.seed % 2 else say("Nobody")

    return finished(build, monkeypatch, answer=answer, task_set=build.task_set(held_out=6))


@pytest.fixture
def other(run: EvalRun, build: Build) -> EnvironmentVersion:
    return environment_versions.environment_version(
        environment=run.task_set.environment_version.environment,
        actor=Actor(build.cast.builder),
        config={"tools": TOOLS},
        verifier=TUESDAY,
    )


def test_the_run_page_offers_other_verifiers_and_shows_what_they_changed(
    run: EvalRun, other: EnvironmentVersion, cast: Cast, sign_in: SignIn
) -> None:
    before = list(run.results.order_by("pk").values_list("score", "reason"))
    passed = run.results.filter(success=True).count()
    assert 0 < passed < 12
    client, slug = sign_in(cast.builder), cast.project.slug
    offered = client.get(reverse("evals:rescores", args=[slug, run.pk])).content.decode()
    assert "mail@2" in offered
    assert "as originally scored" in offered
    data = {"version": "2", "key": str(uuid.uuid4())}
    for _ in range(2):  # a double click makes one
        answer = client.post(reverse("evals:start_rescore", args=[slug, run.pk]), data)
    job = Rescore.objects.get()
    assert answer["location"] == reverse("evals:rescore", args=[slug, job.pk])
    assert "waiting for a worker" in client.get(answer["location"]).content.decode()
    carry_out(job)
    text = client.get(answer["location"]).content.decode()
    assert "Pass → fail" in text
    assert text.count("nobody: ") == 24, "each in its cell and in its title"
    found = run_rescores.changes(job)
    assert (found.n, found.to_fail, found.to_pass, found.flips) == (12, passed, 12 - passed, 12)
    assert list(run.results.order_by("pk").values_list("score", "reason")) == before
    entry = AuditEntry.objects.get(action="evals.rescore")
    assert entry.data["verifier_digest"] == other.verifier_digest


def test_its_own_verifier_changes_nothing(run: EvalRun, build: Build) -> None:
    version = run.task_set.environment_version
    job, _ = run_rescores.submit(run=run, version=version, actor=Actor(build.cast.builder), key=uuid.uuid4())
    carry_out(job)
    found = run_rescores.changes(job)
    assert (found.same, found.n, found.before) == (12, 12, found.after)
    rows = list(job.scores.select_related("result"))
    assert [(row.score, row.parts, row.reason) for row in rows] == [
        (row.result.score, row.result.parts, row.result.reason) for row in rows
    ]


def test_what_cannot_be_judged_again_is_refused_with_its_reason(run: EvalRun, build: Build) -> None:
    foreign = build.environment("other").latest
    with pytest.raises(Refused, match="other@1 is of another environment"):
        run_rescores.submit(run=run, version=foreign, actor=Actor(build.cast.builder), key=uuid.uuid4())
    waiting = submit(build, task_set=run.task_set)
    with pytest.raises(Refused, match="is queued"):
        run_rescores.submit(
            run=waiting, version=run.task_set.environment_version, actor=Actor(build.cast.builder), key=uuid.uuid4()
        )


def test_a_program_asks_and_reads_the_flips(
    run: EvalRun, other: EnvironmentVersion, cast: Cast, client: Client, key: Keys
) -> None:
    headers = key("read", "build", by=cast.builder)
    address = f"/api/v1/evals/{run.pk}/rescores"
    refused = client.post(address, {"version": 9}, content_type="application/json", headers=headers)
    assert (refused.status_code, refused.json()["detail"]) == (422, "version: there is no environment version 9")
    asked = client.post(address, {"version": 2}, content_type="application/json", headers=headers).json()
    carry_out(Rescore.objects.get(pk=asked["id"]))
    told = client.get(f"/api/v1/rescores/{asked['id']}", headers=headers).json()
    assert (told["state"], told["changes"]["n"], told["verifier_digest"]) == ("succeeded", 12, other.verifier_digest)
    first = client.get(f"/api/v1/rescores/{asked['id']}/scores?flips=true&limit=5", headers=headers).json()
    rest = client.get(
        f"/api/v1/rescores/{asked['id']}/scores?flips=true&limit=50&cursor={first['next']}", headers=headers
    ).json()
    assert (len(first["items"]), len(rest["items"]), rest["next"]) == (5, 7, None)
    assert all(row["success"] is not row["success_before"] for row in first["items"])


def test_it_is_stopped_and_goes_on(
    run: EvalRun, other: EnvironmentVersion, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged is kept, and the others are judged when it is resumed."""
    monkeypatch.setattr(run_rescores, "AT_ONCE", 5)
    job, _ = run_rescores.submit(run=run, version=other, actor=Actor(cast.builder), key=uuid.uuid4())
    claimed = Rescore.claim(job.pk)
    assert claimed is not None
    lease = QuietLease(claimed.job, claimed.fence, 0.0)
    client, page = sign_in(cast.builder), reverse("evals:rescore", args=["acme", job.pk])
    stop, go_on = (reverse(f"evals:{verb}_rescore", args=["acme", job.pk]) for verb in ("cancel", "resume"))
    assert stop in client.get(reverse("evals:rescore_live", args=["acme", job.pk])).content.decode()
    keep = run_rescores.keep

    def stop_meanwhile(*args: Any) -> None:
        keep(*args)
        assert client.post(stop)["location"] == page
        lease._cancelled.set()

    monkeypatch.setattr(run_rescores, "keep", stop_meanwhile)
    with pytest.raises(Cancelled) as stopped:
        handler(job.label)(lease)
    lease._end(stopped.value)
    monkeypatch.setattr(run_rescores, "keep", keep)
    job.refresh_from_db()
    assert (job.state, job.done, job.scores.count()) == (State.CANCELLED, 5, 5)
    text = client.get(page).content.decode()
    assert "5 of 12 attempts are scored and kept" in text
    assert go_on in text
    assert "Not stopped: the job is over already." in client.post(stop, follow=True).content.decode()
    client.post(go_on)
    carry_out(job)
    assert (job.state, job.scores.count()) == (State.SUCCEEDED, 12)
    assert "Not resumed" in client.post(go_on, follow=True).content.decode()
    actions = AuditEntry.objects.filter(action__endswith="_rescore").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["evals.cancel_rescore", "evals.resume_rescore"]


def test_a_program_stops_it_and_goes_on_but_not_with_what_a_canary_made_void(
    run: EvalRun, other: EnvironmentVersion, cast: Cast, client: Client, key: Keys
) -> None:
    job, _ = run_rescores.submit(run=run, version=other, actor=Actor(cast.builder), key=uuid.uuid4())
    headers, url = key("build", by=cast.builder), f"/api/v1/rescores/{job.pk}"
    assert client.post(f"{url}/cancel", headers=headers).json()["state"] == "cancelled"
    assert client.post(f"{url}/cancel", headers=headers).status_code == 409
    assert client.post(f"{url}/resume", headers=headers).json()["state"] == "queued"
    Rescore.objects.update(state=State.FAILED, error_kind="canary", judges={"right": {"void": "a canary"}})
    refused = client.post(f"{url}/resume", headers=headers)
    assert (refused.status_code, "is void" in refused.json()["detail"]) == (409, True)
    assert client.post(f"{url}/resume", headers=key("read", by=cast.builder)).status_code == 403


def test_others_may_look_and_not_ask(run: EvalRun, cast: Cast, sign_in: SignIn) -> None:
    address = reverse("evals:start_rescore", args=[cast.project.slug, run.pk])
    assert sign_in(cast.reviewer).post(address, {"version": "1"}).status_code == 403
    assert sign_in(cast.stranger).post(address, {"version": "1"}).status_code == 404
