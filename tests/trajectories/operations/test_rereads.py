"""What a newer version reads better reaches what is stored, and what cannot be read anew stays."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.models import AuditEntry, User
from flywheel.accounts.project_settings import model_prices
from flywheel.core import traces
from flywheel.edge.jobs import Lease, State
from flywheel.trajectories.formats.semantics import span_meaning
from flywheel.trajectories.models import Body, Feedback, Reread, Source, Step, Trajectory
from flywheel.trajectories.operations.rereads import read_again, reread
from flywheel.trajectories.store.merge import store
from tests.conftest import Build, Cast
from tests.trajectories.talking import TRACE, body_of, episode, span
from workers.jobs.trajectories import span_rereads

PROTOBUF = "application/x-protobuf"


@pytest.fixture
def send(client: Client, key: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    headers = key("ingest")

    def go(body: bytes) -> Any:
        return client.post("/v1/traces", body, content_type=PROTOBUF, headers=headers)

    return go


def columns() -> list[dict[str, Any]]:
    """Everything that lists show of trajectories and steps."""
    apart = {"detected_at", "changed_at", "received_at"}
    found = [*Trajectory.objects.order_by("pk").values(), *Step.objects.order_by("pk").values()]
    return [{name: value for name, value in row.items() if name not in apart} for row in found]


def read_all(cast: Cast) -> tuple[int, int]:
    last = list(reread(cast.project))[-1]
    return last.done, last.changed


def test_reading_again_with_the_same_eyes_changes_nothing(cast: Cast, send: Callable[..., Any]) -> None:
    spans = episode()
    spans[1].attributes.add(key="flywheel.outcome").value.string_value = "success"
    spans[1].attributes.add(key="gen_ai.agent.name").value.string_value = "helper"
    spans[1].attributes.add(key="gen_ai.agent.version").value.string_value = "3"
    spans[1].attributes.add(key="notes").value.string_value = "z" * 70_000
    for each in spans:
        send(body_of([each]))
    send(body_of(episode("22" * 16)))
    before = columns()
    assert before[0]["tool_names"]
    assert read_all(cast) == (2, 0)
    assert columns() == before


def test_another_price_is_no_news_to_detectors(cast: Cast, send: Callable[..., Any]) -> None:
    for trace in ("22" * 16, "33" * 16):
        send(body_of(episode(trace)))
    Step.objects.filter(kind="assistant").update(cost_usd=1.0, priced_by="table:1")
    read_on = timezone.now()
    Trajectory.objects.update(detected_at=read_on)
    assert read_all(cast) == (2, 2)
    assert not Step.objects.filter(priced_by="table:1").exists()
    assert set(Trajectory.objects.values_list("detected_at", flat=True)) == {read_on}
    Step.objects.filter(kind="assistant").update(model="former")
    assert read_all(cast) == (2, 2)
    assert set(Trajectory.objects.values_list("detected_at", flat=True)) == {None}


def test_what_is_told_twice_is_counted_once_when_it_is_read_again(cast: Cast, send: Callable[..., Any]) -> None:
    chat: dict[str, Any] = {
        "gen_ai__operation__name": "chat",
        "gen_ai__usage__input_tokens": 100,
        "gen_ai__usage__output_tokens": 10,
    }
    send(body_of([span(1, **chat), span(2, parent=1, at_ms=1, took_ms=5, **chat)]))
    Step.objects.filter(kind="assistant").update(model="former")
    assert read_all(cast) == (1, 1)
    assert Trajectory.objects.get().tokens_in == 100


def test_prices_are_read_once_for_all_of_them(
    cast: Cast, send: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for trace in ("22" * 16, "33" * 16):
        send(body_of(episode(trace)))
    asked = []

    def table_of(project: int) -> model_prices.Table:
        asked.append(project)
        return model_prices.Table([])

    monkeypatch.setattr(model_prices, "table_of", table_of)
    read_all(cast)
    assert asked == [cast.project.pk]


def test_what_is_read_now_reaches_the_columns(
    cast: Cast, send: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(span: Any, *rest: Any) -> Any:
        found = known(span, *rest)
        return replace(found, kind=None, model="", tokens_in=None, agent="wrong", session_id="", tool_name="")

    known = span_meaning.facts
    with monkeypatch.context() as patch:
        patch.setattr(span_meaning, "facts", older)
        send(body_of(episode()))
    old = columns()
    assert (old[0]["agent_name"], old[0]["tokens_in"]) == ("wrong", None)
    Trajectory.objects.update(detected_at=timezone.now())
    assert read_all(cast) == (1, 1)
    new = columns()
    Trajectory.objects.all().delete()
    send(body_of(episode()))
    fresh = columns()
    ids = {"id", "trajectory_id", "agent_id"}
    assert [{k: v for k, v in row.items() if k not in ids} for row in new] == [
        {k: v for k, v in row.items() if k not in ids} for row in fresh
    ]
    assert read_all(cast) == (1, 0)


def test_what_did_not_come_with_spans_stays(cast: Cast, send: Callable[..., Any]) -> None:
    send(body_of(episode()))
    said = traces.Trace(TRACE, metadata={"note": "kept"}, tags=["kept"], outcome="failed", session_id="s-1")
    store(cast.project, [said], source=Source.IMPORT, format="notes")
    imported = traces.Trace("own", [traces.Step("a", "user", tool_name="t")], agent="imported", tags=["x"])
    store(cast.project, [imported], source=Source.IMPORT, format="atif")
    Trajectory.objects.update(source=Source.IMPORT)
    before = columns()
    assert before[0]["metadata"]["note"] == "kept"
    assert read_all(cast) == (2, 0)
    assert columns() == before


def test_feedback_still_counts(cast: Cast, client: Client, send: Callable[..., Any]) -> None:
    send(body_of(episode()))
    row = Trajectory.objects.get()
    Feedback.objects.create(
        project=cast.project,
        trace_id=TRACE,
        key="outcome",
        value=False,
        source="human",
        at=timezone.now(),
        identity="i",
        digest="d",
    )
    assert read_again(cast.project, row.pk)
    row.refresh_from_db()
    assert row.outcome == "failed"


@pytest.mark.django_db(transaction=True)
def test_a_worker_goes_on_from_where_the_last_one_stopped(
    cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.trajectories.operations.rereads.TRAJECTORIES_AT_ONCE", 1)
    monkeypatch.setattr("flywheel.trajectories.store.detector_wakeup.now", lambda _: None)
    for number in range(3):
        send(body_of([span(1, trace=f"{number + 1:032x}")]))
    client = sign_in(cast.builder)
    page = reverse("trajectories:start_reread", args=[cast.project.slug])
    for _ in range(2):
        client.post(page, {"key": "6f2c1a52-9f0f-4f3e-9a38-6c0a9b4b7b11"})
    job = Reread.objects.get()
    assert AuditEntry.objects.filter(action="trajectories.reread").count() == 1
    first = Trajectory.objects.order_by("pk")[0]
    Reread.objects.update(at=first.pk, done=1)
    lease = Reread.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        span_rereads.read_again(lease)
    job.refresh_from_db()
    assert (job.state, job.done, job.total, job.changed) == (State.SUCCEEDED, 3, 3, 0)
    fragment = client.get(reverse("trajectories:reread", args=[cast.project.slug]), headers={"HX-Request": "true"})
    assert (fragment.status_code, b"3 trajectories" in fragment.content) == (286, True)


def test_commands(cast: Cast, build: Build, send: Callable[..., Any]) -> None:
    send(body_of(episode()))
    out = StringIO()
    call_command("reread", project=cast.project.slug, stdout=out, stderr=StringIO())
    assert out.getvalue() == "acme: 1 trajectories, 0 of them read differently\n"
    Step.objects.filter(span_id=f"{10:016x}").delete()
    Trajectory.objects.all().delete()
    out = StringIO()
    call_command("replay", since="2026-01-01", project=cast.project.slug, stdout=out)
    assert "acme: 1 requests; steps: 6 new, 0 updated, 0 there already, 0 rejected; 0" in out.getvalue()
    assert (Body.objects.count(), Trajectory.objects.get().step_count) == (1, 6)
    with pytest.raises(CommandError, match="neither a date"):
        call_command("replay", since="yesterday")
    with pytest.raises(CommandError, match="no project"):
        call_command("reread", project="nope")
