"""A sample of attempts: within its budget, spread over steps and rewards, the same after a resume, whole on disk."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.envs import Task
from flywheel.core.envs.policy_rollouts import ChatResponse, Rollout
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import Verdict
from workers.trainers.run.kept_attempts import LEAST, LONGEST, MOST, Keeper, Kept, chosen, read, waiting

CALL = ToolCall("c1", "remind", {"who": "Ada"})


def attempt(reward: float | None, seed: int = 1, said: str = "é😀") -> Kept:
    task = Task("t-1", "remind Ada", {"tool": "remind"}, {"clock": 1}, "c-1", "plain")
    messages = [
        Message("user", "remind Ada"),
        Message("assistant", said, (CALL,)),
        Message("tool", "ok", name="remind"),
    ]
    responses = [ChatResponse(said, (CALL,), "stop", tokens_out=3, latency_ms=1.5)]
    verdict = Verdict(reward, "why", {"exact": reward, "form": None})
    return Kept(Rollout(task, 2, seed, messages, responses, ended="broken off"), verdict, reward, [{"name": "remind"}])


@given(st.integers(0, 3000), st.integers(1, 20_000))
def test_the_budget_is_kept_and_spread_over_the_whole_run(budget: int, batches: int) -> None:
    keeper = Keeper(Path(), budget, batches)
    kept = [batch for batch in range(batches) if keeper.is_kept(batch)]
    assert len(kept) * keeper.of_a_batch <= budget
    assert keeper.of_a_batch <= MOST
    if budget >= LEAST:
        assert keeper.of_a_batch >= LEAST
        assert batches - kept[-1] <= keeper.every
    assert bool(kept) is (budget > 0)


@given(st.lists(st.none() | st.floats(-1, 1), max_size=40), st.integers(1, 16))
def test_a_step_keeps_its_best_and_worst_and_some_without_a_score(rewards: list[float | None], count: int) -> None:
    places = chosen(rewards, count)
    assert len(places) == min(count, len(rewards)) == len(set(places))
    kept, scored = [rewards[place] for place in places], [reward for reward in rewards if reward is not None]
    if scored and count >= LEAST:
        assert max(scored) in kept
        assert min(scored) in kept
        assert (None in kept) is (None in rewards)


def test_the_middle_of_a_step_is_kept_too() -> None:
    assert chosen([0.1 * number for number in range(9)], 5) == [0, 2, 4, 6, 8]


def test_attempts_come_back_as_they_were(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, 40, 10)
    given = [attempt(0.5), attempt(None, 2)]
    keeper(7, given)
    keeper(11, [attempt(1.0)])
    (step, path), (later, _) = waiting(tmp_path)
    assert (step, later) == (7, 11)
    assert read(path) == given


def test_the_same_attempts_are_written_once_more_after_a_resume(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        Keeper(tmp_path, 40, 10)(1, [attempt(number / 9, number) for number in range(9)])
        written.append(waiting(tmp_path)[0][1].read_bytes())
    assert written[0] == written[1]
    assert len(waiting(tmp_path)) == 1


def test_an_endless_attempt_is_left_out_and_others_are_kept(tmp_path: Path) -> None:
    Keeper(tmp_path, 40, 10)(1, [attempt(0.0, 1, "x" * LONGEST), attempt(1.0, 2)])
    assert [kept.reward for kept in read(waiting(tmp_path)[0][1])] == [1.0]


@pytest.mark.parametrize("content", [b'{"task": {', b"[]\n", json.dumps({"task": {}}).encode()])
def test_half_a_file_is_told_from_a_whole_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "step-1.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"\S"):
        read(path)
