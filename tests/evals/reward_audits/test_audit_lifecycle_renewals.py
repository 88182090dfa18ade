"""A small audit renews a green one for a version that was trained from its: what it takes, and what it allows."""

import uuid

import pytest

from flywheel.accounts.actors import Actor
from flywheel.core.evidence.reward_audit_rule import RENEWAL
from flywheel.core.evidence.statistics.exact_tests import anytime_upper
from flywheel.edge.refusals import Refused
from flywheel.evals.models import EvalRun, RewardAudit
from flywheel.evals.reward_audits import audit_lifecycle as verbs
from flywheel.evals.reward_audits.reward_standing import Judged, renewable, standing
from tests.conftest import Build, Cast
from tests.evals.reward_audits.test_audit_lifecycle import TASKS, evaluated, finished, judge_all


@pytest.fixture
def first(cast: Cast, build: Build) -> EvalRun:
    return evaluated(build, build.version(), build.task_set(train=TASKS, held_out=1))


@pytest.fixture
def moved(first: EvalRun, build: Build) -> EvalRun:
    """Outputs of a version that was trained from the first."""
    return evaluated(
        build, build.version(parent=first.version, base_model="tiny, trained"), first.task_set, to=uuid.uuid4().hex
    )


def renewed(run: EvalRun, cast: Cast, wrong: int = 0) -> RewardAudit:
    audit, _ = verbs.begin(run=run, actor=Actor(cast.builder), size=RENEWAL.judged, is_renewal=True)
    judge_all(audit, cast.reviewer, wrong)
    return verbs.finish(audit=audit, actor=Actor(cast.reviewer))


def test_few_outputs_renew_it_within_pipelines_and_nowhere_else(first: EvalRun, moved: EvalRun, cast: Cast) -> None:
    whole = finished(first, cast)
    audit = renewed(moved, cast)
    assert (audit.renews, audit.is_green, audit.result["judged"]) == (whole, True, 24)
    holds = standing(Judged.of(moved))
    assert (holds.state, holds.allows) == ("renewed", False)
    assert "at most 17% of its passes are wrong" in holds.words
    assert standing(Judged.of(first)).state == "green"


def test_one_wrong_pass_does_not_renew_it_and_more_outputs_can(first: EvalRun, moved: EvalRun, cast: Cast) -> None:
    finished(first, cast)
    audit = renewed(moved, cast, wrong=1)
    assert (audit.is_green, standing(Judged.of(moved)).state) == (False, "red")
    assert "at most 20% must be shown, by 17 more that people pass too" in audit.result["faults"][0]
    more, _ = verbs.begin(run=moved, actor=Actor(cast.builder), size=30, is_renewal=True)
    judge_all(more, cast.reviewer)
    assert verbs.finish(audit=more, actor=Actor(cast.reviewer)).is_green, "all that was judged counts together"


def test_there_is_nothing_to_renew_without_a_green_audit_before_or_beside_a_whole_one(
    first: EvalRun, moved: EvalRun, cast: Cast
) -> None:
    for run in (first, moved):
        with pytest.raises(Refused, match="nothing is there to renew"):
            verbs.begin(run=run, actor=Actor(cast.builder), size=24, is_renewal=True)
    finished(first, cast)
    finished(moved, cast)
    assert renewable(Judged.of(moved)) is None
    with pytest.raises(Refused, match="not from 50 to 100"):
        verbs.begin(run=moved, actor=Actor(cast.builder), size=24)


def test_the_rule_bounds_what_it_says_by_two_thirds_of_its_outputs() -> None:
    assert anytime_upper(0, 16) <= RENEWAL.false_passes < anytime_upper(0, 13)
    assert anytime_upper(1, 33) <= RENEWAL.false_passes < anytime_upper(1, 32)
