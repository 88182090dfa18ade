"""Rollouts a second of an eval run, beside a bare loop over the same engine: `python -m tests.bench_evals`.

The loop asks the engine for the same attempts in the same chunks and drops what it says; the run judges every attempt
and stores it as a trajectory under its lease, and sums it up. Both go in turns, each first in every other round, and
the ratio is the median of the rounds', so that what else the machine does hits both alike: 1 would be an eval that
costs nothing beside the model. Beside it stand the least and the greatest of the rounds, which hold the true median
between them in 94 of 100 benchmarks of five rounds. Two engines: the reference policy as a worker asks it, in a process
of its own, and a server that takes as long as a model, or as next to none. `rows()` is for `tests/bench.py` and needs a
project in the database.
"""

import asyncio
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
SIZES = {
    "calls": (128, 24),
    "games": (16, 4),
    "served-calls": (128, 4),
    "served-games": (32, 4),
    "hurried-calls": (128, 48),
}
"""Tasks and samples: eight seconds of work and more, since a run has a beginning and an end that no model hides; a
quarter of a second of it is a hundred attempts of an engine that is quick."""
SLOW_MS, FAST_MS = 250, 50
"""How long the server thinks, however many ask at once: a model that writes thirty tokens, and one that hardly does."""
NUMBERS = itertools.count(1)
GAME_TOKENS = 16
"""The reference policy knows no games and would talk on to the limit of every turn."""


class Kept:
    """An engine that survives the runs that close it."""

    def __init__(self, engine: Any) -> None:
        self.chat = engine.chat

    def close(self) -> None:
        pass


def rows(project: Any, actor: Any) -> list[dict[str, Any]]:
    """Single-turn tool calls and whole games of several turns, from either engine."""
    from django.conf import settings

    from flywheel.agents.artifacts import store
    from tests.conftest import Build, Cast

    people = dict.fromkeys(("viewer", "reviewer", "builder", "trainer", "approver", "admin", "stranger"), actor)
    build = Build(Cast(project=project, elsewhere=project, **people))
    agent = build.agent("bench-evals")
    here = build.version(agent, weights=store(Path(settings.REFERENCE_POLICY), "model"))
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.bench_evals", "server"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        address = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        slow, fast = (
            build.version(agent, endpoint={"kind": "openai", "base_url": address, "model": str(ms)})
            for ms in (SLOW_MS, FAST_MS)
        )
        calls, games = _calls(build), _games(build, project, actor)
        short = {"max_tokens": GAME_TOKENS}
        return [
            _measured("tool calls, weights asked without a server", here, calls("calls"), actor),
            _measured("games, weights asked without a server", here, games("games"), actor, **short),
            _measured(f"tool calls, a server that takes {SLOW_MS} ms", slow, calls("served-calls"), actor),
            _measured(f"games, a server that takes {SLOW_MS} ms", slow, games("served-games"), actor),
            _measured(f"tool calls, a server that takes {FAST_MS} ms", fast, calls("hurried-calls"), actor),
        ]
    finally:
        server.terminate()
        server.wait(20)


Make = Callable[[str], tuple[Any, int]]
"""A task set of the size of this name, and the samples of each task."""


def _calls(build: Any) -> Make:
    def make(name: str) -> tuple[Any, int]:
        tasks, samples = SIZES[name]
        return build.task_set(train=tasks, held_out=0, name=f"bench-{next(NUMBERS)}"), samples

    return make


def _games(build: Any, project: Any, actor: Any) -> Make:
    from flywheel.accounts.actors import Actor
    from flywheel.core.envs import tictactoe
    from flywheel.environments.models import Split, TaskSet, TaskSetMember
    from flywheel.environments.versions import environment_versions
    from flywheel.environments.versions.environment_terms import Terms

    made = environment_versions.environment(
        project=project, name="bench-games", actor=Actor(actor), verifier={"kind": "tictactoe"},
        config={"system_prompt": "Play X.", "max_turns": 5}, terms=Terms("tictactoe"),
    )  # fmt: skip

    def make(name: str) -> tuple[Any, int]:
        count, samples = SIZES[name]
        tasks = [
            build.task(Split.TRAIN, made, prompt=game.prompt, state=dict(game.state), target=dict(game.target))
            for game in tictactoe.generate(count, seed=1)
        ]
        task_set = TaskSet.objects.create(
            project=project, environment_version=made.latest, name=f"bench-{next(NUMBERS)}", version=1,
            digest="0", created_by=actor,
        )  # fmt: skip
        TaskSetMember.objects.bulk_create(
            [TaskSetMember(task_set=task_set, task=task, split=Split.TRAIN) for task in tasks]
        )
        return task_set, samples

    return make


def _measured(what: str, version: Any, made: tuple[Any, int], actor: Any, **sampling: Any) -> dict[str, Any]:
    from flywheel.accounts.actors import Actor
    from flywheel.environments.models import Split
    from flywheel.evals.models import EvalRun
    from flywheel.evals.runs.submission import RunSettings, submit
    from workers.jobs import eval_runs

    task_set, samples = made
    engine = eval_runs.open_version(version)
    opened, eval_runs.open_version = eval_runs.open_version, lambda version: Kept(engine)  # noqa: ARG005

    def new() -> EvalRun:
        run, _ = submit(
            key=uuid.uuid4(), version=version, task_set=task_set, actor=Actor(actor), split=Split.TRAIN,
            settings=RunSettings(samples=samples, sampling=sampling),
        )  # fmt: skip
        return run

    try:
        attempts, turns = _bare(new(), engine)
        _carry_out(new())
        pairs = [_pair(new(), engine, is_ours_first=number % 2 == 0) for number in range(ROUNDS)]
    finally:
        eval_runs.open_version = opened
        engine.close()
    ours, reference = (attempts / statistics.median(column) for column in zip(*pairs, strict=True))
    rounds = [bare / run for run, bare in pairs]
    return {
        "what": f"eval run of {attempts} attempts, {what} ({turns / attempts:.1f} turns)",
        "value": ours,
        "unit": "/s",
        "beside": "bare loop over the same engine",
        "beside_value": reference,
        "ratio": statistics.median(rounds),
        "rounds": rounds,
    }


def _pair(run: Any, engine: Any, *, is_ours_first: bool) -> tuple[float, float]:
    """Seconds of the run, and of the loop."""
    if is_ours_first:
        return timed(lambda: _carry_out(run)), timed(lambda: _bare(run, engine))
    bare = timed(lambda: _bare(run, engine))
    return timed(lambda: _carry_out(run)), bare


def _bare(run: Any, engine: Any) -> tuple[int, int]:
    """The run's attempts without the run. Gives how many, and how often it asked."""
    from flywheel.core import envs
    from flywheel.core.envs.policy_rollouts import Sampling, play
    from flywheel.environments.tasks.task_rows import core_task
    from flywheel.evals.runs.submission import attempt_seed
    from workers.jobs import eval_runs
    from workers.judging import attempt_verdicts

    made = run.task_set.environment_version
    env = envs.build(made.environment.kind, made.config, made.verifier, attempt_verdicts.RUNNERS, run.version.config())
    members = run.task_set.members.select_related("task").order_by("task__number")
    attempts = [
        (core_task(member.task), k, attempt_seed(run, member.task, k)) for k in range(run.samples) for member in members
    ]
    turns = 0
    for start in range(0, len(attempts), eval_runs.CHUNK):
        chunk = attempts[start : start + eval_runs.CHUNK]
        turns += sum(len(one.responses) for one in play(engine, env, chunk, Sampling(**run.sampling)))
    return len(attempts), turns


def _carry_out(run: Any) -> None:
    from flywheel.evals.models import EvalRun
    from workers.jobs import eval_runs

    lease = EvalRun.claim(run.pk)
    assert lease is not None
    with lease:
        eval_runs.evaluate(lease)
    run.refresh_from_db()
    assert run.state == "succeeded", run.error


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def serve() -> None:
    """Answer chat requests by rule: the call that a task asks for, or a move into a free cell."""
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            assert length
            body = json.loads(await reader.readexactly(int(length[1])))
            await asyncio.sleep(int(body["model"]) / 1000)
            message = {"role": "assistant", "content": _said(body["messages"][-1]["content"], body["seed"])}
            answer = json.dumps(
                {
                    "choices": [{"message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 200, "completion_tokens": 30},
                }
            ).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _said(asked: str, seed: int) -> str:
    if free := re.search(r"Free cells: ([0-8, ]+)", asked):
        cells = free[1].split(", ")
        return f"<think></think>\n<move>{cells[seed % len(cells)]}</move>"
    call = {"tool": "calendar.create_event", "arguments": {"person": asked.split()[1], "day": "friday"}}
    return json.dumps(call)


def main(arguments: Sequence[str]) -> None:
    if arguments:
        return asyncio.run(serve())
    home = Path(tempfile.mkdtemp(prefix="flywheel-bench-"))
    os.environ |= {"FLYWHEEL_HOME": str(home), "DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    from flywheel.system import postgres
    from tests.benching.report import table

    try:
        os.environ["DATABASE_URL"] = postgres.start(home / "postgres").url
        import django

        django.setup()
        from django.core.management import call_command

        from flywheel.accounts.models import Project, User
        from flywheel.edge.jobs import Job

        call_command("prepare", verbosity=0, stdout=open(os.devnull, "w"))  # noqa: SIM115 it lives as long as we do
        Job.nudge = lambda _: None  # type: ignore[method-assign, assignment]
        found = rows(Project.objects.get(slug="default"), User.objects.get(username="admin"))
        sys.stdout.write(table(found) + "\n")
        return None
    finally:
        postgres.stop(home / "postgres")
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
