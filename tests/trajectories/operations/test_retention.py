"""A project keeps what arrives for as long as it says, and what is in use for longer."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.agents.models import Agent
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import decide
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.models import Batch, Body, Retention, Source, Step, Trajectory
from flywheel.trajectories.operations import retention
from flywheel.trajectories.operations.retention import doomed, expire, set_retention
from tests.conftest import Build, Cast
from tests.pages import page_of
from tests.trajectories.talking import body_of, episode

DEFAULTS: dict[str, Any] = {
    "bodies_days": 7,
    "quarantine_days": 30,
    "ledger_days": None,
    "production_days": None,
    "import_days": None,
    "rollout_days": None,
    "takes_used": False,
}


def keep(cast: Cast, **days: Any) -> Retention:
    return set_retention(project=cast.project, actor=Actor(cast.admin), **{**DEFAULTS, **days})


def aged(days: float, *rows: Trajectory) -> None:
    then = timezone.now() - timedelta(days=days)
    Trajectory.objects.filter(pk__in=[row.pk for row in rows]).update(received_at=then, changed_at=then)


@pytest.fixture
def send(client: Client, key: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    headers = key("ingest")

    def go(body: bytes) -> Any:
        return client.post("/v1/traces", body, content_type="application/x-protobuf", headers=headers)

    return go


def test_raw_requests_go_after_a_week_and_trajectories_stay(cast: Cast, send: Callable[..., Any]) -> None:
    send(body_of(episode()))
    now = timezone.now()
    assert expire(cast.project, now + timedelta(days=6.9)) == {}
    assert expire(cast.project, now + timedelta(days=7.1)) == {"raw requests": 1}
    assert (Body.objects.count(), Trajectory.objects.count(), Batch.objects.count()) == (0, 1, 1)
    assert expire(cast.project, now + timedelta(days=4000)) == {}


def test_with_no_days_a_raw_request_is_not_even_written(cast: Cast, send: Callable[..., Any]) -> None:
    keep(cast, bodies_days=0)
    assert send(body_of(episode())).status_code == 200
    assert (Body.objects.count(), Trajectory.objects.count()) == (0, 1)
    keep(cast, bodies_days=1)
    send(body_of(episode("22" * 16)))
    assert Body.objects.count() == 1


def test_only_what_is_old_of_its_source_goes(cast: Cast, build: Build) -> None:
    old, fresh, imported = build.trajectory(), build.trajectory(), build.trajectory(source=Source.IMPORT)
    elsewhere = build.trajectory(project=cast.elsewhere)
    aged(31, old, imported, elsewhere)
    row = keep(cast, production_days=30)
    assert (doomed(row).trajectories, doomed(row).total) == ({"production": 1}, 1)
    assert expire(cast.project) == {"trajectories": 1}
    assert {each.pk for each in Trajectory.objects.all()} == {fresh.pk, imported.pk, elsewhere.pk}
    assert not Step.objects.filter(trajectory=old.pk).exists()
    entry = AuditEntry.objects.get(action="trajectories.expire")
    assert (entry.actor, entry.through, entry.subject) == (cast.admin, "retention", "1 trajectories")


def test_what_still_grows_is_not_old(cast: Cast, build: Build) -> None:
    row = build.trajectory()
    Trajectory.objects.filter(pk=row.pk).update(received_at=timezone.now() - timedelta(days=99))
    keep(cast, production_days=30)
    assert expire(cast.project) == {}


def test_what_is_in_use_is_kept_and_counted_by_why(cast: Cast, build: Build) -> None:
    labelled, tasked, both, plain = (build.trajectory() for _ in range(4))
    rollout, idle = (build.trajectory(source=Source.ROLLOUT) for _ in range(2))
    aged(31, labelled, tasked, both, plain, rollout, idle)
    for row in (labelled, both):
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    task_set = build.task_set(train=1, held_out=1)
    for task, source in zip(task_set.tasks.order_by("pk"), (tasked, both), strict=True):
        task.source = source
        task.save()
    build.task(source=tasked)
    run, _ = EvalRun.submit(
        key="0" * 31 + "1",  # type: ignore[arg-type]
        project=cast.project,
        actor=Actor(cast.builder),
        version=build.version(),
        task_set=task_set,
        verifier_digest="d",
    )
    result = Result.objects.create(run=run, task=task, sample=0, seed=1, trajectory=rollout, score=1.0, success=True)
    found = doomed(keep(cast, production_days=30, rollout_days=30))
    assert found.trajectories == {"production": 1, "rollout": 1, "training": 0, "shadow": 0}
    assert (found.decided, found.tasked, found.measured) == (2, 1, 1)
    assert expire(cast.project) == {"trajectories": 2}
    assert set(Trajectory.objects.values_list("pk", flat=True)) == {labelled.pk, tasked.pk, both.pk, rollout.pk}

    found = doomed(keep(cast, production_days=30, rollout_days=30, takes_used=True))
    assert (found.total, found.spared) == (4, 0)
    assert expire(cast.project) == {"trajectories": 4}
    result.refresh_from_db()
    assert (result.trajectory, result.score) == (None, 1.0)
    assert task_set.tasks.count() == 2


def test_one_sweep_goes_on_over_batches_and_ends_in_time(
    cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [build.trajectory() for _ in range(5)]
    aged(31, *rows)
    keep(cast, production_days=30)
    monkeypatch.setattr(retention, "TRAJECTORIES_AT_ONCE", 2)
    monkeypatch.setattr(retention, "SWEEP_S", -1.0)
    assert expire(cast.project) == {}
    monkeypatch.setattr(retention, "SWEEP_S", 30.0)
    retention.sweep()
    assert not Trajectory.objects.exists()


def test_the_ledger_goes_only_after_what_it_rejected(cast: Cast) -> None:
    counts = {"received": 1, "inserted": 0, "updated": 0, "duplicate": 0, "rejected": 1}
    kept, _ = (Batch.objects.create(project=cast.project, format="otlp", **counts) for _ in range(2))
    kept.quarantined.create(project=cast.project, at="span 0", reason="r", content=b"c")
    keep(cast, ledger_days=1, quarantine_days=30)
    assert expire(cast.project, timezone.now() + timedelta(days=2)) == {"rows of the ledger": 1}
    assert [row.pk for row in Batch.objects.all()] == [kept.pk]


def test_the_page_shows_what_it_would_delete_before_it_is_saved(
    cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    rows = [build.trajectory() for _ in range(3)]
    aged(40, *rows)
    decide(trajectory=rows[0], actor=Actor(cast.reviewer), bucket="wrong_tool")
    client = sign_in(cast.admin)
    page = reverse("settings:retention", args=[cast.project.slug])
    assert "Would delete no trajectories now" in page_of(client.get(page))
    asked = {"production_days": "30", "bodies_days": "7", "quarantine_days": "30"}
    preview = page_of(client.get(reverse("settings:retention_preview", args=[cast.project.slug]), asked))
    assert "Would delete 2 trajectories now" in preview
    assert "Reviewed" in preview
    assert not Retention.objects.exists()
    assert client.post(page, {**asked, "quarantine_days": ""}).status_code == 422
    assert client.post(page, asked).status_code == 302
    row = Retention.objects.get()
    assert (row.production_days, row.import_days, row.takes_used, row.set_by) == (30, None, False, cast.admin)
    entry = AuditEntry.objects.get(action="trajectories.set_retention")
    assert (entry.data["before"]["production_days"], entry.data["after"]["production_days"]) == (None, 30)
    client.post(page, asked)
    assert AuditEntry.objects.filter(action="trajectories.set_retention").count() == 1
    assert Trajectory.objects.count() == 3, "saving deletes nothing by itself"
    assert sign_in(cast.approver).get(page).status_code == 403


def test_beat_sweeps(cast: Cast, send: Callable[..., Any]) -> None:
    from flywheel.system import broker
    from workers import tasks

    send(body_of(episode()))
    Body.objects.update(received_at=timezone.now() - timedelta(days=8))
    tasks.expire()
    assert not Body.objects.exists()
    assert "workers.expire" in {entry["task"] for entry in broker.celery_settings()["beat_schedule"].values()}


def test_an_agent_that_was_only_guessed_goes_when_nothing_speaks_of_it(
    cast: Cast, build: Build, send: Callable[..., Any]
) -> None:
    *parts, root = episode()
    send(body_of([each for each in parts if each.span_id != (2).to_bytes(8, "big")]))
    assert set(Agent.objects.values_list("name", flat=True)) == {"shop"}
    send(body_of([root]))
    Agent.objects.create(project=cast.project, name="planned")
    worked_on = Agent.objects.create(project=cast.project, name="worked-on", description="Discovered from traces")
    build.version(worked_on)
    soon = timezone.now() + timedelta(minutes=5)
    assert (expire(cast.project, soon), Agent.objects.count()) == ({}, 4)
    later = timezone.now() + timedelta(minutes=11)
    assert expire(cast.project, later) == {"agents": 1}
    assert set(Agent.objects.values_list("name", flat=True)) == {"support", "planned", "worked-on"}
    row = Trajectory.objects.get()
    assert row.agent is not None
    assert row.agent.name == "support"
    assert expire(cast.project, later) == {}


def test_calls_that_could_not_be_recorded_are_kept_as_long_as_what_was_rejected(cast: Cast, settings: Any) -> None:
    keep(cast, quarantine_days=3)
    days = {"mine": 4, "young": 2, "theirs": 4, "old": 31, "broken": 31}
    whose = {"theirs": cast.elsewhere.pk, "old": cast.elsewhere.pk}
    (settings.GATEWAY_DIR / "bad").mkdir(parents=True)
    for name, age in days.items():
        call = Journal.begin({"id": name, "project": whose.get(name, cast.project.pk)}, b"{}")
        assert call.path is not None
        if name == "broken":
            call.path.write_bytes(b"?")
        call.put_aside()
        then = time.time() - 86_400 * age
        os.utime(settings.GATEWAY_DIR / "bad" / f"{name}.exchange", (then, then))
    waiting = Journal.begin({"id": "waiting", "project": cast.project.pk}, b"{}")
    assert waiting.path is not None
    os.utime(waiting.path, (0, 0))
    waiting.keep()
    retention.sweep()
    assert {path.stem for path in settings.GATEWAY_DIR.rglob("*.exchange")} == {"young", "theirs", "waiting"}
