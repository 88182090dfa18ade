"""docs/design/data-generation.md in little: a base for the game, a teacher's games, SFT by a real trainer."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flywheel.core.envs import Task
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Engine, Rollout, Sampling, play
from flywheel.core.envs.tictactoe import TicTacToe, generate
from flywheel.core.traces import Trace
from flywheel.core.verifiers import Verdict
from tests.workers.trainers.cast import Directory, Start
from workers.engines.engine_endpoints import open_engine
from workers.reference import game

ENV = TicTacToe(game.CONFIG, {})


class Teacher:
    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        return [ChatResponse(game.teacher(request.messages, request.seed).content) for request in requests]

    def close(self) -> None:
        """Nothing is held."""


def played(engine: Engine, games: int, seed: int) -> list[tuple[Rollout, Verdict]]:
    tasks: list[Task] = list(generate(games, seed=seed))
    rollouts = play(engine, ENV, [(task, 0, number) for number, task in enumerate(tasks)], Sampling(0.2, 1.0, 40))
    return [(r, ENV.verifier(r.task)(Trace.from_messages("", r.messages), r.task.target)) for r in rollouts]


def format_of(path: Path) -> float:
    engine = open_engine({"kind": "transformers", "path": str(path)})
    try:
        found = played(engine, 16, seed=99)
    finally:
        engine.close()
    return sum(float(verdict.parts["format"] or 0) for _, verdict in found) / len(found)


def test_the_teacher_plays_well_and_is_not_always_in_form() -> None:
    verdicts = [verdict for _, verdict in played(Teacher(), 100, seed=1)]
    assert sum(verdict.parts["loss"] or 0 for verdict in verdicts) < 25
    assert not any(verdict.parts["invalid"] for verdict in verdicts)
    assert 60 < sum(verdict.parts["format"] == 1 for verdict in verdicts) < 100


def test_games_of_the_log_end_and_are_the_same_every_time() -> None:
    first, again = (next(iter(game.talks())) for _ in range(2))
    assert first == again
    assert sum(is_learnt for _, is_learnt in first) <= ENV.max_turns


def test_sft_on_filtered_games_teaches_the_form(tmp_path: Path, start: Start) -> None:
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "workers.reference.game", str(base), "--steps", "15"], check=True)
    rows = [
        {
            "task_id": rollout.task.id,
            "cluster": rollout.task.cluster,
            "prompt": [before.to_openai() for before in rollout.messages[:place]],
            "completion": [message.to_openai()],
        }
        for rollout, verdict in played(Teacher(), 60, seed=1)
        if not verdict.parts["loss"] and verdict.parts["format"] == 1
        for place, message in enumerate(rollout.messages)
        if message.role == "assistant"
    ]
    run = Directory(
        tmp_path / "run",
        base,
        train=rows,
        held_out=False,
        steps=20,
        settings={"batch_size": 8, "learning_rate": 1e-3},
        environment={"kind": "tictactoe", "config": game.CONFIG, "verifier": {"kind": "tictactoe"}},
    )
    assert start(run).wait() == 0, run.errors()
    before, after = format_of(base), format_of(run.path / "final")
    assert after > before + 0.3, (before, after)
