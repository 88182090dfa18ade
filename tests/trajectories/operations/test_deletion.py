"""Deleting really deletes: afterwards no table holds a word of it, and nothing of anybody else is gone."""

import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.agents.models import Agent, ShadowCopy
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Cluster, Clustering, Member
from flywheel.training.models import Dataset
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Batch, Blob, Body, Event, Feedback, Quarantined, Source, Step, Trajectory
from flywheel.trajectories.operations.deletion import REMOVED, delete, delete_all, held_by
from flywheel.trajectories.store.merge import store
from flywheel.trajectories.store.rows import trajectory_rows
from tests.agents.splits.splitting import split_of
from tests.conftest import Build, Cast, proposed
from tests.trajectories.formats.sending import as_json
from tests.trajectories.talking import TRACE, body_of, episode, request_of, span, text
from tests.waiting import PATIENCE_S

CANARY = "canary7Qx9"
OTHER = "11" * 16


def everywhere(word: str) -> dict[str, int]:
    """Tables with a row that holds the word, as text or as bytes, in any case."""
    found = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in cursor.fetchall():
            cursor.execute(
                f"SELECT count(*) FROM {table} AS t WHERE t::text ILIKE %s OR t::text ILIKE %s",
                [f"%{word}%", f"%{word.encode().hex()}%"],
            )
            if count := cursor.fetchone()[0]:
                found[table] = count
    return found


def parts_of(spans: list[Any]) -> list[Span]:
    return otlp_traces.decode(body_of(spans), otlp_traces.PROTOBUF).spans


@pytest.fixture
def send(client: Client, key: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    headers = key("ingest")

    def go(body: bytes, content_type: str = "application/x-protobuf") -> Any:
        return client.post("/v1/traces", body, content_type=content_type, headers=headers)

    return go


def canary_spans() -> list[Any]:
    """A trajectory with the word in every place that a span has, and in a value that spills."""
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.agent.name": f"agent {CANARY}",
        "gen_ai.agent.version": f"v {CANARY}",
        "gen_ai.conversation.id": f"session {CANARY}",
        "user.id": CANARY,
        "gen_ai.request.model": CANARY,
        "gen_ai.response.finish_reasons": json.dumps([CANARY]),
        "gen_ai.input.messages": json.dumps([text("user", f"{CANARY} please")]),
        "gen_ai.output.messages": json.dumps([text("assistant", f"{CANARY} {'x' * 90_000}")]),
        "gen_ai.tool.definitions": json.dumps([{"name": CANARY, "description": CANARY}]),
        "flywheel.meta.note": CANARY,
        "flywheel.outcome": f"perhaps {CANARY}",
        "tag.tags": CANARY,
        "deployment.environment.name": CANARY,
        "plain": CANARY,
    }
    attributes: dict[str, Any] = {key.replace(".", "__"): value for key, value in said.items()}
    chat = span(1, name=f"chat {CANARY}", error=f"{CANARY} failed", **attributes)
    chat.events.add(name=CANARY).attributes.add(key=CANARY).value.string_value = CANARY
    chat.trace_state = f"k={CANARY}"
    stepped = chat.events.add(name="flywheel.intervention")
    stepped.attributes.add(key="note").value.string_value = CANARY
    tool = span(2, parent=1, name=CANARY, gen_ai__operation__name="execute_tool", gen_ai__tool__name=CANARY)
    return [chat, tool]


def test_no_table_holds_a_word_of_it(
    cast: Cast,
    build: Build,
    send: Callable[..., Any],
    sign_in: Callable[[User], Client],
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    request = request_of(canary_spans())
    request.resource_spans[0].resource.attributes.add(key="service.name").value.string_value = CANARY
    assert send(request.SerializeToString()).status_code == 200
    broken = as_json(request_of([span(3, other=CANARY)]))
    found = broken["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    found["status"] = {"code": CANARY}
    assert send(json.dumps(broken).encode(), "application/json").status_code == 200
    row = Trajectory.objects.get()
    beside = {"project": cast.project, "trace_id": TRACE}
    Feedback.objects.create(
        **beside, key=CANARY, comment=CANARY, source="human", at=timezone.now(), identity="i", digest="d"
    )
    Event.objects.create(**beside, name="gen_ai.choice", body={"said": CANARY}, digest=b"1")
    proposed(row, "format_error", 0.5, evidence=CANARY)
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error", corrected={"text": CANARY})
    clustering = Clustering.objects.create(project=cast.project, created_by=cast.admin, up_to=row.pk)
    cluster = Cluster.objects.create(clustering=clustering, words=[CANARY], calls=[CANARY], medoid=row, size=1)
    Member.objects.create(clustering=clustering, cluster=cluster, trajectory=row, likeness=1)
    held = everywhere(CANARY)
    for table in ("trajectory", "step", "body", "blob", "batch", "quarantined", "feedback", "event"):
        assert f"trajectories_{table}" in held, table
    assert {"failures_failure", "failures_proposal", "failures_cluster", "agents_agent"} <= set(held)

    counts = held_by(row)
    assert (counts.steps, counts.values, counts.bodies, counts.shared, counts.quarantined) == (2, 1, 1, 0, 1)
    assert (counts.feedback, counts.events, counts.decisions, counts.proposals) == (1, 1, 1, 1)
    address = reverse("trajectories:delete", args=[cast.project.slug, TRACE])
    assert "Delete for good" in sign_in(cast.admin).get(address).content.decode()
    with django_capture_on_commit_callbacks(execute=True):
        assert sign_in(cast.admin).post(address, {"reason": "asked to"}).status_code == 302

    assert everywhere(CANARY) == {}
    assert [(batch.received, batch.rejected) for batch in Batch.objects.order_by("pk")] == [(2, 0), (1, 1)]
    entry = AuditEntry.objects.get(action="trajectories.delete")
    assert (entry.actor, entry.reason, entry.data["steps"]) == (cast.admin, "asked to", 2)


def test_what_others_hold_too_stays(cast: Cast, send: Callable[..., Any]) -> None:
    big = "z" * 70_000
    send(body_of([span(1, notes=big, gen_ai__agent__name="shared"), span(2, notes="y" * 70_000)]))
    send(body_of([span(1, trace=OTHER, notes=big, gen_ai__agent__name="shared")]))
    send(body_of([span(5, trace=OTHER), span(6)]))
    delete(trajectory=Trajectory.objects.get(trace_id=TRACE), actor=Actor(cast.admin))
    assert [row.content for row in Blob.objects.all()] == [big]
    assert [row.trace_id for row in Trajectory.objects.all()] == [OTHER]
    assert Step.objects.count() == 2
    assert [row.trace_ids for row in Body.objects.all()] == [[OTHER]], "the one that held both is gone"
    assert Agent.objects.get().name == "shared"


@pytest.mark.parametrize("written", ["hex", "HEX", "base64", "raw"])
def test_rejected_spans_are_found_however_their_id_is_written(cast: Cast, written: str) -> None:
    store(cast.project, [], source=Source.PRODUCTION, format="otlp")
    number = bytes.fromhex(TRACE)
    forms = {"hex": TRACE.encode(), "HEX": TRACE.upper().encode(), "base64": base64.b64encode(number), "raw": number}
    batch = Batch.objects.get()
    for content in (b"\x01" + forms[written] + b"\x02", b"nothing of it"):
        Quarantined.objects.create(project=cast.project, batch=batch, at="span 0", reason="r", content=content)
    row = Trajectory.objects.create(project=cast.project, trace_id=TRACE, started_at=timezone.now())
    delete(trajectory=row, actor=Actor(cast.admin))
    assert [bytes(item.content) for item in Quarantined.objects.all()] == [b"nothing of it"]


def test_the_ledger_forgets_all_that_one_request_brought_of_it(cast: Cast, build: Build) -> None:
    row = build.trajectory()
    problems = [{"at": f"span {n}", "reason": f"{CANARY} {n}"} for n in range(3)]
    batch = Batch.objects.create(
        project=cast.project,
        format="otlp",
        sha256="a" * 64,
        received=3,
        inserted=0,
        updated=0,
        duplicate=0,
        rejected=3,
        problems=problems,
    )
    for n, content in enumerate((row.trace_id, row.trace_id.upper(), OTHER)):
        Quarantined.objects.create(
            project=cast.project, batch=batch, at=f"span {n}", reason="x", format="otlp", content=content.encode()
        )
    delete(trajectory=row, actor=Actor(cast.admin))
    batch.refresh_from_db()
    assert [problem["reason"] for problem in batch.problems] == [REMOVED, REMOVED, f"{CANARY} 2"]


def test_many_are_deleted_together_by_as_many_statements_as_one(cast: Cast, build: Build) -> None:
    rows = [build.trajectory() for _ in range(21)]
    kept = build.trajectory()
    decide(trajectory=rows[3], actor=Actor(cast.reviewer), bucket="wrong_tool")
    task = build.task(source=rows[4])
    for row in (rows[0], rows[5]):
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    with CaptureQueriesContext(connection) as alone:
        delete(trajectory=rows[0], actor=Actor(cast.admin))
    keys = [row.pk for row in rows]
    with CaptureQueriesContext(connection) as together:
        gone = delete_all(project=cast.project, keys=keys, actor=Actor(cast.admin), reason="all of them")
    assert gone == dict.fromkeys(keys[1:], 3)
    assert len(together) < len(alone) + 12, "but for what was made of one of them"
    assert list(Trajectory.objects.filter(project=cast.project)) == [kept]
    told = {entry.subject: entry for entry in AuditEntry.objects.filter(action="trajectories.delete")}
    assert set(told) == {f"trajectory {row.trace_id}" for row in rows}
    assert told[f"trajectory {rows[4].trace_id}"].data["tasks_kept"] == [str(task)]
    assert told[f"trajectory {rows[5].trace_id}"].data["tasks_kept"] == []
    assert {entry.reason for entry in told.values()} == {"", "all of them"}


def test_tasks_and_scores_stay_and_are_told(cast: Cast, build: Build) -> None:
    row = build.trajectory()
    task_set = build.task_set(train=1, held_out=1)
    task = task_set.tasks.order_by("pk")[0]
    task.source = row
    task.save()
    held = held_by(row)
    assert held.tasks == [task]
    delete(trajectory=row, actor=Actor(cast.admin))
    task.refresh_from_db()
    assert task.source_id is None
    assert task.prompt


def test_a_rollout_leaves_its_score(cast: Cast, build: Build) -> None:
    from flywheel.evals.models import EvalRun, Result

    task_set = build.task_set(train=1, held_out=1)
    run, _ = EvalRun.submit(
        key="0" * 31 + "1",  # type: ignore[arg-type]
        project=cast.project,
        actor=Actor(cast.builder),
        version=build.version(),
        task_set=task_set,
        verifier_digest="d",
    )
    rollout = build.trajectory(source=Source.ROLLOUT)
    task = task_set.tasks.order_by("pk")[0]
    result = Result.objects.create(run=run, task=task, sample=0, seed=1, trajectory=rollout, score=1.0, success=True)
    assert held_by(rollout).result == result
    delete(trajectory=rollout, actor=Actor(cast.admin))
    result.refresh_from_db()
    assert (result.trajectory, result.score) == (None, 1.0)


def test_sessions_that_met_an_arm_lose_their_names_once_nothing_is_left_of_them(cast: Cast, build: Build) -> None:
    live = build.version()
    split = split_of(live, build.version(system_prompt="Another"))
    rows = [build.trajectory(agent=live.agent, session_id=name) for name in ("whole", "half", "half", "")]
    unit = split.units.create
    whole, half, trace, beginning, other = (
        unit(kind="session", name="whole", is_candidate=True, share=1, parts={"failed": 1.0}),
        unit(kind="session", name="half", trace_id=rows[1].trace_id, is_candidate=True, share=1),
        unit(kind="trace", name=rows[3].trace_id, trace_id=rows[3].trace_id, is_candidate=True, share=1),
        unit(kind="beginning", name="digest", trace_id=rows[0].trace_id, is_candidate=True, share=1),
        unit(kind="session", name="another", trace_id=OTHER, is_candidate=True, share=1),
    )
    own = build.trajectory(source=Source.SHADOW, agent=live.agent, session_id="half")
    copies = [
        ShadowCopy.objects.create(split=split, kind="session", name=name, trace_id=row.trace_id, copy_trace_id=its)
        for name, row, its in (("half", rows[1], own.trace_id), ("half", rows[2], "a"), ("whole", rows[0], "b"))
    ]
    gone = [rows[0], rows[1], rows[3]]
    delete_all(project=cast.project, keys=[row.pk for row in gone], actor=Actor(cast.admin))
    told = {row.pk: (row.name, row.trace_id) for row in split.units.all()}
    assert told == {
        whole.pk: (f"deleted {whole.pk}", ""),
        half.pk: ("half", ""),
        trace.pk: (f"deleted {trace.pk}", ""),
        beginning.pk: (f"deleted {beginning.pk}", ""),
        other.pk: ("another", OTHER),
    }
    assert [ShadowCopy.objects.get(pk=copy.pk).name[:8] for copy in copies[1:]] == ["half", "deleted "]
    assert not Trajectory.objects.filter(pk=own.pk).exists(), "the answer to a copy goes with the call"
    assert split.units.get(pk=whole.pk).parts == {"failed": 1.0}, "how it went was judged"


def test_only_an_admin_deletes_and_twice_is_once(cast: Cast, build: Build, sign_in: Callable[[User], Client]) -> None:
    row = build.trajectory()
    address = reverse("trajectories:delete", args=[cast.project.slug, row.trace_id])
    assert sign_in(cast.trainer).post(address).status_code == 403
    assert sign_in(cast.admin).post(address).status_code == 302
    assert sign_in(cast.admin).post(address).status_code == 404
    assert delete(trajectory=row, actor=Actor(cast.admin)) == 0
    assert AuditEntry.objects.filter(action="trajectories.delete").count() == 1


def test_every_model_that_names_a_trajectory_is_known_to_deletion() -> None:
    """A new table keyed by trace id, or pointing at a trajectory, has to say here that deletion knows it."""
    named = {
        model.__name__
        for model in apps.get_models()
        if model is not Trajectory
        and any(item.name in ("trace_id", "trace_ids", "trajectory") for item in model._meta.get_fields())
    }
    assert named == {
        *("Step", "ModelCall", "Event", "Feedback", "Body", "Quarantined", "Words", "Comment"),
        *("Proposal", "Failure", "QueueItem", "Result"),
        *("Sketch", "Member", "TrainingAttempt", "SplitUnit", "ShadowCopy"),
    }


@pytest.mark.django_db(transaction=True)
def test_a_value_that_comes_again_at_the_same_moment_is_kept(cast: Cast) -> None:
    """A step that is stored while the last other one with its large value is deleted finds the value afterwards."""
    big = {"notes": "w" * 70_000}
    store(cast.project, [Span(TRACE, f"{1:016x}", attributes=big)], source=Source.PRODUCTION, format="otlp")
    row = Trajectory.objects.get()
    begun, done = threading.Event(), threading.Event()

    def remove() -> None:
        begun.wait(PATIENCE_S)
        try:
            delete(trajectory=row, actor=Actor(cast.admin))
        finally:
            done.set()
            connection.close()

    thread = threading.Thread(target=remove)
    thread.start()
    with transaction.atomic():
        store(cast.project, [Span(OTHER, f"{2:016x}", attributes=big)], source=Source.PRODUCTION, format="otlp")
        begun.set()
        assert not done.wait(0.5), "deletion waits for whoever stores the same value"
    thread.join(PATIENCE_S)
    assert [blob.content for blob in Blob.objects.all()] == [big["notes"]]
    assert [each.trace_id for each in Trajectory.objects.all()] == [OTHER]


def orphans() -> int:
    return Step.objects.exclude(trajectory__in=Trajectory.objects.values("pk")).count()


def test_steps_go_with_their_trajectory_however_it_is_deleted(cast: Cast) -> None:
    store(cast.project, parts_of([*episode(), *episode(OTHER)]), source=Source.PRODUCTION, format="otlp")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM trajectories_trajectory WHERE trace_id = %s", [TRACE])
    assert orphans() == 0
    assert {step.trajectory.trace_id for step in Step.objects.select_related("trajectory")} == {OTHER}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_new", [True, False])
def test_steps_that_arrive_during_a_deletion_leave_no_orphan(cast: Cast, is_new: bool) -> None:
    """Whoever writes steps holds their trajectory: a deletion waits, and then takes what was written meanwhile."""
    spans = parts_of(episode())
    if not is_new:
        store(cast.project, spans[:1], source=Source.PRODUCTION, format="otlp")
    begun, done = threading.Event(), threading.Event()

    def remove() -> None:
        begun.wait(PATIENCE_S)
        try:
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM trajectories_trajectory")
        finally:
            done.set()
            connection.close()

    thread = threading.Thread(target=remove)
    thread.start()
    with transaction.atomic():
        store(cast.project, spans, source=Source.PRODUCTION, format="otlp")
        begun.set()
        assert done.wait(PATIENCE_S if is_new else 0.5) == is_new, (
            "one that is not committed yet is not there for a deletion"
        )
    thread.join(PATIENCE_S)
    assert orphans() == 0
    assert Trajectory.objects.count() == is_new


@pytest.mark.django_db(transaction=True)
def test_steps_that_arrive_after_a_deletion_make_a_new_trajectory(cast: Cast) -> None:
    """The writer waits for a deletion under way, and finds nothing."""
    spans = parts_of(episode())
    store(cast.project, spans[:1], source=Source.PRODUCTION, format="otlp")
    done = threading.Event()

    def send() -> None:
        try:
            store(cast.project, spans, source=Source.PRODUCTION, format="otlp")
        finally:
            done.set()
            connection.close()

    thread = threading.Thread(target=send)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM trajectories_trajectory")
        thread.start()
        assert not done.wait(0.5), "a writer waits for whoever deletes"
    thread.join(PATIENCE_S)
    assert orphans() == 0
    assert Trajectory.objects.get().steps.count() == len(spans)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("dies", ["insert_trajectories", "write_steps", "move_steps"])
def test_a_writer_that_is_killed_leaves_no_orphan(cast: Cast, dies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = getattr(trajectory_rows, dies)

    def killed(*given: Any) -> None:
        whole(*given)
        with psycopg.connect(connection.connection.info.dsn) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])

    monkeypatch.setattr(trajectory_rows, dies, killed)
    with pytest.raises(DatabaseError):
        store(cast.project, parts_of(episode()), source=Source.PRODUCTION, format="otlp")
    connection.close()
    assert (Trajectory.objects.count(), Step.objects.count()) == (0, 0)


def test_only_what_was_trained_on_is_told_to_be_in_a_dataset(cast: Cast, build: Build) -> None:
    held_out, trained, tried = (build.trajectory() for _ in range(3))
    task_set = build.task_set(train=1, held_out=1)
    for split, row in (("held_out", held_out), ("train", trained)):
        task_set.tasks.filter(split=split).update(source=row)
    made = {"project": cast.project, "task_set": task_set, "kind": "sft", "rows": 1, "created_by": cast.trainer}
    dataset = Dataset.objects.create(**made, name="mail", version=1, digest="d" * 64, recipe={}, file="x")
    assert (held_by(held_out).tasks, held_by(held_out).datasets) == ([task_set.tasks.get(split="held_out")], [])
    assert held_by(trained).datasets == [dataset]
    assert (held_by(tried).tasks, held_by(tried).datasets) == ([], [])
