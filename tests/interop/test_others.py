"""Each export under the other side's own code: their loaders, agents, clients and scoring, with a model of ours.

`FLYWHEEL_INTEROP_PYTHONS` names interpreters, separated by colons, that have `verifiers` 0.4, `verifiers` up to 0.3,
`nemo-gym`, `harbor` or `openenv`, each with what the exports require. `make test-interop` makes them.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs import build, episode
from flywheel.core.interop import gym_server
from flywheel.core.interop.environment_exports import Export
from flywheel.core.interop.gym_http import Server
from flywheel.trajectories.formats.files.file_formats import parse_jsonl
from tests.interop.environments import COUNT, SOURCES, export_of, tasks_of
from tests.interop.policy import Policy, as_called, served
from tests.interop.test_writing import written

DRIVERS = Path(__file__).parent / "drivers"
LOOK = """
import importlib.metadata as m, sys
name, low, high = sys.argv[1:4]
found = tuple(int(each) for each in m.version(name).split('.')[:2])
sys.exit(not tuple(map(int, low.split('.'))) <= found < tuple(map(int, high.split('.'))))
"""


@functools.cache
def interpreter(distribution: str, low: str, high: str) -> str:
    for python in filter(None, os.environ.get("FLYWHEEL_INTEROP_PYTHONS", "").split(":")):
        command = [python, "-c", LOOK, distribution, low, high]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip(f"no interpreter in FLYWHEEL_INTEROP_PYTHONS with {distribution} from {low} to below {high}")


@pytest.fixture(params=SOURCES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(kind: str) -> Iterator[str]:
    export = export_of(kind)
    with served(Policy(build(export.kind, export.config, export.verifier), tasks_of(kind))) as url:
        yield url


def drive(python: str, driver: str, *arguments: object, at: Path, **more: str) -> list[dict[str, Any]]:
    """The results that it printed; stdout is kept in `at/printed`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL_", "DJANGO_"))}
    surroundings = {**kept, "PYTHONPATH": str(DRIVERS), "HF_HUB_OFFLINE": "1", "NO_KEY": "none", **more}
    command = [python, str(DRIVERS / driver), *map(str, arguments)]
    done = subprocess.run(command, cwd=at, env=surroundings, capture_output=True, text=True, timeout=300, check=False)
    (at / "printed").write_text(done.stdout)
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert found, done.stdout[-2000:] + done.stderr[-4000:]
    return found


def right(found: list[dict[str, Any]], model: str) -> None:
    assert sorted(row["task"] for row in found) == sorted({row["task"] for row in found})
    assert len(found) == COUNT
    for row in found:
        assert row["reward"] == 1.0 if model == "solver" else 0.0 <= row["reward"] < 0.5, row


def is_known(about: dict[str, Any], export: Export) -> bool:
    """Whether a rollout says which task it is an attempt at."""
    known = {(export.ref, task.id, split, task.synthetic) for split, task in export.tasks()}
    name = about.get("task") or about["flywheel_task"]
    return (about["environment"], name, about["split"], about.get("synthetic") is True) in known


@pytest.mark.parametrize("policy", ["solver", "fool"])
@pytest.mark.parametrize("where", ["exported", "served"])
def test_nemo_gyms_agents_play_it(kind: str, model: str, where: str, policy: str, tmp_path: Path) -> None:
    python = interpreter("nemo-gym", "0.4", "0.5")
    export = export_of(kind)
    folder = written(export, "nemo_gym", tmp_path / "own")
    agent = gym_server.agent_kind(export.env)
    rows = folder / "data/train.jsonl"
    with Server(
        ("127.0.0.1", 0), gym_server.Gym(export.env, {task.id: task for task in tasks_of(kind)}), "abc"
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        resources = folder if where == "exported" else server.url.replace("http://", "http://any:abc@")
        right(drive(python, "nemo.py", rows, resources, model, agent, policy, at=tmp_path), policy)
        server.shutdown()
    # What NeMo Gym writes of it is a rollout that we read.
    printed = (tmp_path / "printed").read_text().splitlines()
    rollouts = [line.removeprefix("ROLLOUT ").encode() for line in printed if line.startswith("ROLLOUT ")]
    read = list(parse_jsonl(rollouts))
    assert [parsed.format for parsed in read if not parsed.error] == ["nemo-gym"] * COUNT
    outcome = {"solver": "success", "fool": "failed"}[policy]
    assert all(parsed.trace and parsed.trace.outcome in (outcome, None) for parsed in read)
    assert all(parsed.trace and is_known(parsed.trace.metadata["verifier_metadata"], export) for parsed in read)


def test_verifiers_evaluates_it(kind: str, model: str, tmp_path: Path) -> None:
    """Its harness is a script with requirements of its own, which `uv` takes from its cache or the package index."""
    python = interpreter("verifiers", "0.4", "0.5")
    vf_eval = Path(python).parent / "vf-eval"
    if shutil.which("uv", path=f"{vf_eval.parent}:{os.environ['PATH']}") is None:
        pytest.skip("verifiers 0.4 starts its harness with uv, which is not here")
    export = export_of(kind)
    written(export, "verifiers", tmp_path)
    for policy in ("solver", "fool"):
        command = [str(vf_eval), export.package, "-n", str(COUNT), "-r", "1", "--model", policy]
        command += ["--client.base-url", model, "--client.api-key-var", "NO_KEY", "--no-push", "--no-rich"]
        command += ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
        surroundings = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FLYWHEEL_")},
            "PATH": f"{vf_eval.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(tmp_path),
            "NO_KEY": "none",
            "HF_HUB_OFFLINE": "1",
        }
        out = tmp_path / f"out-{policy}"
        done = subprocess.run(
            [*command, "--output-dir", str(out)],
            cwd=tmp_path,
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        lines = [line for path in out.rglob("traces.jsonl") for line in path.read_bytes().splitlines()]
        assert lines, done.stdout[-2000:] + done.stderr[-2000:]
        traces = [trace for line in lines for trace in json.loads(line)["traces"]]
        found = [{"task": t["task"]["key"], "reward": t["rewards"]["reward"]["score"]} for t in traces]
        right(found, policy)
        read = list(parse_jsonl(lines))
        assert [parsed.format for parsed in read if not parsed.error] == ["verifiers"] * COUNT
        assert all(parsed.trace and is_known(parsed.trace.metadata["task_data"], export) for parsed in read)


@pytest.mark.parametrize("policy", ["solver", "fool"])
def test_classic_verifiers_evaluates_it(kind: str, model: str, policy: str, tmp_path: Path) -> None:
    python = interpreter("verifiers", "0.1", "0.4")
    export = export_of(kind)
    written(export, "verifiers_classic", tmp_path)
    found = drive(python, "classic.py", tmp_path, policy, model, export.distribution, at=tmp_path)
    right(found, policy)
    assert all(is_known(row["info"], export) for row in found)


def test_harbors_agents_try_it(kind: str, tmp_path: Path) -> None:
    python = interpreter("harbor", "0.25", "1.0")
    folder = written(export_of(kind), "harbor", tmp_path / "own")
    for task in sorted(folder.iterdir())[:1]:
        read, oracle, idle = drive(python, "harbor_own.py", task, tmp_path / "root", sys.executable, at=tmp_path)
        assert read["name"] == f"flywheel/{task.name}"
        assert oracle["rewards"]["reward"] == 1.0, oracle
        assert idle["rewards"]["reward"] < 0.5, idle


def test_harbor_reports_an_error_and_no_reward_where_nothing_can_be_scored(tmp_path: Path) -> None:
    python = interpreter("harbor", "0.25", "1.0")
    folder = written(export_of("tool_call"), "harbor", tmp_path / "own")
    task = sorted(folder.iterdir())[0]
    broken = json.loads((task / "tests/task.json").read_text()) | {"target": {"tool": "mail.send"}}
    (task / "tests/task.json").write_text(json.dumps(broken))
    _, oracle, _ = drive(python, "harbor_own.py", task, tmp_path / "root", sys.executable, at=tmp_path)
    assert oracle["rewards"] is None
    assert "No reward file" in oracle["error"]


def test_openenv_serves_it_and_its_client_plays(kind: str, tmp_path: Path) -> None:
    python = interpreter("openenv", "0.10", "1.0")
    export = export_of(kind)
    folder = written(export, "openenv", tmp_path / export.package)
    env, plays = export.env, {}
    for task in tasks_of(kind):
        messages = episode(env, task, lambda seen, task=task: as_called(env, env.solve(task, seen)))  # type: ignore[misc]
        plays[task.id] = [
            {"text": message.content, "calls": [call.to_json() for call in message.tool_calls]}
            for message in messages
            if message.role == "assistant"
        ]
    found = drive(python, "openenv_own.py", folder, json.dumps(plays), at=tmp_path)
    right(found, "solver")
    assert all(row["done"] and row["tools"] == len(env.tools) and not row["error"] for row in found)
    assert all(is_known(row["info"], export) for row in found)
    assert all(row["more"] == [None, True] for row in found), "the reward of an episode is given once"
    fools = {task.id: [{"text": "Lovely weather."}] * env.max_turns for task in tasks_of(kind)}
    for row in drive(python, "openenv_own.py", folder, json.dumps(fools), at=tmp_path):
        assert row["reward"] is None or row["reward"] < 0.5
