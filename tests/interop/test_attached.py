"""NeMo Gym's own example servers, played and judged from here."""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flywheel.core import envs
from flywheel.core.envs import Task
from flywheel.core.envs.nemo_gym import NemoGym, tools_of
from flywheel.core.interop.foreign_tasks import task_of
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Runners, Verdict
from tests.interop.test_others import DRIVERS, interpreter
from workers.worlds.gym_sessions import Gym


@contextmanager
def theirs(name: str, kind: str) -> Iterator[tuple[NemoGym, list[Task]]]:
    """An environment that is this server of theirs, with the tasks of its example data."""
    command = [interpreter("nemo-gym", "0.4", "0.5"), str(DRIVERS / "nemo_server.py"), name, kind]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL_", "DJANGO_"))}
    with subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            url, data = process.stdout.readline().split(maxsplit=1)
            rows = [json.loads(line) for line in Path(data.strip()).read_text().splitlines()]
            tools = tools_of(rows[0]["responses_create_params"]["tools"])
            yield environment(url, tools), [task_of(row, "nemo_gym", tools) for row in rows]
        finally:
            process.terminate()


def environment(url: str, tools: list[dict[str, Any]]) -> NemoGym:
    config = {"base_url": url, "tools": tools, "max_turns": 10}
    made = envs.build("nemo_gym", config, {"kind": "nemo_gym"}, Runners(gym=Gym(timeout_s=60, patience_s=5)))
    assert isinstance(made, NemoGym)
    return made


def judged(env: NemoGym, task: Task, messages: list[Message]) -> Verdict:
    return env.verifier(task)(Trace.from_messages("", messages), task.target)


def test_their_counter_counts_in_a_session_of_each_attempt() -> None:
    with theirs("example_session_state_mgmt", "StatefulCounterResourcesServer") as (env, tasks):

        def play(number: int) -> tuple[bool, Task, list[Message], Verdict]:
            task, is_right = tasks[number % len(tasks)], number % 2 == 0
            row = task.target["row"]
            missing = row["expected_count"] - row["initial_count"] + (0 if is_right else 1)
            calls = [("increment_counter", {"count": missing}), ("get_counter_value", {})]
            turns = [Message("assistant", "", (ToolCall(f"c{n}", *call),)) for n, call in enumerate(calls)]
            said = iter([*turns, Message("assistant", "Done.")])
            messages = envs.episode(env, task, lambda _: next(said))
            return is_right, task, messages, judged(env, task, messages)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(play, range(4 * len(tasks))))
        assert [verdict.score for _, _, _, verdict in found] == [float(is_right) for is_right, _, _, _ in found]
        again = environment(env.base_url, env.tools)
        _, task, messages, _ = found[0]
        assert judged(again, task, messages).score == 1.0, "what is judged later is done again"
        assert messages[-2].content == json.dumps(
            {"count": task.target["row"]["expected_count"]}, separators=(",", ":")
        )
        wrong = Message("assistant", "", (ToolCall("c", "increment_counter", {"count": "many"}),))
        assert "count" in env.respond(task, [*env.reset(task, 0), wrong], 0)[0].content, "422 is told to the policy"


def test_their_workplace_is_solved_by_the_calls_that_its_rows_name() -> None:
    with theirs("workplace_assistant", "WorkbenchResourcesServer") as (env, tasks):
        assert all(env.knows(task) for task in tasks)
        for task in tasks:
            right = envs.episode(env, task, lambda seen, task=task: env.solve(task, seen))  # type: ignore[misc]
            assert judged(env, task, right).score == 1.0
            for name, probe in env.probes(task).items():
                assert judged(env, task, envs.episode(env, task, probe)).score == 0.0, name
