import itertools
import math
import random

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from flywheel.agents.models import SplitUnit
from flywheel.core.evidence.ramp.ramp_judge import Judgement, Session, proof
from flywheel.core.evidence.statistics.sequential.arm_difference import difference
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import ramp_evidence, ramp_judging, ramp_units
from flywheel.promotions.ramps.ramp_evidence import evidence, moved_most, shown_wealth, wealth_path
from flywheel.promotions.ramps.ramp_words import next_words, standing_words
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search import query
from tests.promotions.ramps.conftest import Met


def filled(ramp: Ramp, count: int, share: int = 2500, *, live: float = 0.2, candidate: float = 0.6) -> list[Session]:
    """Final sessions as the judge would have written them."""
    rng = random.Random(3)
    sessions = []
    for _ in range(count):
        is_candidate = rng.random() < share / 10_000
        failed = float(rng.random() < (candidate if is_candidate else live))
        known = rng.random() < 0.9
        parts = dict.fromkeys(ramp.rules.signals, 0.0) | {"failed": failed if known else None}
        sessions.append(Session(is_candidate, share / 10_000, parts))
    path, after = Judgement.begin(ramp.rules).follow(sessions)
    SplitUnit.objects.bulk_create(
        SplitUnit(
            split=ramp.split,
            kind="trace",
            name=f"unit {number}",
            is_candidate=session.is_candidate,
            share=share,
            number=number,
            frozen_at=timezone.now(),
            parts=session.parts,
            wealth=wealth,
            trajectories=1,
        )
        for number, (session, wealth) in enumerate(zip(sessions, path, strict=True), 1)
    )
    Ramp.objects.filter(pk=ramp.pk).update(judgement=after.to_json())
    return sessions


def test_the_numbers_are_those_of_the_sessions(ramp: Ramp, met: Met) -> None:
    sessions = filled(ramp, 300)
    met(True)
    SplitUnit.objects.filter(pk=met(False).pk).update(mixed="not_given", frozen_at=timezone.now())
    found = evidence(ramp)
    judged = [session for session in sessions if session.parts["failed"] is not None]
    wanted = difference(
        [float(session.is_candidate) for session in judged],
        [session.share for session in judged],
        [session.parts["failed"] or 0.0 for session in judged],
    )
    assert found.difference == wanted
    assert found.used == len(judged)
    of_candidate = [session for session in sessions if session.is_candidate]
    assert (found.candidate.met, found.candidate.final) == (len(of_candidate) + 1, len(of_candidate))
    assert found.candidate.awaited == 1
    assert found.candidate.failures == sum(session.parts["failed"] or 0.0 for session in of_candidate)
    assert found.candidate.missing == sum(session.parts["failed"] is None for session in of_candidate)
    assert (found.live.mixed, found.mixed) == (1, {"answered by another version than that of its arm": 1})
    assert found.in_stage == found.final == 300
    last = SplitUnit.objects.get(split=ramp.split, number=300).wealth
    assert {row.key: row.wealth for row in found.signals} == last
    assert found.signals[0].reached == max(row.reached for row in found.signals)


def test_nothing_is_known_before_the_first_session(ramp: Ramp) -> None:
    found = evidence(ramp)
    assert (found.difference, found.used, found.final, found.proof) == (None, 0, 0, 1.0)
    assert found.live.failure_rate is None
    assert {row.wealth for row in found.signals} == {1.0}
    assert {row.candidate for row in found.signals} == {None}
    assert wealth_path(ramp.split) == []
    assert moved_most(ramp, "failed") == []


def test_the_line_of_wealth_is_thinned_and_ends_with_the_last_session(ramp: Ramp) -> None:
    filled(ramp, 300)
    assert [number for number, _ in wealth_path(ramp.split)] == list(range(1, 301))
    thin = wealth_path(ramp.split, 50)
    assert len(thin) <= 50
    assert (thin[0][0], thin[-1][0]) == (1, 300)
    assert thin[-1][1] == SplitUnit.objects.get(split=ramp.split, number=300).wealth


def test_the_sessions_that_moved_it_most_raised_the_wealth_by_the_largest_factors(ramp: Ramp) -> None:
    filled(ramp, 200)
    wealth = [1.0, *SplitUnit.objects.order_by("number").values_list("wealth__failed", flat=True)]
    factors = sorted((after / before for before, after in itertools.pairwise(wealth)), reverse=True)
    moved = moved_most(ramp, "failed")
    assert [row.factor for row in moved] == pytest.approx(factors[: len(moved)])
    assert {(row.unit.is_candidate, row.wrong) for row in moved} == {(True, "failures")}
    assert {row.wrong for row in moved_most(ramp, "unsafe")} == {""}, "where nothing is unsafe, all move it a little"


def test_a_wealth_of_nothing_breaks_no_page(ramp: Ramp) -> None:
    filled(ramp, 3)
    SplitUnit.objects.filter(split=ramp.split, number=2).update(wealth={"failed": 0.0})
    assert all(math.isfinite(row.factor) for row in moved_most(ramp, "failed"))
    assert evidence(ramp).final == 3


def test_the_number_of_statements_does_not_follow_that_of_the_sessions(ramp: Ramp) -> None:
    counts = []
    for count in (10, 400):
        SplitUnit.objects.filter(split=ramp.split).delete()
        filled(ramp, count)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            row = Ramp.objects.select_related("agent__project", "split", "candidate__version__agent").get(pk=ramp.pk)
            evidence(row)
            wealth_path(row.split)
            moved_most(row, "failed")
            ramp_evidence.crowded(row.split)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 10


def test_sessions_that_go_on_are_among_the_crowded_ones_and_frozen_small_ones_are_not(ramp: Ramp, met: Met) -> None:
    filled(ramp, 3)
    going_on, crowd, _ = met(True), met(False), met(False)
    SplitUnit.objects.filter(pk=going_on.pk).update(trajectories=1)
    SplitUnit.objects.filter(pk=crowd.pk).update(trajectories=100, frozen_at=timezone.now())
    assert ramp_evidence.crowded(ramp.split) == [crowd, going_on]


@pytest.mark.parametrize(
    ("wealth", "words"),
    [(0.0, "< 0.01"), (0.42, "0.42"), (1.0, "1"), (13.1, "13"), (2400.4, "2,400"), (1e300, "> 1,000,000")],
)
def test_a_wealth_is_written_shortly(wealth: float, words: str) -> None:
    assert shown_wealth(wealth) == words


def test_the_page_and_the_judge_rest_on_one_proof_of_all_signals_with_margins(ramp: Ramp) -> None:
    sessions = filled(ramp, 400, live=0.6, candidate=0.2)
    of_failures = evidence(ramp).proof
    assert of_failures == pytest.approx(proof(ramp.rules, sessions))
    ramp.plan = {**ramp.plan, "margins": {"unsafe": 0.05}}
    vars(ramp).pop("rules")
    numbers = evidence(ramp)
    assert numbers.proof == pytest.approx(proof(ramp.rules, sessions))
    assert numbers.proof < of_failures
    ramp.stage = 1
    said = "once failures are shown to be higher by less than 5 points, unsafe actions by less than 5 points: the proof"
    assert said in next_words(ramp, numbers)


def test_what_happens_next_is_said_in_every_state(ramp: Ramp) -> None:
    numbers = evidence(ramp)
    assert next_words(ramp, numbers) == "Next stage (50%) in at least 10 sessions, if nothing is found."
    assert standing_words(ramp) == "ramp at 25%"
    ramp.stage = 1
    assert "shown to be higher by less than 5 points: the proof has 1 of 20." in next_words(ramp, numbers)
    for finish, words in (("person", "Ready to finish in 10 sessions."), ("nothing_found", "Live for all sessions in")):
        ramp.plan = {**ramp.plan, "finish": finish}
        vars(ramp).pop("rules", None)
        assert words in next_words(ramp, numbers)
    for state, standing in (
        ("waiting", "ramp about to begin"),
        ("holding", "ramp at 25%, on hold"),
        ("finished", "ramp finished"),
        ("taken_back", "ramp taken back"),
        ("stopped", "ramp stopped"),
    ):
        ramp.state = state
        assert standing_words(ramp) == standing
        assert next_words(ramp, numbers).endswith(".")


def test_sessions_and_calls_that_override_the_version_are_counted_by_arm(ramp: Ramp, met: Met) -> None:
    candidate, live = (ramp_units.answerer(ramp.split, is_candidate=is_candidate) for is_candidate in (True, False))
    met(True, answered_by=[candidate] * 2, overrides=[["system", "temperature"], ["temperature"]])
    met(True, answered_by=[candidate], overrides=[["temperature"]])
    met(True, answered_by=[candidate])
    met(False, answered_by=[live])
    mixed = met(True, answered_by=[candidate, live], overrides=[["tools"]])
    ramp_judging.look()
    found = evidence(Ramp.objects.get(pk=ramp.pk))
    assert SplitUnit.objects.get(pk=mixed.pk).mixed, "what is judged in neither arm is not counted"
    assert (found.candidate.overriding, found.candidate.overriding_calls) == (2, 3)
    said = [(row.name, row.sessions, row.calls) for row in found.candidate.overrides]
    assert said == [("temperature", 2, 3), ("system", 1, 1)]
    assert (found.live.overriding, found.live.overrides) == (0, [])


def test_the_trajectories_with_such_calls_are_found_by_the_filter_that_comes_with_the_count(
    ramp: Ramp, met: Met
) -> None:
    now = timezone.now()
    fields = {"started_at": now}
    candidate, live = ramp.candidate.version, ramp.candidate.baseline
    unit = met(True, overrides=[["system", "temperature"]], version=candidate, **fields)
    met(False, overrides=[["temperature"]], version=live, **fields)
    met(True, overrides=[["system"]], version=candidate, **fields)
    ramp_judging.look()
    [row] = [row for row in evidence(Ramp.objects.get(pk=ramp.pk)).candidate.overrides if row.name == "temperature"]
    asked = query.parse(row.query)
    assert not asked.problems
    rows = asked.apply(Trajectory.objects.filter(project=ramp.agent.project))
    assert [row.session_id for row in rows] == [unit.name]
