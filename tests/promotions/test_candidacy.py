import pytest
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import InboxEntry
from flywheel.agents.models import Agent
from flywheel.core.digests import digest
from flywheel.core.traces import tooling
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.evals.models import EvalRun, Result
from flywheel.promotions.candidacy import propose, report_of
from flywheel.promotions.gate_policy import change_policy
from flywheel.promotions.models import Candidate
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, pair_of


def test_a_clear_gain_is_eligible_and_says_so_in_words(candidate: Candidate) -> None:
    assert candidate.verdict == "eligible"
    assert candidate.report["decision"]["words"].startswith("Eligible: ")
    assert candidate.report_digest == digest(candidate.report)


def test_the_report_is_a_pure_function_of_the_results(candidate: Candidate) -> None:
    again = report_of(candidate.version_eval, candidate.baseline_eval, candidate.policy, candidate.report["opening"])
    assert digest(again) == candidate.report_digest


def test_the_same_evals_make_one_candidate(candidate: Candidate, cast: Cast) -> None:
    again = propose(
        version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=Actor(cast.trainer)
    )
    assert again == candidate


def test_approvers_are_told_of_a_candidate_once(candidate: Candidate, cast: Cast) -> None:
    propose(version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=Actor(cast.trainer))
    (entry,) = InboxEntry.objects.filter(notice__event="candidate.waits").select_related("notice")
    assert (entry.user, entry.notice.title) == (cast.approver, f"{candidate.version} waits for approval")
    assert entry.notice.url == reverse("promotions:candidate", args=["acme", candidate.pk])


def test_no_candidate_rests_on_an_eval_that_is_asked_again_meanwhile(
    build: Build, agent: Agent, evaluated: Evaluated, cast: Cast
) -> None:
    arms = pair_of(build, agent, evaluated)
    EvalRun.objects.filter(pk=arms["baseline_eval"].pk).update(state=State.QUEUED)
    with pytest.raises(Refused, match="is running again"):
        propose(**arms, actor=Actor(cast.trainer))
    assert not Candidate.objects.exists()


def test_a_loss_is_regressed(build: Build, agent: Agent, evaluated: Evaluated, cast: Cast) -> None:
    task_set = build.task_set(train=2, held_out=12)
    assert agent.live is not None
    worse = build.version(agent, system_prompt="worse")
    row = propose(
        version_eval=evaluated(worse, task_set, passing=2),
        baseline_eval=evaluated(agent.live, task_set, passing=22),
        actor=Actor(cast.trainer),
    )
    assert row.verdict == "regressed"


@pytest.mark.parametrize("arm", ["version_eval", "baseline_eval"])
def test_an_eval_that_was_asked_otherwise_than_live_makes_an_invalid_candidate(
    arm: str, build: Build, agent: Agent, evaluated: Evaluated, cast: Cast
) -> None:
    arms = pair_of(build, agent, evaluated)
    arms[arm].first_request["system prompt"] = "0" * 64
    arms[arm].save()
    row = propose(**arms, actor=Actor(cast.trainer))
    assert row.verdict == "invalid"
    assert "asked otherwise than it would be live: system prompt" in row.report["decision"]["words"]


def test_versions_that_sample_in_their_own_ways_are_compared(
    build: Build, agent: Agent, evaluated: Evaluated, cast: Cast
) -> None:
    arms = pair_of(build, agent, evaluated, sampling={"temperature": 0.0})
    assert propose(**arms, actor=Actor(cast.trainer)).verdict == "eligible"


def test_evals_of_different_sets_make_an_invalid_candidate(
    build: Build, agent: Agent, evaluated: Evaluated, cast: Cast
) -> None:
    assert agent.live is not None
    other = build.version(agent, system_prompt="other")
    row = propose(
        version_eval=evaluated(other, build.task_set(train=2, held_out=6), passing=9),
        baseline_eval=evaluated(agent.live, build.task_set(train=2, held_out=6), passing=1),
        actor=Actor(cast.trainer),
    )
    assert row.verdict == "invalid"


def test_unscored_attempts_are_counted_and_never_zero(
    build: Build, agent: Agent, evaluated: Evaluated, cast: Cast
) -> None:
    task_set = build.task_set(train=2, held_out=12)
    assert agent.live is not None
    run = evaluated(build.version(agent, system_prompt="flaky"), task_set, passing=24)
    Result.objects.filter(run=run, sample=1).update(score=None, success=None, error="the server did not answer")
    row = propose(version_eval=run, baseline_eval=evaluated(agent.live, task_set, passing=4), actor=Actor(cast.trainer))
    success = row.report["comparison"]["candidate"]["success"]
    assert (success["mean"], success["unscored"]) == (1.0, 12)
    assert row.verdict == "invalid", "half of the attempts are missing"


@pytest.mark.parametrize("state", ["queued", "running", "failed", "cancelled"])
def test_an_unfinished_eval_is_no_evidence(candidate: Candidate, cast: Cast, state: str) -> None:
    EvalRun.objects.filter(pk=candidate.version_eval_id).update(state=state)
    candidate.version_eval.refresh_from_db()
    with pytest.raises(Refused, match="succeeded"):
        propose(version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=Actor(cast.trainer))


def test_a_stricter_policy_is_a_new_version_and_old_verdicts_keep_theirs(candidate: Candidate, cast: Cast) -> None:
    rules = {**candidate.policy.rules, "delta_min": 0.95}
    made = change_policy(project=cast.project, actor=Actor(cast.admin), rules=rules, reason="be sure")
    assert made.version == candidate.policy.version + 1
    row = propose(version_eval=candidate.version_eval, baseline_eval=candidate.baseline_eval, actor=Actor(cast.trainer))
    assert (row.policy, row.verdict) == (made, "not_shown")
    candidate.refresh_from_db()
    assert candidate.verdict == "eligible"


def test_arms_may_differ_in_samples(build: Build, agent: Agent, evaluated: Evaluated, cast: Cast) -> None:
    """The baseline asked more often makes the comparison surer, and is no ground against it."""
    task_set = build.task_set(train=2, held_out=12)
    assert agent.live is not None
    better = build.version(agent, system_prompt="Answer with exactly one tool call as JSON.")
    row = propose(
        version_eval=evaluated(better, task_set, passing=20),
        baseline_eval=evaluated(agent.live, task_set, passing=16, samples=8),
        actor=Actor(cast.trainer),
    )
    assert row.verdict == Candidate.Verdict.ELIGIBLE
    filled = next(each for each in row.report["decision"]["checks"] if each["name"] == "attempts scored")
    assert filled["detail"] == "OK" or "96 of 96 attempts of the baseline" in filled["detail"]


def test_each_verdict_on_a_set_without_a_sealed_part_spends_error(
    build: Build, agent: Agent, evaluated: Evaluated, cast: Cast
) -> None:
    task_set = build.task_set(train=2, held_out=12)
    assert agent.live is not None
    baseline = evaluated(agent.live, task_set, passing=4)
    spent = []
    for number in range(3):
        better = build.version(agent, system_prompt=f"Answer with exactly one tool call as JSON, {number}.")
        row = propose(
            version_eval=evaluated(better, task_set, passing=20), baseline_eval=baseline, actor=Actor(cast.trainer)
        )
        gain = next(each for each in row.report["decision"]["checks"] if each["name"] == "success")
        spent.append((row.report["opening"], round(gain["alpha"], 4)))
    assert spent == [(1, 0.0304), (2, 0.0076), (3, 0.0034)]


def test_a_prompt_that_shows_a_held_out_task_with_its_answer_makes_it_invalid(
    build: Build, agent: Agent, evaluated: Evaluated, cast: Cast
) -> None:
    task_set = build.task_set(train=2, held_out=12)
    task = task_set.members.filter(split="held_out")[0].task
    task.prompt = "Please meet Bako on friday at ten about the audit"
    type(task).objects.filter(pk=task.pk).update(prompt=task.prompt)
    shown = tooling.call_text(task.target["tool"], task.target["arguments"])
    better = build.version(agent, system_prompt=f"Answer with one call. For example: {task.prompt} {shown}")
    assert agent.live is not None
    row = propose(
        version_eval=evaluated(better, task_set, passing=20),
        baseline_eval=evaluated(agent.live, task_set, passing=4),
        actor=Actor(cast.trainer),
    )
    assert row.verdict == Candidate.Verdict.INVALID
    assert "1 task of the hold-out also in training or in the prompt" in row.report["decision"]["words"]
