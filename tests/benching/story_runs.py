"""Run directories on the story's requests and the policy that ships, for measurements of trainers."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.core.evidence.statistics import estimates
from flywheel.core.evidence.statistics.estimates import Estimate
from tests.workers.trainers.cast import Directory
from workers.reference import story

ROOT = Path(__file__).resolve().parents[2]
POLICY = Path(story.__file__).parent / "policy"
TASKS = {
    "kind": "tool_call",
    "config": story.environment_config(),
    "verifier": {"kind": "tool_call"},
    "agent": story.AGENT_CONFIG.to_json(),
}
TURNS = 3
EPISODES = {
    "kind": "episode",
    "config": {"tools": story.TOOLS, "judged": "end", "max_turns": TURNS, "unknown": "stub"},
    "verifier": {"kind": "episode"},
}
"""The same requests, each begun by its words and answered by a tool, until the policy calls no more."""
DONE = "done"
"""What a tool says."""


def opening(request: story.Request) -> list[dict[str, Any]]:
    return [{"role": "system", "content": story.SYSTEM_PROMPT}, {"role": "user", "content": request.prompt}]


def rows(algorithm: str, requests: Sequence[story.Request], *, episodes: bool = False) -> list[dict[str, Any]]:
    """Rows of a run of this algorithm: corrected answers, pairs (the worse one answers the next request), or tasks."""
    if episodes:
        return [_episode(request) for request in requests]
    if algorithm not in ("sft", "dpo"):
        return [request.to_task().to_json() for request in requests]
    found = []
    for request, other in zip(requests, [*requests[1:], requests[0]], strict=True):
        good, bad = ([{"role": "assistant", "content": each.answer}] for each in (request, other))
        answers = {"completion": good} if algorithm == "sft" else {"chosen": good, "rejected": bad}
        found.append({"task_id": request.id, "prompt": opening(request), **answers})
    return found


def _episode(request: story.Request) -> dict[str, Any]:
    call = request.target
    begun = [{"role": "user", "content": request.prompt}]
    state = {"messages": begun, "replies": [{**call, "result": DONE}]}
    wanted = {"wanted": [{"type": "calls", "calls": [call]}]}
    return {**request.to_task().to_json(), "state": state, "target": wanted}


def directory(
    path: Path, base: Path, algorithm: str, train: Sequence[dict[str, Any]], *, episodes: bool = False, **fields: Any
) -> Directory:
    """A run's directory as a worker writes it: six evaluations and checkpoints in all, 2,000 attempts kept."""
    every = max(1, min(100, fields["steps"] // 6))
    whole: dict[str, Any] = {
        "eval_every": every,
        "checkpoint_every": every,
        "keep_attempts": 2_000,
        "held_out": False,
        "environment": EPISODES if episodes else TASKS,
        **fields,
    }
    run = Directory(path, base, algorithm, train=train, **whole)
    run.spec["settings"]["eval_batch_size"] = 128
    run.save()
    return run


def requests(customers: range) -> list[story.Request]:
    return story.sessions(len(customers), seed=7, first=customers.start)


def after_sft(place: Path, corrected: Sequence[story.Request], steps: int = 200) -> Path:
    """The policy that ships once SFT has taught it these corrected requests."""
    run = directory(
        place, POLICY, "sft", rows("sft", corrected), steps=steps, settings={"batch_size": 32, "learning_rate": 1e-3}
    )
    trained("workers.trainers.sft", str(run.path), log=run.path / "trainer.log")
    return run.path / "final"


def gained(before: Mapping[str, float], after: Mapping[str, float], asked: Sequence[story.Request]) -> Estimate:
    """The difference of two scores of each task, with an interval over customers."""
    first, second = ([each[request.id] for request in asked] for each in (before, after))
    return estimates.paired_difference(first, second, [request.session_id for request in asked])


def trained(module: str, *arguments: str, log: Path) -> None:
    """Run a module to its end. Raises SystemExit with the end of its log where it fails."""
    if started(module, *arguments, log=log).wait():
        raise SystemExit(f"{module} {' '.join(arguments)}\n{log.read_text()[-4000:]}")


def started(module: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """A module as a process of one thread, which has neither network nor terminal."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
