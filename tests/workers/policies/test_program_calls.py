"""The programs of the guide, as they stand there, run in whole evals."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.edge.jobs import State
from tests.conftest import Build
from tests.evals import fake
from tests.evals.conftest import served
from tests.evals.fake import submit
from tests.evals.programs import program_version
from tests.trajectories.ingest.upstream import Answer, Seen, completion, serve
from tests.waiting import wait_for
from workers.policies import program_calls

__all__ = ["served"]

pytestmark = pytest.mark.django_db(transaction=True)
WORK = {"traceparent": ""}
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "harness.md"


def example(language: str) -> str:
    """The first block in this language."""
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def obeys(seen: Seen) -> Answer:
    """A model that makes the call that the user asks for: natively where it has tools, else in words."""
    person = next(said["content"] for said in seen.body["messages"] if said["role"] == "user").split()[1]
    arguments = {"person": person, "day": "friday"}
    if not seen.body.get("tools"):
        return Answer(completion(json.dumps({"tool": "calendar.create_event", "arguments": arguments})))
    function = {"name": "calendar_create_event", "arguments": json.dumps(arguments)}
    return Answer(completion(None, message={"tool_calls": [{"id": "c1", "type": "function", "function": function}]}))


@contextmanager
def running(program: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(program), str(port)], stderr=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    try:
        wait_for(answers, "the program answers")
        yield f"http://127.0.0.1:{port}/run"
    finally:
        process.kill()
        process.wait()


def test_the_guides_agent_with_the_openai_sdk(build: Build, served: str, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(example("python"))
    with serve() as model, running(program) as url:
        model.say(obeys)
        run = submit(build, build.task_set(held_out=2), program_version(build, model.url, url=url, code="9fceb02"))
        fake.work(run)
    assert (run.state, run.results.filter(score=1.0).count()) == (State.SUCCEEDED, 4), list(
        run.results.values_list("reason", "error")
    )
    offered = [tool["function"]["name"] for tool in model.seen[0].body["tools"]]
    assert "calendar_create_event" in offered


def test_the_guides_agent_makes_every_call_of_a_message_before_it_ends() -> None:
    """The environment may be over with the first of them, and wants them all."""
    made: list[str] = []

    def fetch(url: str, key: str, body: Any = None) -> Any:
        if body is None:
            return {"tools": []}
        made.append(url)
        return {"result": None, "over": True}

    calls = [SimpleNamespace(id=name, function=SimpleNamespace(name=name, arguments="{}")) for name in ("one", "other")]
    message = SimpleNamespace(tool_calls=calls, content=None, model_dump=lambda **_: {"role": "assistant"})
    answer = SimpleNamespace(choices=[SimpleNamespace(message=message)])
    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **_: answer)))
    known: dict[str, Any] = {}
    exec(example("python").partition("class Door")[0], known)
    known |= {"fetch": fetch, "OpenAI": lambda **_: client}
    assert known["run"]({"api_key": "", "tools_url": "t", "messages": [], "base_url": "", "model": ""}) is None
    assert made == ["t/one", "t/other"]


@pytest.mark.skipif(not (shutil.which("jq") and shutil.which("curl")), reason="the example wants jq and curl")
def test_the_guides_command(build: Build, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_COMMANDS", str(tmp_path))
    (tmp_path / "agent.sh").write_text(example("sh"))
    with serve() as model:
        model.say(obeys)
        version = program_version(build, model.url, way="command", command=["sh", "agent.sh"])
        run = submit(build, build.task_set(held_out=2), version)
        fake.work(run)
    assert (run.state, run.results.exclude(score=None).count()) == (State.SUCCEEDED, 4), list(
        run.results.values_list("reason", "error")
    )


@pytest.mark.parametrize(
    "url", ["http://a..b:80/run", f"http://{'a' * 64}/run", "http://[::1/run", "http://127.0.0.1:x/"]
)
def test_an_address_that_is_none_is_a_reason(url: str) -> None:
    with pytest.raises(program_calls.Broken, match="is no address that can be called"):
        program_calls.call(url, WORK, 1.0, threading.Event())


def test_a_path_beyond_ascii_is_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/ausführen"
        with pytest.raises(program_calls.Broken, match="is no address that can be called"):
            program_calls.call(url, WORK, 1.0, threading.Event())
