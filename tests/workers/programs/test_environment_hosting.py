"""An environment served over NeMo Gym's protocol with all that a worker has: Python in the sandbox, LLM judges; and
what becomes of its answers when a judge is away, slow or void."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, ModelPrice
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.core.interop import gym_server
from flywheel.core.interop.environment_exports import CannotExport
from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.openai_messages import items
from flywheel.core.traces.tooling import call_text
from flywheel.environments import ledger
from flywheel.environments.models import JudgeMemory, Opening, Proving, TaskSet
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import own_tasks
from flywheel.environments.versions import environment_versions
from tests.conftest import TOOLS, Build, Cast
from tests.environments.shop import CANCELLED, OWN, shop, work
from tests.interop.test_gym import Caller
from tests.waiting import PATIENCE_S, wait_for
from tests.worker import database_url
from tests.workers.judge_server import JudgeServer, credulous, judge_server
from workers.judging import llm_judge as asking
from workers.judging.llm_judge import JudgeError
from workers.programs import environment_hosting, environment_server
from workers.programs.environment_hosting import Hosted

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[3]
JUDGE = {"type": "judge", "name": "right", "criteria": "It books the meeting.", "endpoint": "upstream", "model": "m"}
Serve = Callable[..., Hosted]


def books(data: dict[str, Any], _: dict[str, Any]) -> int:
    """Full marks for naming the person as a call does."""
    person = data["request"][-1]["content"].split()[1]
    return int(re.search(rf'"person": ?"{person}"', json.dumps(data["attempt"]).replace("\\", "")) is not None)


@pytest.fixture
def judge(build: Build) -> Iterator[JudgeServer]:
    with judge_server(books) as server:
        set_upstream(project=build.cast.project, actor=Actor(build.cast.admin), base_url=server.url)
        ModelPrice.objects.create(project=build.cast.project, model="m", price_in=1, price_out=1)
        yield server


def judged(build: Build, *more: dict[str, Any]) -> TaskSet:
    environment_versions.environment_version(
        environment=build.environment(),
        actor=Actor(build.cast.builder),
        config={"tools": TOOLS},
        verifier={"kind": "rubric", "parts": [JUDGE, *more]},
    )
    return build.task_set(train=3, held_out=2)


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def begin(task_set: TaskSet, **more: Any) -> Hosted:
            made = stack.enter_context(
                environment_hosting.server(task_set=task_set, splits=["train"], token="", **more)
            )
            thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(made.shutdown)
            return made

        yield begin


def row_of(served: Hosted, number: int = 0) -> dict[str, Any]:
    task = list(served.gym.tasks.values())[number]
    return gym_server.row_of(
        served.gym.env, task, number=number, environment="mail@2", split="train", agent="mail_agent"
    )


def booking(row: dict[str, Any]) -> dict[str, str]:
    return {"person": row["responses_create_params"]["input"][-1]["content"].split()[1], "day": "friday"}


def verified(served: Hosted, words: str, number: int = 0) -> tuple[int, Any]:
    """What an attempt of one answer in words is worth."""
    row = row_of(served, number)
    answer = {"response": {"output": items([Message("assistant", words)])}}
    return Caller(served.url).post("verify", row | answer)


def right(served: Hosted, number: int = 0) -> tuple[int, Any]:
    return verified(served, call_text("calendar.create_event", booking(row_of(served, number))), number)


def test_an_attempt_is_worth_what_the_judge_says(build: Build, judge: JudgeServer, serve: Serve) -> None:
    served = serve(judged(build))
    assert len(judge.seen) == 10, "the judge has met its canaries before anybody was served"
    caller, row = Caller(served.url), row_of(served)
    assert caller.post("seed_session", row) == (200, {})
    assert caller.post("calendar_create_event", booking(row))[0] == 200
    call = Message("assistant", "", (ToolCall("c", "calendar.create_event", booking(row)),))
    status, body = caller.post("verify", row | {"response": {"output": items([call])}})
    assert (status, body["reward"], body["part_right"], body["reason"]) == (
        200,
        1.0,
        1.0,
        "right: 1 of 1: By the rule.",
    )
    status, body = verified(served, "Lovely weather.")
    assert (status, body["reward"], body["part_right"]) == (200, 0.0, 0.0)
    before = len(judge.seen)
    assert verified(served, "Lovely weather.")[1]["reward"] == 0.0
    assert len(judge.seen) == before, "what was said of the same words holds"
    assert not JudgeMemory.objects.exists(), "nothing of a stranger's attempts is kept in the project"


def test_the_last_step_brings_the_judges_verdict(build: Build, judge: JudgeServer, serve: Serve) -> None:
    served = serve(judged(build))
    caller, row = Caller(served.url), row_of(served)
    assert caller.post("reset", row)[0] == 200
    said = [Message("assistant", call_text("calendar.create_event", booking(row)))]
    status, body = caller.post("step", row | {"response": {"output": items(said)}})
    assert (status, body["terminated"], body["reward"], body["info"]["part_right"]) == (200, True, 1.0, 1.0)


def test_what_the_judge_does_not_answer_is_an_error_until_it_answers_again(
    build: Build, judge: JudgeServer, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda *_: 0.01)  # pauses between tries
    served = serve(judged(build))
    for answer, cause in ((500, "the server answered 500"), ("what?", "answer is not JSON")):
        judge.mark = lambda *_, answer=answer: answer
        status, body = right(served)
        assert (status, "reward" in body) == (500, False)
        assert re.search(f"unscored: right: .*{cause}", body["detail"]), body
    caller, row = Caller(served.url), row_of(served)
    caller.post("reset", row)
    status, body = caller.post("step", row | {"response": {"output": items([Message("assistant", "Hm.")])}})
    assert (status, "reward" in body) == (500, False)
    judge.mark = books
    assert right(served)[1]["reward"] == 1.0
    status, body = caller.post("step", row | {"response": {"output": items([Message("assistant", "Hm.")])}})
    assert (status, body["reward"]) == (200, 0.0), "the last step can be sent again"


def test_a_canary_that_gets_a_mark_ends_all_scoring(
    build: Build, judge: JudgeServer, serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(asking, "EVERY", 3)
    served = serve(judged(build))
    assert right(served)[1]["reward"] == 1.0
    judge.mark = lambda *_: 1
    found = [verified(served, f"Attempt {number}") for number in range(4)]
    assert [status for status, _ in found] == [200, 500, 500, 500]
    judge.mark = books
    for number in range(2):
        status, body = right(served, number)
        assert (status, "reward" in body) == (500, False)
        assert "unscored: right: the judge right gave 1 of 1 to a canary that must get 0 (" in body["detail"]
    asked = len(judge.seen)
    right(served, 2)
    assert len(judge.seen) == asked, "it is not asked any more"
    told = _told(capsys, "tokens")
    assert "so nothing that it said in this run counts. From here on what it would judge is unscored." in told[0]
    tokens, dollars = 110 * asked, 110 * asked / 1e6
    assert told[1] == (
        f"flywheel: the judge right: 3 judged, 0 remembered, 11 canaries; {asked} requests, {tokens:,} tokens, "
        f"${dollars:.4f}"
    )


def _told(capsys: pytest.CaptureFixture[str], word: str) -> list[str]:
    """The lines on stderr, once the word is among them."""
    told = ""

    def is_there() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return word in told

    wait_for(is_there, f"{word!r} is told", lambda: told)
    return told.splitlines()


def test_what_judges_take_is_told_now_and_then(
    build: Build,
    judge: JudgeServer,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(environment_hosting, "TELL_EVERY_S", 0.05)
    served = serve(judged(build))
    assert "10 canaries; 10 requests" in _told(capsys, "canaries")[0]
    time.sleep(0.3)
    assert capsys.readouterr().err == "", "nothing new"
    right(served)
    assert "1 judged" in _told(capsys, "1 judged")[-1]


def test_a_judge_that_cannot_be_asked_or_believed_serves_nobody(
    build: Build, judge: JudgeServer, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda *_: 0.01)
    task_set = judged(build)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    judge.mark = credulous
    with pytest.raises(JudgeError, match="a canary that must get 0"):
        serve(task_set, port=port)
    judge.mark = lambda *_: 500
    with pytest.raises(JudgeError, match="its canaries could not be judged: the judge did not answer"):
        serve(task_set, port=port)
    cast = build.cast
    monkeypatch.setenv("NOT_THERE_API_KEY_HOSTS", "127.0.0.1")
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url=judge.url, api_key_env="NOT_THERE_API_KEY")
    with pytest.raises(JudgeError, match="there is no key NOT_THERE_API_KEY"):
        serve(TaskSet.objects.get(pk=task_set.pk), port=port)
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url="")
    with pytest.raises(JudgeError, match="the project has no endpoint 'upstream'"):
        serve(TaskSet.objects.get(pk=task_set.pk), port=port)
    assert not AuditEntry.objects.filter(action="environments.export").exists(), "nothing has left"
    socket.create_server(("127.0.0.1", port)).close()


def test_a_verifier_whose_judge_was_found_void_is_not_served(build: Build, judge: JudgeServer, serve: Serve) -> None:
    task_set = judged(build)
    Proving.objects.create(
        project=build.cast.project,
        environment=build.environment(),
        created_by=build.cast.builder,
        error_kind="canary",
        error="the judge right gave 1 of 1",
        finished_at=task_set.created_at,
    )
    with pytest.raises(JudgeError, match="gave 1 of 1; make a new version of the verifier"):
        serve(task_set)
    assert judge.seen == []


def test_a_slow_judge_holds_nobody_else_up(build: Build, judge: JudgeServer, serve: Serve) -> None:
    served, go, come = serve(judged(build)), threading.Event(), threading.Semaphore(0)

    def slowly(data: dict[str, Any], body: dict[str, Any]) -> int:
        come.release()
        assert go.wait(PATIENCE_S)
        return books(data, body)

    judge.mark = slowly
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(verified, served, f"Attempt {number}") for number in range(8)]
        for _ in waiting:
            assert come.acquire(timeout=PATIENCE_S), "all of them are judged at once"
        caller, row = Caller(served.url), row_of(served)
        assert caller.post("seed_session", row)[0] == 200
        assert caller.post("calendar_create_event", booking(row))[0] == 200
        go.set()
        assert [each.result()[1]["reward"] for each in waiting] == [0.0] * 8


def test_a_caller_that_did_not_wait_is_not_reported(
    build: Build, judge: JudgeServer, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    served, go = serve(judged(build)), threading.Event()
    judge.mark = lambda *_: int(go.wait(PATIENCE_S) and False)
    content = json.dumps(row_of(served) | {"response": {"output": items([Message("assistant", "Hm.")])}})
    with socket.create_connection(served.server_address[:2]) as caller:  # type: ignore[arg-type]
        head = f"POST /verify HTTP/1.1\r\nContent-Length: {len(content)}\r\n\r\n"
        caller.sendall(head.encode() + content.encode())
        wait_for(lambda: len(judge.seen) == 11, "the judge is asked")
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
    go.set()
    assert verified(served, "Another.")[0] == 200
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_python_runs_in_this_machines_sandbox(build: Build, serve: Serve, sandbox: None) -> None:
    source = "def verify(trace, target):\n    return float(target['arguments']['person'] in trace['answer'])\n"
    environment_versions.environment_version(
        environment=build.environment(),
        actor=Actor(build.cast.builder),
        config={"tools": TOOLS},
        verifier={"kind": "rubric", "parts": [{"type": "python", "name": "code", "source": source}]},
    )
    served = serve(build.task_set(train=3))
    assert right(served)[1]["reward"] == 1.0
    assert verified(served, "Lovely weather.")[1]["reward"] == 0.0


@pytest.mark.django_db(transaction=True)
def test_a_world_of_ones_own_is_played_in_this_machines_sandbox(cast: Cast, serve: Serve, sandbox: None) -> None:
    row = shop(cast)
    for number in range(6):
        prompt, state = f"I am customer {number}. Cancel order 1003.", {"seed": number, "state": OWN}
        own_tasks.write(environment=row, actor=Actor(cast.builder), prompt=prompt, state=state, target=CANCELLED)
    work()
    served = serve(freeze(environment=row, name="shop", actor=Actor(cast.builder)))
    caller, asked = Caller(served.url), row_of(served)
    assert caller.post("seed_session", asked) == (200, {})
    assert caller.post("cancel", {"order_id": "1003"}) == (200, {"output": "Order 1003 is cancelled."})
    call = Message("assistant", "", (ToolCall("c", "cancel", {"order_id": "1003"}),))
    talk = [call, Message("tool", "Order 1003 is cancelled.", (), "c", "cancel"), Message("assistant", "Done.")]
    status, body = caller.post("verify", asked | {"response": {"output": items(talk)}})
    assert (status, body["reward"], body["reason"]) == (200, 1.0, "the wanted state")
    assert verified(served, "It is cancelled.")[1]["reward"] == 0.0


def test_held_out_tasks_are_noted_and_elsewhere_a_token_is_wanted(build: Build) -> None:
    task_set = build.task_set(train=3, held_out=2)
    with environment_hosting.server(task_set=task_set, splits=["train"]) as served:
        assert len(served.gym.tasks) == 3
        assert len(served.token) >= 24
    assert not Opening.objects.exists()
    with pytest.raises(CannotExport, match="without a token"):
        environment_hosting.server(task_set=task_set, splits=["train"], host="0.0.0.0", token="")
    with environment_hosting.server(task_set=task_set, splits=["train", "held_out"], token="") as served:
        assert len(served.gym.tasks) == 5
    assert Opening.objects.get().kind == Opening.Kind.EXPORT
    assert ledger.openings(task_set).people == 1, "somebody at a command line"
    noted = task_set.project.audit.filter(action="environments.export", through="manage.py serve_environment")
    assert [entry.data["splits"] for entry in noted] == [["train", "held_out"], ["train"]]


def test_rows_are_nemo_gyms_and_hold_no_answer_also_where_a_judge_is(
    build: Build, judge: JudgeServer, tmp_path: Path
) -> None:
    task_set = judged(build)
    assert environment_hosting.write_rows(task_set, ["train"], tmp_path / "rows.jsonl") == 3
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert row["responses_create_params"]["input"][-1]["role"] == "user"
    assert row["responses_create_params"]["tools"][0]["type"] == "function"
    assert row["verifier_metadata"]["task"].startswith("t-")
    target = task_set.members.filter(split="train").order_by("task__number")[0].task.target
    assert json.dumps(target["arguments"]) not in json.dumps(row)
    assert judge.seen == [], "rows want no judge"


def test_what_is_asked_wrongly_is_told(build: Build, cast: Cast) -> None:
    usual: dict[str, Any] = {"held_out": False, "host": "127.0.0.1", "port": 0, "token": None}
    usual |= {"rows": None, "task_set": ""}
    with pytest.raises(CannotExport, match="there is no project 'acne'"):
        environment_hosting.opened(project="acne", environment="mail@1", **usual)
    build.environment()
    with pytest.raises(CannotExport, match="there is mail@1"):
        environment_hosting.opened(project="acme", environment="mail@7", **usual)
    with pytest.raises(CannotExport, match="freeze one first"):
        environment_hosting.opened(project="acme", environment="mail@1", **usual)


def test_whoever_reads_its_words_may_go(
    build: Build, judge: JudgeServer, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        monkeypatch.setattr(environment_hosting, "TELL_EVERY_S", 0.01)
        served = serve(judged(build))
        for number in range(3):
            assert right(served, number)[1]["reward"] == 1.0
            time.sleep(0.1)
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            broken.close()


def test_the_command_says_in_a_line_why_it_serves_nobody(
    build: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    build.task_set(train=1)
    usual: dict[str, Any] = {"project": "acme", "environment": "mail@1", "task_set": "", "held_out": False}
    usual |= {"host": "127.0.0.1", "port": 0, "token": None, "rows": None}
    before = signal.getsignal(signal.SIGINT)
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            for asked, why in (
                ({"project": "acne"}, "there is no project 'acne'"),
                ({"host": "0.0.0.0", "token": ""}, "without a token only this machine itself is served"),
                ({"port": port}, f"127.0.0.1:{port}: Address already in use"),
                ({"rows": str(tmp_path / "no" / "rows.jsonl")}, "no/rows.jsonl: No such file or directory"),
            ):
                monkeypatch.setattr(sys, "argv", ["serve_environment", json.dumps({**usual, **asked})])
                with pytest.raises(SystemExit, match=rf"^flywheel: .*{why}"):
                    environment_server.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().out == ""


@pytest.mark.django_db(transaction=True)
def test_the_command_serves_and_ends_at_once_when_asked(build: Build, judge: JudgeServer, tmp_path: Path) -> None:
    task_set = judged(build)
    command = [sys.executable, "manage.py", "serve_environment", str(task_set.environment_version)]
    command += ["--project", task_set.project.slug, "--token", "abc", "--rows", str(tmp_path / "rows.jsonl")]
    surroundings = {"DATABASE_URL": database_url(), "FLYWHEEL_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    try:
        assert process.stdout
        assert process.stdout.readline() == f"3 rows in {tmp_path / 'rows.jsonl'}\n"
        serving = process.stdout.readline()
        address = re.search(r"with 3 tasks of mail@\d+: (http://\S+)", serving)
        assert address, serving
        assert process.stdout.readline() == "Authorization: Bearer abc\n"
        row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
        caller = Caller(address[1], "Bearer abc")
        assert caller.post("seed_session", row) == (200, {})
        said = items([Message("assistant", call_text("calendar.create_event", booking(row)))])
        assert caller.post("verify", row | {"response": {"output": said}})[1]["reward"] == 1.0
        judge.mark = lambda *_: 2 * PATIENCE_S  # seconds to an answer
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(caller.post, "verify", row | {"response": {"output": items([Message("user", "?")])}})
            wait_for(lambda: len(judge.seen) == 12, "the judge is asked")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                waiting.result()
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        timer.cancel()
    assert (process.returncode, out) == (0, "stopped\n"), err
    assert err == "flywheel: the judge right: 1 judged, 0 remembered, 10 canaries; 11 requests, 1,210 tokens, $0.0012\n"
