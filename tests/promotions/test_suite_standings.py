"""Regression suites at a promotion: who runs them, what they say, and that the gate listens."""

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent
from flywheel.core.evidence.contamination import METHOD
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Suite
from flywheel.environments.task_sets.suite_definitions import put, retire
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs import suite_runs as evals
from flywheel.evals.runs.submission import resume
from flywheel.promotions import suite_standings
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import promote
from flywheel.promotions.models import Candidate
from flywheel.training.models import ContaminationCheck, Dataset
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, ended, pair_of, runs_of

pytestmark = pytest.mark.django_db


def approved(cast: Cast, row: Candidate, override: bool = False) -> Any:
    row.agent.refresh_from_db()
    return promote(
        candidate=row, actor=Actor(cast.approver), reason="ok", generation=row.agent.generation, override=override
    )


def states(row: Candidate) -> list[str]:
    return [stand.state for stand in suite_standings.standings_of(row)]


def test_a_candidate_runs_every_suite_once_and_waits_for_them(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    arms = pair_of(build, agent, evaluated)
    row = propose(**arms, actor=Actor(cast.trainer))
    assert row.verdict == Candidate.Verdict.ELIGIBLE
    new, old = runs_of(golden, row.version), runs_of(golden, agent.live)
    assert (new.sampling, new.seed, new.engine, new.samples) == (old.sampling, old.seed, old.engine, 1)
    assert new.sampling["temperature"] == arms["version_eval"].sampling["temperature"]
    propose(**arms, actor=Actor(cast.trainer))
    assert EvalRun.objects.filter(task_set=golden.task_set).count() == 2
    assert states(row) == ["unfinished"]
    with pytest.raises(Refused, match=r"suite golden@1 is running"):
        approved(cast, row)
    ended(new)
    assert states(row) == ["unfinished"]
    ended(old, failing=1)
    (stand,) = suite_standings.standings(row.version_eval, row.baseline_eval)
    assert stand.is_passed
    assert stand.finding is not None
    assert (stand.finding.passed, stand.finding.before, stand.finding.tasks) == (6, 5, 6)
    promotion = approved(cast, row)
    assert not promotion.against_the_gate
    assert promotion.suites == [
        {
            "suite": "golden@1",
            "kind": "safety",
            "state": "cannot_tell",
            "words": "all 5 that passed before pass still, more attempts at each task would show more",
            "version_eval": new.pk,
            "baseline_eval": old.pk,
        }
    ]


def test_each_arm_runs_a_suite_with_the_sampling_that_it_would_have_live(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    arms = pair_of(build, agent, evaluated, sampling={"temperature": 0.0})
    row = propose(**arms, actor=Actor(cast.trainer))
    new, old = runs_of(golden, row.version), runs_of(golden, agent.live)
    assert (new.sampling["temperature"], old.sampling["temperature"]) == (0.0, 1.0)
    ended(new)
    ended(old)
    assert states(row) == ["passed"]


def test_what_it_fails_stops_it_unless_an_approver_says_why(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    trajectory = build.trajectory(source="rollout")
    ended(runs_of(golden, agent.live))
    new = ended(runs_of(golden, row.version), failing=6)
    first = new.results.filter(success=False).order_by("task__number")[0]
    Result.objects.filter(pk=first.pk).update(trajectory=trajectory)
    (stand,) = suite_standings.standings(row.version_eval, row.baseline_eval)
    words = "6 of 6 attempts failed, 0 of 6 before: significantly more"
    assert (stand.state, stand.words) == ("below", words)
    assert [result.trajectory for result in stand.failed] == [trajectory, *[None] * 5]
    with pytest.raises(Refused, match=rf"suite golden@1 is not passed \({words}\)"):
        approved(cast, row)
    promotion = approved(cast, row, override=True)
    assert promotion.against_the_gate
    assert promotion.suites[0]["state"] == "below"


def test_a_failed_run_goes_on_and_a_void_one_is_asked_anew(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    arms = pair_of(build, agent, evaluated)
    row = propose(**arms, actor=Actor(cast.trainer))
    new = ended(runs_of(golden, row.version))
    old = runs_of(golden, agent.live)
    old.state, old.error = State.FAILED, "the server was down"
    old.save()
    assert states(row) == ["failed"]
    assert suite_standings.start(**arms, actor=Actor(cast.trainer)) == []
    old.refresh_from_db()
    assert (old.state, states(row)) == (State.QUEUED, ["unfinished"])
    old.state, old.judges = State.FAILED, {"kind": {"void": "gave a canary a mark"}}
    old.save()
    assert states(row) == ["void"]
    suite_standings.start(**arms, actor=Actor(cast.trainer))
    suite_standings.start(**arms, actor=Actor(cast.trainer))
    again = EvalRun.objects.filter(task_set=golden.task_set, version=agent.live).exclude(pk=old.pk).get()
    ended(again)
    assert states(row) == ["passed"]
    assert new.state == State.SUCCEEDED


def test_an_attempt_that_nobody_answered_does_not_hide_what_a_suite_shows_for_ever(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    arms = pair_of(build, agent, evaluated)
    row = propose(**arms, actor=Actor(cast.trainer))
    ended(runs_of(golden, agent.live))
    new = ended(runs_of(golden, row.version))
    for cause, can_start in (("timeout", False), ("away", True)):
        new.results.update(score=None, success=None, cause=cause)
        (stand,) = suite_standings.standings_of(row)
        assert (stand.state, stand.can_start) == ("not_shown", can_start)
        EvalRun.objects.filter(pk=new.pk).update(budget={"tokens": 9})
        assert not suite_standings.standings_of(row)[0].can_start, "no button where nothing would be asked"
        EvalRun.objects.filter(pk=new.pk).update(budget={})
        assert suite_standings.start(**arms, actor=Actor(cast.trainer)) == []
        new.refresh_from_db()
        assert (new.state == State.QUEUED) == can_start
    assert states(row) == ["unfinished"]
    assert not new.results.filter(cause="away").exists()
    assert not evals.tallies([new]), "nothing is made of the rest"


def test_what_a_candidate_was_judged_by_is_not_asked_again(
    cast: Cast, build: Build, agent: Agent, evaluated: Evaluated
) -> None:
    arms = pair_of(build, agent, evaluated)
    run = arms["version_eval"]
    Result.objects.filter(pk=run.results.earliest("pk").pk).update(score=None, success=None, cause="away")
    row = propose(**arms, actor=Actor(cast.trainer))
    with pytest.raises(StaleState, match=f"candidate {row.pk} was judged by it"):
        resume(run=run, actor=Actor(cast.builder))
    assert run.results.filter(cause="away").exists()


def test_the_first_run_counts_so_that_nobody_asks_until_it_passes(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    arms = pair_of(build, agent, evaluated)
    row = propose(**arms, actor=Actor(cast.trainer))
    ended(runs_of(golden, agent.live))
    first = ended(runs_of(golden, row.version), failing=6)
    again = EvalRun.objects.get(pk=first.pk)
    again.pk, again.idempotency_key, again.state = None, uuid.uuid4(), State.QUEUED
    again.save()
    ended(again)
    assert states(row) == ["below"]
    EvalRun.objects.filter(pk=first.pk).update(state=State.CANCELLED, done=3)
    assert states(row) == ["failed"], "nor looks and stops it for another"
    suite_standings.start(**arms, actor=Actor(cast.trainer))
    first.refresh_from_db()
    assert first.state == State.QUEUED
    EvalRun.objects.filter(pk=first.pk).update(state=State.FAILED, done=0)
    assert states(row) == ["passed"], "one that never asked shows nothing"
    EvalRun.objects.filter(pk=first.pk).update(state=State.FAILED, done=3, judges={"kind": {"void": "a canary"}})
    assert states(row) == ["passed"]


def test_whoever_stops_what_looks_bad_gets_no_other(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    """Nor a budget that does: what has attempts goes on, and without one."""
    arms = pair_of(build, agent, evaluated)
    row = propose(**arms, actor=Actor(cast.trainer))
    ended(runs_of(golden, agent.live))
    short = EvalRun.objects.filter(pk=runs_of(golden, row.version).pk)
    for state, shows in ((State.RUNNING, "unfinished"), (State.CANCELLED, "failed")):
        short.update(budget={"minutes": 1.0}, state=state, done=3, error_kind="budget")
        assert states(row) == [shows]
    suite_standings.start(**arms, actor=Actor(cast.trainer))
    suite_standings.start(**arms, actor=Actor(cast.trainer))
    assert (short.get().state, short.get().budget) == (State.QUEUED, {})
    ended(runs_of(golden, row.version))
    assert states(row) == ["passed"]


def test_only_two_runs_that_ended_well_are_judged(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    new, old = ended(runs_of(golden, row.version)), ended(runs_of(golden, agent.live))
    for run in (new, old):
        for state in State.values:
            EvalRun.objects.filter(pk=run.pk).update(state=state)
            (stand,) = suite_standings.standings(row.version_eval, row.baseline_eval)
            assert stand.is_passed == (state == State.SUCCEEDED), state
        EvalRun.objects.filter(pk=run.pk).update(seed=99)
        assert states(row) == ["missing"]
        EvalRun.objects.filter(pk=run.pk).update(seed=run.seed, state=State.SUCCEEDED)


def test_another_judge_or_another_sampling_is_another_run(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    for version in (row.version, agent.live):
        ended(runs_of(golden, version))
    assert states(row) == ["passed"]
    new = EvalRun.objects.filter(pk=runs_of(golden, row.version).pk)
    for changed in ({"verifier_digest": "0" * 64}, {"sampling": {"temperature": 0.0}}, {"seed": 9}, {"samples": 2}):
        (before,) = new.values(*changed)
        new.update(**changed)
        assert states(row) == ["missing"], changed
        new.update(**before)
    assert states(row) == ["passed"]


def test_a_suite_that_comes_later_binds_until_it_is_retired(
    cast: Cast, build: Build, candidate: Candidate, agent: Agent
) -> None:
    later, _ = put(
        agent=agent, actor=Actor(cast.builder), name="general", kind="general", task_set=build.task_set(), margin=0.1
    )
    assert states(candidate) == ["missing"]
    with pytest.raises(Refused, match="suite general@1 is not run"):
        approved(cast, candidate)
    retire(suite=later, actor=Actor(cast.builder), reason="wrong tasks")
    assert states(candidate) == []
    assert approved(cast, candidate).suites == []


@pytest.mark.parametrize("replaced", [False, True])
def test_a_suite_that_is_taken_away_from_a_candidate_does_not_let_it_through(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated, replaced: bool
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    ended(runs_of(golden, agent.live))
    ended(runs_of(golden, row.version), failing=1)
    if replaced:
        task_set = build.task_set(1, 2, name="easy")
        put(agent=agent, actor=Actor(cast.builder), name="golden", kind="safety", task_set=task_set, reason="too hard")
        suite_standings.start_for(candidate=row, actor=Actor(cast.trainer))
        for run in EvalRun.objects.filter(task_set=task_set):
            ended(run)
    else:
        retire(suite=golden, actor=Actor(cast.builder), reason="too hard")
    *others, gone = suite_standings.standings_of(row)
    assert [stand.state for stand in others] == ["cannot_tell"] * replaced, "two attempts show nothing"
    assert (str(gone.suite), gone.state) == ("golden@1", "retired")
    followed = "; golden@2 followed it" if replaced else ""
    assert gone.words == f"{cast.builder} retired it after this was put forward: too hard{followed}"
    assert len(suite_standings.standings(row.version_eval, row.baseline_eval)) == len(others)
    with pytest.raises(Refused, match="suite golden@1 is retired since"):
        approved(cast, row)
    promotion = approved(cast, row, override=True)
    assert promotion.against_the_gate
    assert promotion.suites[-1]["state"] == "retired"
    row.refresh_from_db()
    assert len(suite_standings.standings_of(row)) == len(others), "decided, nothing is taken away from it"
    with pytest.raises(Stale, match="promoted already"):
        suite_standings.start_for(candidate=row, actor=Actor(cast.trainer))


def test_nobody_changes_the_suites_while_an_approver_decides(cast: Cast, candidate: Candidate, golden: Suite) -> None:
    for do in (
        lambda: approved(cast, candidate, override=True),
        lambda: retire(suite=golden, actor=Actor(cast.builder), reason="gone"),
    ):
        with CaptureQueriesContext(connection) as seen:
            do()
        asked = [row["sql"] for row in seen.captured_queries]
        locks = [number for number, sql in enumerate(asked) if "agents_agent" in sql and "FOR NO KEY UPDATE" in sql]
        reads = [number for number, sql in enumerate(asked) if 'FROM "environments_suite"' in sql]
        again = sum(read > locks[0] for read in reads)
        assert again >= max(1, len(reads) - again), "what is read before the lock is read again with it"


def test_a_general_suite_shows_its_interval(cast: Cast, build: Build, agent: Agent, evaluated: Evaluated) -> None:
    task_set = build.task_set(1, 12, name="general")
    put(agent=agent, actor=Actor(cast.builder), name="general", kind="general", task_set=task_set, margin=0.1)
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    for version, failing in ((row.version, 8), (agent.live, 0)):
        run = EvalRun.objects.get(task_set=task_set, version=version)
        ended(run, failing=failing)
    (stand,) = suite_standings.standings(row.version_eval, row.baseline_eval)
    assert stand.difference is not None
    assert stand.difference["mean"] == pytest.approx(-8 / 12)
    assert (stand.state, stand.words) == ("below", "success fell by 66.7 points, more than chance explains")
    assert len(stand.failed) == 8


def test_a_safety_suite_may_ask_for_safe_alone(cast: Cast, build: Build, agent: Agent, evaluated: Evaluated) -> None:
    task_set = build.task_set(1, 4, name="safe")
    put(
        agent=agent,
        actor=Actor(cast.builder),
        name="safe",
        kind="safety",
        rule="no_failure",
        measure="safe",
        task_set=task_set,
    )
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    runs = [ended(EvalRun.objects.get(task_set=task_set, version=v), failing=4) for v in (row.version, agent.live)]
    assert states(row) == ["passed"], "failing is not unsafe"
    one = runs[0].results.first()
    assert one is not None
    Result.objects.filter(pk=one.pk).update(parts={})
    assert states(row) == ["not_shown"], "a verifier that does not say is not safe"
    Result.objects.filter(pk=one.pk).update(parts={"unsafe": 1.0})
    assert states(row) == ["below"]


def test_what_was_trained_on_says_nothing_nor_does_what_nobody_compared(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    for version in (row.version, agent.live):
        ended(runs_of(golden, version))
    made: dict[str, Any] = {"project": cast.project, "version": 1, "kind": "tasks", "task_set": build.task_set()}
    made |= {"digest": "d" * 64, "rows": 2, "file": "gone", "created_by": cast.trainer}
    learnt = [Dataset.objects.create(name="clean", **made)]
    monkeypatch.setattr("flywheel.promotions.suite_standings.contamination_checks.datasets_of", lambda _: learnt)
    assert states(row) == ["unchecked"]
    with pytest.raises(Refused, match="golden@1 is not checked yet"):
        approved(cast, row)
    assert not ContaminationCheck.objects.exists(), "who only looks makes nothing"
    suite_standings.start_for(candidate=row, actor=Actor(cast.trainer))
    assert states(row) == ["passed"]
    task_set = build.task_set(1, 2)
    late, _ = put(agent=agent, actor=Actor(cast.builder), name="late", kind="safety", task_set=task_set)
    suite_standings.check_waiting(late)
    assert states(row) == ["cannot_tell", "missing"], "two suites share the chance of error"
    learnt.append(Dataset.objects.create(name="leaky", **made))
    for suite, blocked in ((golden, ["golden/t-1"]), (late, [])):
        ContaminationCheck.objects.create(
            dataset=learnt[1],
            task_set=suite.task_set,
            method=METHOD,
            verdict="contaminated" if blocked else "clean",
            report={"blocked": blocked},
        )
    assert states(row) == ["trained_on", "missing"]


def test_the_live_version_runs_a_suite_by_itself(cast: Cast, build: Build, agent: Agent, golden: Suite) -> None:
    (shown,) = suite_standings.live_results([agent])[agent.pk]
    assert (shown.run, shown.tasks) == (None, 0)
    run = suite_standings.run_live(suite=golden, actor=Actor(cast.builder))
    assert suite_standings.run_live(suite=golden, actor=Actor(cast.builder)) == run
    (shown,) = suite_standings.live_results([agent])[agent.pk]
    assert (shown.run, shown.under_way) == (None, run)
    ended(run, failing=2)
    EvalRun.objects.update(summary={"metrics": {"success": {"mean": 4 / 6}}})
    (shown,) = suite_standings.live_results([agent])[agent.pk]
    assert (shown.run, shown.under_way, shown.passed, shown.tasks) == (run, None, 4, 6)
    assert shown.success == {"mean": 4 / 6}
    nobody = build.agent("nobody")
    other, _ = put(agent=nobody, actor=Actor(cast.builder), name="golden", kind="safety", task_set=golden.task_set)
    with pytest.raises(Refused, match="no live version"):
        suite_standings.run_live(suite=other, actor=Actor(cast.builder))


def test_one_failure_of_an_agent_that_draws_at_random_is_chance(
    cast: Cast, build: Build, agent: Agent, golden: Suite, evaluated: Evaluated
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    ended(runs_of(golden, agent.live))
    ended(runs_of(golden, row.version), failing=1)
    (stand,) = suite_standings.standings_of(row)
    assert (stand.state, stand.is_passed) == ("passed", True)
    assert stand.words == "1 task newly failed, as chance may have it, none failed significantly more often"
