"""Results on their way into rows: what binary COPY would refuse or read as something else."""

from dataclasses import replace
from typing import Any

import pytest

from flywheel.core.envs.policy_rollouts import ChatResponse, Rollout
from flywheel.core.traces import Message
from flywheel.core.verifiers import Verdict, unscored
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.runs import result_rows
from flywheel.evals.runs.run_budget import of_policy
from tests.conftest import Build
from tests.evals.fake import submit

pytestmark = pytest.mark.django_db


def test_a_row_says_what_the_verifier_and_the_model_said(build: Build) -> None:
    run = submit(build, build.task_set(held_out=1), samples=4)
    task = run.task_set.members.get(split=run.split).task
    said = ChatResponse(text="yes", tokens_in=2, tokens_out=3, latency_ms=1.5, cost_usd=1)
    attempt = Rollout(
        core_task(task), 0, 2**48 - 1, [Message("assistant", "yes")], [said, replace(said, cost_usd=0.25)]
    )
    odd = Verdict(1, "a NUL \0 and half a pair \ud800, ü", {"exact": 1, "unsafe": None})
    silent = replace(attempt, sample=2, responses=[ChatResponse(error="away")])
    endless = replace(attempt, sample=3, responses=[replace(said, tokens_in=2**31 - 1, tokens_out=2**32 + 5)] * 2)
    judged = [
        (attempt, odd),
        (replace(attempt, sample=1), unscored("it was \0 away", "not_answered")),
        (silent, unscored("x")),
        (endless, odd),
    ]
    result_rows.write(run, [(task.pk, *each, build.trajectory().pk) for each in judged])

    first, second, third, fourth = run.results.order_by("sample")
    assert (first.score, first.success, first.parts, first.error, first.cause) == (
        1.0,
        True,
        {"exact": 1, "unsafe": None},
        "",
        "",
    )
    assert first.reason == "a NUL \u2400 and half a pair \ufffd, ü"
    assert (first.seed, first.tokens_in, first.tokens_out, first.latency_ms, first.cost_usd) == (
        2**48 - 1,
        4,
        6,
        3.0,
        1.25,
    )
    assert (second.score, second.success, second.parts, second.cause) == (None, None, {}, "not_answered")
    assert second.error == second.reason == "it was \u2400 away"
    assert (third.tokens_in, third.cost_usd, third.latency_ms) == (None, None, None), "unknown is not nothing"
    assert (fourth.tokens_in, fourth.tokens_out) == (None, None), "what no column holds is no count"


@pytest.mark.parametrize("name", ["tokens_in", "tokens_out", "cost_usd"])
def test_an_attempt_of_which_one_answer_is_uncounted_is_uncounted(build: Build, name: str) -> None:
    """Else a budget would be kept by what is known, and exceeded by what is not."""
    run = submit(build, build.task_set(held_out=1), samples=2)
    task = run.task_set.members.get(split=run.split).task
    said = ChatResponse(text="yes", tokens_in=2, tokens_out=3, latency_ms=1.5, cost_usd=1)
    nothing: dict[str, Any] = {name: None}
    untold = Rollout(core_task(task), 0, 1, [], [said, replace(said, **nothing)])
    cut = Rollout(core_task(task), 1, 2, [], [said, ChatResponse(error="away")])
    judged = [(untold, Verdict(1, "")), (cut, unscored("away", "away"))]
    result_rows.write(run, [(task.pk, *each, build.trajectory().pk) for each in judged])
    first, second = run.results.order_by("sample")
    assert getattr(first, name) is None
    taken = of_policy(run)
    assert (taken.usd if name == "cost_usd" else taken.tokens) is None
    assert (second.tokens_in, second.tokens_out, second.cost_usd) == (2, 3, 1.0), "what failed took nothing more"


def test_a_part_that_is_no_number_is_refused(build: Build) -> None:
    run = submit(build, build.task_set(held_out=1), samples=1)
    task = run.task_set.members.get(split=run.split).task
    attempt = Rollout(core_task(task), 0, 1, [], [])
    with pytest.raises(ValueError, match="JSON compliant"):
        result_rows.write(run, [(task.pk, attempt, Verdict(1, "", {"exact": float("nan")}), build.trajectory().pk)])
