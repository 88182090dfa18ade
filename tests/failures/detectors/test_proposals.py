"""Detectors over stored trajectories: what they propose is replaced, and growth is never missed."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection
from django.db.models import F

from flywheel.core.detectors.standard_buckets import Context
from flywheel.core.detectors.standard_buckets import detect as run_detectors
from flywheel.core.traces import Trace, episodes, tooling
from flywheel.failures.detectors.proposals import detect, make_searchable, unread
from flywheel.failures.models import Proposal
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Batch, Source, Step, Trajectory
from flywheel.trajectories.store.merge import store
from flywheel.trajectories.store.stored_traces import Outline, glance, traces_of
from tests.conftest import Build, Cast
from tests.trajectories.formats.dialects.test_dialects_golden import GOLDEN, spans
from tests.trajectories.talking import body_of, span
from workers.jobs import detection
from workers.jobs.detection import DETECTING, detect_waiting
from workers.processes.niceness import Crowd

pytestmark = pytest.mark.django_db


def test_what_detectors_find_is_stored_with_its_step_and_shown_on_the_trajectory(build: Build) -> None:
    row = build.trajectory(answer='{"tool": "email.send", "arguments": {"to": ')
    assert detect_waiting() == 1
    proposal = row.proposals.first()
    assert proposal is not None
    assert (proposal.bucket, proposal.step) == ("format_error", "s2")
    assert proposal.evidence
    row.refresh_from_db()
    assert (row.proposed_bucket, row.proposed_score) == ("format_error", proposal.score)
    assert unread() == []


def test_a_good_trajectory_gets_no_proposal_and_is_not_read_twice(build: Build) -> None:
    row = build.trajectory(prompt="Meet Bako on friday")
    assert detect_waiting() == 1
    row.refresh_from_db()
    assert (row.proposed_bucket, row.proposed_score) == ("", None)
    assert detect_waiting() == 0


def test_growth_replaces_what_was_proposed(build: Build) -> None:
    row = build.trajectory(answer='{"tool": "email.send", "arguments": {"to": ')
    detect_waiting()
    good = tooling.call_text("calendar.create_event", {"person": "Bako", "day": "friday"})
    Step.objects.filter(trajectory=row, span_id="s2").update(body={"output": [{"role": "assistant", "content": good}]})
    Trajectory.objects.filter(pk=row.pk).update(changed_at=F("changed_at") + timedelta(seconds=1))
    assert detect_waiting() == 1
    row.refresh_from_db()
    assert row.proposed_bucket == ""
    assert not row.proposals.exists()


def test_the_usage_of_a_call_that_was_told_twice_counts_once(cast: Cast) -> None:
    """Whichever of the two arrives first, and again after the trajectory has grown."""
    outer = span(2, parent=1, gen_ai__operation__name="chat", gen_ai__usage__input_tokens=100, gen_ai__usage__cost=1)
    inner = span(3, parent=2, gen_ai__operation__name="chat", gen_ai__usage__input_tokens=100)
    later = span(4, parent=1, at_ms=9, gen_ai__operation__name="chat", gen_ai__usage__input_tokens=7)
    for sent, tokens, cost in (([inner], 100, None), ([outer], 100, 1.0), ([later], 107, 1.0), ([outer], 107, 1.0)):
        spans = otlp_traces.decode(body_of(sent), otlp_traces.PROTOBUF).spans
        store(cast.project, spans, source=Source.PRODUCTION, format="otlp")
        detect_waiting()
        row = Trajectory.objects.get()
        assert (row.tokens_in, row.cost_usd) == (tokens, cost)


def test_what_arrives_while_detectors_read_is_read_in_the_next_pass(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch sets `changed_at` before it commits: the time of reading would hide it, the state that was read not."""
    row = build.trajectory()

    def slow(rows: list[Outline]) -> object:
        traces = list(glance(rows))
        Trajectory.objects.filter(pk=row.pk).update(changed_at=F("changed_at") + timedelta(microseconds=1))
        return traces

    monkeypatch.setattr("flywheel.failures.detectors.proposals.glance", slow)
    detect(unread())
    monkeypatch.undo()
    assert [found.pk for found in unread()] == [row.pk]


def test_rollouts_are_judged_and_not_guessed_at(build: Build) -> None:
    build.trajectory(answer="{", source=Source.ROLLOUT)
    assert detect_waiting() == 0
    assert not Proposal.objects.exists()
    assert unread(are_rollouts=True) == []


def test_what_arrives_while_rollouts_are_read_waits_for_a_few_of_them_only(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation that goes on and on would otherwise keep detectors from all other traffic."""
    for _ in range(3):
        build.trajectory(source=Source.ROLLOUT)
    order: list[str] = []

    def search(rollouts: list[Outline]) -> None:
        order.append("rollout")
        make_searchable(rollouts)
        if order == ["rollout"]:
            build.trajectory(answer="{")

    def guess(rows: list[Outline]) -> int:
        order.append("arrived")
        return detect(rows)

    monkeypatch.setattr(detection, "AT_ONCE", 1)
    monkeypatch.setattr(detection, "make_searchable", search)
    monkeypatch.setattr(detection, "detect", guess)
    assert detect_waiting(build.cast.project.pk) == 1
    assert order == ["rollout", "arrived", "rollout", "rollout"]


def test_one_trajectory_that_cannot_be_read_does_not_hold_up_the_others(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = build.trajectory(answer="{"), build.trajectory(answer="{")

    def fragile(trace: Trace, context: Context) -> object:
        if trace.trace_id == bad.trace_id:
            raise RecursionError
        return run_detectors(trace, context)

    monkeypatch.setattr("flywheel.failures.detectors.proposals.run_detectors", fragile)
    assert detect_waiting() == 2
    assert good.proposals.exists()
    assert not bad.proposals.exists()
    assert unread() == []


def test_a_trajectory_deleted_meanwhile_is_left_out(build: Build) -> None:
    gone, kept = build.trajectory(answer="{"), build.trajectory(answer="{")
    rows = unread()
    Trajectory.objects.filter(pk=gone.pk).delete()
    detect(rows)
    assert set(Proposal.objects.values_list("trajectory", flat=True)) == {kept.pk}


def test_a_second_worker_leaves_the_reading_to_the_first(build: Build) -> None:
    build.trajectory(answer="{")
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [DETECTING])
            assert detect_waiting() == 0
            cursor.execute("SELECT pg_advisory_unlock(%s)", [DETECTING])
        assert detect_waiting() == 1
    finally:
        other.close()


def test_detection_keeps_what_people_decided(build: Build) -> None:
    row = build.trajectory(answer="{")
    row.label, row.label_bucket = "failure", "wrong_tool"
    row.save()
    detect_waiting()
    row.refresh_from_db()
    assert (row.label, row.label_bucket, row.proposed_bucket) == ("failure", "wrong_tool", "format_error")


@pytest.mark.parametrize("name", GOLDEN)
def test_what_detectors_glance_at_is_what_the_whole_trajectory_says(cast: Cast, name: str) -> None:
    found = spans(name)
    long = replace(found[0], span_id="f" * 16, name=f"execute_tool {'x' * 300}")
    long.attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": "[]"}
    for sent in (found, [replace(long, trace_id="f" * 32)]):
        store(cast.project, sent, source=Source.PRODUCTION, format="otlp")
    whole = traces_of(Trajectory.objects.all())
    glanced = {row.pk: trace for row, trace in glance(unread())}
    assert len(glanced) == len(whole) > 1
    for pk, trace in whole.items():
        assert episodes.read(glanced[pk]) == episodes.read(trace)


@pytest.mark.parametrize(("share", "flood", "pauses"), [(0.9, True, 3), (0.9, False, 1), (0.1, True, 0)])
def test_detectors_give_way_to_a_flood_and_still_read_all_of_it(
    build: Build, monkeypatch: pytest.MonkeyPatch, share: float, flood: bool, pauses: int
) -> None:
    """They wait while much arrives and others want the processor, for a while at most."""
    row = build.trajectory(prompt="Meet Bako on friday")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if flood:
            figures = {"received": detection.FLOOD, "inserted": detection.FLOOD}
            Batch.objects.create(project=row.project, format="otlp", updated=0, duplicate=0, rejected=0, **figures)

    monkeypatch.setattr(detection, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    monkeypatch.setattr(Crowd, "share", lambda _: share)
    monkeypatch.setattr(detection, "GIVE_WAY_S", 3 * detection.LOOK_S)
    assert detect_waiting() == 1
    assert now == pauses * detection.LOOK_S
    assert unread() == []
