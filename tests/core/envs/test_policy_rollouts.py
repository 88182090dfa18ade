"""Playing episodes: how one ends that its policy talks to death."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flywheel.core import envs
from flywheel.core.envs import Environment, Task, tictactoe
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Rollout, Sampling, play
from flywheel.core.traces import ToolCall, Trace
from flywheel.core.verifiers import VerifierError

TOO_LONG = ChatResponse(error="the model takes 512 tokens in all", is_too_long=True)
LOOK = ToolCall("c", "calendar.search_events", {"query": "meeting"})


class Scripted:
    def __init__(self, answer: Callable[[int], ChatResponse]) -> None:
        self.answer, self.asked = answer, list[ChatRequest]()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        self.asked += requests
        return [self.answer(len(self.asked))] * len(requests)

    def close(self) -> None: ...


def game(**config: Any) -> tuple[Environment, Task]:
    return envs.build("tictactoe", config, {"kind": "tictactoe"}), next(tictactoe.generate(1, seed=3))


def office(**config: Any) -> tuple[Environment, Task]:
    task = Task("t-1", "Look at my calendar.", {"calls": []}, {"world": 1})
    return envs.build("workplace", config, {"kind": "workplace"}), task


def played(env: Environment, task: Task, answer: Callable[[int], ChatResponse]) -> tuple[Rollout, list[ChatRequest]]:
    engine = Scripted(answer)
    (rollout,) = play(engine, env, [(task, 0, 7)], Sampling(max_tokens=40))
    return rollout, engine.asked


def ramble(tokens: int | None = 30) -> ChatResponse:
    return ChatResponse("I wonder.", tokens_out=tokens, finish_reason="stop")


def test_who_talks_until_nothing_fits_has_had_an_episode() -> None:
    env, task = game()
    rollout, _ = played(env, task, lambda number: ramble() if number < 4 else TOO_LONG)
    assert (rollout.error, len(rollout.responses)) == ("", 3)
    assert rollout.ended == "broken off: the model takes 512 tokens in all"
    verdict = env.verifier(task)(Trace.from_messages("", rollout.messages), task.target)
    assert (verdict.success, verdict.parts["loss"]) == (False, 1.0)


def test_what_an_environment_raises_breaks_that_episode_alone() -> None:
    env, task = office()
    lost = replace(task, id="t-2", state={})
    unread = replace(task, id="t-3", target={})
    engine = Scripted(lambda number: ChatResponse(tool_calls=(LOOK,)) if number < 4 else ChatResponse("Done."))
    attempts = [(each, 0, 7) for each in (lost, task, unread)]
    broken, played, other = play(engine, env, attempts, Sampling())
    assert "the environment raised ValueError: the task's state has no" in broken.error
    assert (broken.error, len(broken.responses)) == (broken.broken, 1)
    assert (played.error, other.error, played.messages[-1].content) == ("", "", "Done.")


def test_an_episode_that_cannot_begin_asks_nobody() -> None:
    env, task = game()
    engine = Scripted(lambda _: ramble())
    (rollout,) = play(engine, env, [(replace(task, state={}), 0, 7)], Sampling())
    assert rollout.error == "the environment raised KeyError: 'starts'"
    assert (engine.asked, rollout.messages) == ([], [])


def test_a_task_that_never_fitted_is_no_failure_of_the_policys() -> None:
    env, task = game()
    rollout, _ = played(env, task, lambda _: TOO_LONG)
    assert (rollout.error, rollout.ended) == (TOO_LONG.error, "")


def test_another_error_in_the_middle_stays_one() -> None:
    env, task = game()
    rollout, _ = played(env, task, lambda number: ramble() if number < 3 else ChatResponse(error="500"))
    assert (rollout.error, rollout.ended) == ("500", "")


def test_an_episode_ends_when_its_tokens_are_spent() -> None:
    env, task = game(token_limit=100)
    rollout, asked = played(env, task, lambda number: ramble(30 if number < 4 else 10))
    assert [request.sampling.max_tokens for request in asked] == [40, 40, 40, 10], "never more than what is left"
    assert (rollout.error, rollout.tokens_out) == ("", 100)
    assert rollout.ended == "broken off: the episode's 100 tokens are spent"
    assert len(played(*game(), lambda _: ramble())[1]) == tictactoe.MAX_TURNS, "without a limit nothing is counted"


def test_what_the_last_tokens_asked_for_is_still_done() -> None:
    env, task = office(token_limit=20)
    rollout, _ = played(env, task, lambda _: ChatResponse(tool_calls=(LOOK,), tokens_out=20, finish_reason="stop"))
    assert rollout.messages[-1].role == "tool"
    assert rollout.ended


@pytest.mark.parametrize(("reason", "is_cut"), [("stop", False), ("length", True)])
def test_who_finishes_with_the_last_token_was_not_broken_off(reason: str, is_cut: bool) -> None:
    env, task = office(token_limit=20)
    rollout, _ = played(env, task, lambda _: ChatResponse("Done.", tokens_out=20, finish_reason=reason))
    assert bool(rollout.ended) == is_cut


def test_tokens_that_nobody_counts_cannot_be_limited() -> None:
    env, task = game(token_limit=100)
    rollout, _ = played(env, task, lambda _: ramble(None))
    assert "does not say how many tokens" in rollout.error


@pytest.mark.parametrize("limit", [0, -5, True, 1.5, "many", 10_000_001])
@pytest.mark.parametrize("kind", ["workplace", "tictactoe", "nemo_gym"])
def test_a_limit_is_a_whole_number(kind: str, limit: Any) -> None:
    config = {"token_limit": limit} | ({"base_url": "http://gym-1:8000"} if kind == "nemo_gym" else {})
    with pytest.raises(VerifierError, match="token_limit: "):
        envs.build(kind, config, {"kind": kind})


def test_a_rubric_changes_no_limit() -> None:
    rubric = {"kind": "rubric", "parts": [{"type": "environment"}]}
    assert envs.build("tictactoe", {"token_limit": 50}, rubric).token_limit == 50
