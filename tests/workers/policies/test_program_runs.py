"""Evals of versions that are a team's own program: over real sockets, judged as what the product did."""

import functools
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.agents.models import AttemptSpan
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, TaskSetMember
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from flywheel.evals.attempts import attempt_lifecycle
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.first_requests import differences
from flywheel.evals.runs.submission import resume
from flywheel.trajectories.ingest.gateway import recorder
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.store import stored_traces
from tests.conftest import TOOLS, Build, Cast
from tests.environments.tasks.test_seeded_tasks import asked, made, work
from tests.evals import fake
from tests.evals.conftest import served
from tests.evals.fake import submit
from tests.evals.programs import CODE, ask_model, post, program_version, serve_program, status_of, use_tool
from tests.trajectories.ingest.upstream import Answer, Seen, completion, serve
from tests.waiting import PATIENCE_S, wait_for
from workers.policies import program_runs

__all__ = ["served"]

pytestmark = pytest.mark.django_db(transaction=True)


def obeys(seen: Seen) -> Answer:
    """A model that makes the call that the user asks for, natively."""
    person = seen.body["messages"][-1]["content"].split()[1]
    arguments = json.dumps({"person": person, "day": "friday"})
    call = {"id": "c1", "type": "function", "function": {"name": "calendar_create_event", "arguments": arguments}}
    return Answer(completion(None, message={"tool_calls": [call]}))


def test_a_program_behind_an_address_is_judged_by_what_it_did(build: Build, served: str) -> None:
    def does(work: dict[str, Any]) -> Any:
        assert ask_model(work)["tool_calls"]
        return {"output": "Done."}

    with serve() as model, serve_program(does) as program:
        model.say(obeys)
        version = program_version(build, model.url, url=program.url, concurrency=3)
        run = submit(build, build.task_set(held_out=4), version)
        fake.work(run)
    assert (run.state, run.error, run.done) == (State.SUCCEEDED, "", 8)
    assert run.results.filter(score=1.0, tokens_in=9, tokens_out=3).count() == 8, list(run.results.values())
    assert 1 < program.most_at_once <= 3
    result = run.results.select_related("trajectory").first()
    assert result is not None
    assert result.trajectory is not None
    assert (result.trajectory.source, result.trajectory.version) == (Source.ROLLOUT, version)
    assert Trajectory.objects.count() == 8, "model calls are no trajectories of their own"
    kinds = [step.kind for step in stored_traces.trace_of(result.trajectory).steps]
    assert kinds == ["system", "user", "assistant"]
    assert model.seen[0].body["model"] == "tiny-1"
    assert model.seen[0].body["temperature"] == 0.0


def one_run(build: Build, version: Any, *, tasks: int = 1, **fields: Any) -> EvalRun:
    run = submit(build, build.task_set(held_out=tasks), version, **{"samples": 1, **fields})
    fake.work(run)
    return run


def crashes(_: Any) -> Any:
    raise ConnectionAbortedError


def dawdles(_: Any) -> Any:
    time.sleep(3)
    return {"output": ""}


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda _: (500, {"detail": "boom"}), 'crashed: its address answered 500: {"detail": "boom"}'),
        (lambda _: (302, {}), "crashed: its address answered 302"),
        (lambda _: {"answer": "?"}, "its answer cannot be read: output: send a JSON object"),
        (lambda _: {"error": "no such user"}, "the program says: no such user"),
        (lambda _: {"output": None}, "no trace: it returned no output"),
        (crashes, "crashed: the connection broke off"),
        (dawdles, "timed out: no answer within 1 s"),
    ],
)
def test_an_attempt_without_an_answer_is_unscored_and_says_why(
    build: Build, served: str, does: Any, reason: str
) -> None:
    with serve_program(does) as program:
        run = one_run(build, program_version(build, url=program.url, timeout_s=1.0))
    result = run.results.get()
    assert (run.state, result.score, result.cause) == (State.SUCCEEDED, None, "not_answered")
    assert reason in result.error
    assert len(program.seen) == 1, "what reached the program is not tried again"


def test_a_program_that_is_not_there_fails_the_run_and_stores_nothing(build: Build, served: str) -> None:
    run = one_run(build, program_version(build, url="http://127.0.0.1:1/run", timeout_s=1.0))
    assert (run.state, run.error_kind, run.results.count()) == (State.FAILED, "engine", 0)
    assert "its address cannot be reached" in run.error


def test_a_program_that_comes_up_late_is_asked_again(build: Build, served: str) -> None:
    goes: list[int] = []

    def does(work: dict[str, Any]) -> Any:
        goes.append(1)
        return (503, {}) if len(goes) == 1 else {"output": "Hello."}

    with serve_program(does) as program:
        run = one_run(build, program_version(build, url=program.url))
    assert (len(goes), run.results.get().score) == (2, 0.0)


def test_a_program_may_call_no_model_and_its_tokens_are_unknown(build: Build, served: str) -> None:
    with serve_program(lambda work: {"output": work["input"]}) as program:
        run = one_run(build, program_version(build, url=program.url))
    result = run.results.get()
    assert (result.score, result.tokens_in, result.cost_usd) == (0.0, None, None)
    assert result.latency_ms is not None


def test_the_key_of_an_attempt_is_good_for_that_attempt_alone(build: Build, served: str) -> None:
    works: list[dict[str, Any]] = []
    statuses: list[int] = []

    def does(work: dict[str, Any]) -> Any:
        works.append(work)
        if len(works) == 2:  # another's id, with one's own key
            statuses.append(status_of(works[0]["result_url"], {"output": "forged"}, work["api_key"]))
            statuses.append(status_of(f"{served}/api/v1/evals", {}, work["api_key"]))
            ask_model(work)
        return {"output": "Done."}

    with serve() as model, serve_program(does) as program:
        model.say(obeys)
        run = one_run(build, program_version(build, model.url, url=program.url, concurrency=1), tasks=2)
        assert statuses == [404, 401]
        late = works[0]
        assert status_of(f"{late['base_url']}/chat/completions", {"model": "x", "messages": []}, late["api_key"]) == 401
        assert status_of(late["result_url"], {"output": "twice"}, late["api_key"]) == 409
        asked = len(model.seen)
    assert set(run.results.values_list("score", flat=True)) == {0.0, 1.0}
    assert asked == 1


def test_model_calls_that_are_not_recorded_leave_the_attempt_unscored(
    build: Build, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runs, "SETTLE_S", 0.2)
    monkeypatch.setattr(recorder.recorder, "put", lambda _: None)

    def does(work: dict[str, Any]) -> Any:
        if work["input"] == first:
            ask_model(work)
        return {"output": "Done."}

    task_set = build.task_set(held_out=2)
    first = task_set.members.filter(split=Split.HELD_OUT)[0].task.prompt
    with serve() as model, serve_program(does) as program:
        run = submit(build, task_set, program_version(build, model.url, url=program.url), samples=1)
        fake.work(run)
    lost = run.results.get(score=None)
    assert lost.cause == "away"
    assert "1 of its 1 model calls were not recorded" in lost.error


def test_a_run_that_was_stopped_goes_on_and_judges_no_attempt_twice(build: Build, served: str) -> None:
    seen: list[str] = []

    def does(work: dict[str, Any]) -> Any:
        seen.append(work["input"])
        if len(seen) == 3:
            EvalRun.objects.get(pk=run.pk).cancel(Actor(build.cast.builder))
            connections.close_all()
            time.sleep(1)
        return {"output": "Done."}

    with serve_program(does) as program:
        run = submit(build, build.task_set(held_out=6), program_version(build, url=program.url, concurrency=1))
        fake.work(run)
        assert (run.state, run.results.count()) == (State.CANCELLED, run.done)
        resume(run=run, actor=Actor(build.cast.builder))
        fake.work(run)
    assert (run.state, run.results.count()) == (State.SUCCEEDED, 12)
    assert not run.attempts.exclude(state="ended").exists()
    assert len(seen) <= 12 + 3, "what was judged is not attempted again"


def test_what_is_live_is_the_code_that_was_measured(build: Build, served: str) -> None:
    for told, expected in (("", []), (CODE, []), ("fffffff", ["code"])):
        with serve_program(functools.partial(tells, told)) as program:
            run = one_run(build, program_version(build, url=program.url))
        assert differences(run) == expected
    colder = one_run_sampled(build, served)
    assert differences(colder) == ["sampling"]


def tells(code: str, _: Any) -> Any:
    return {"output": "Done.", "code": code}


def one_run_sampled(build: Build, served: str) -> EvalRun:
    with serve_program(lambda _: {"output": "Done."}) as program:
        return one_run(build, program_version(build, url=program.url), sampling={"temperature": 1.5})


def test_nothing_is_kept_of_sealed_attempts(build: Build, served: str) -> None:
    def does(work: dict[str, Any]) -> Any:
        ask_model(work)
        use_tool(work, "email_send", {"to": "Bako"})
        return {"output": "Done."}

    with serve() as model, serve_program(does) as program:
        version = program_version(build, model.url, url=program.url)
        run = submit(build, build.task_set(sealed=6), version, samples=1, split=Split.SEALED, is_final=True)
        fake.work(run)
    assert (run.state, run.results.filter(score=None).count()) == (State.SUCCEEDED, 0)
    assert not Trajectory.objects.exists()
    assert not AttemptSpan.objects.exists()
    assert set(run.attempts.values_list("state", "messages__0", "uses__0", "output")) == {("ended", None, None, None)}


# The world's tools, and turns


def test_a_world_is_judged_by_what_the_program_did_in_it(build: Build, cast: Cast, served: str) -> None:
    """The program carries the first of its model's two calls out, and blocks the second."""
    task_set = world(cast, "workplace")
    names: list[str] = []

    def does(work: dict[str, Any]) -> Any:
        names.extend(tool["function"]["name"] for tool in tools_of(work))
        wanted = targets[work["input"]]
        for step in wanted:
            assert use_tool(work, step["tool"], step["arguments"])["over"] is False
        return {"output": "Done."}

    targets = {task.prompt: task.target["calls"] for task in task_set.tasks.all()}
    with serve_program(does) as program:
        version = program_version(build, url=program.url)
        run = submit(build, task_set, version, split=Split.TRAIN, samples=1)
        fake.work(run)
    assert run.results.filter(score=1.0).count() == task_set.members.filter(split=Split.TRAIN).count()
    assert "calendar_search_events" in names
    result = run.results.select_related("trajectory").first()
    assert result is not None
    assert "tool" in [step.kind for step in stored_traces.trace_of(result.trajectory).steps]  # type: ignore[arg-type]


def test_a_game_goes_on_turn_by_turn(build: Build, cast: Cast, served: str) -> None:
    task_set = world(cast, "tictactoe")
    boards: list[int] = []

    def does(work: dict[str, Any]) -> Any:
        boards.append(sum(message["role"] == "user" for message in work["messages"]))
        return {"output": next(cell for cell in "123456789" if cell in work["messages"][-1]["content"])}

    with serve_program(does) as program:
        run = submit(build, task_set, program_version(build, url=program.url), split=Split.TRAIN, samples=1)
        fake.work(run)
    assert run.state == State.SUCCEEDED
    assert not run.results.filter(score=None).exists(), list(run.results.values_list("error", flat=True))
    assert max(boards) > 1


def test_a_replays_user_answers_a_program_which_then_has_another_turn(build: Build, cast: Cast, served: str) -> None:
    script = [{"say": "With Bako on friday.", "after": "Whom shall I meet, and when?"}]
    played = environment(
        project=cast.project,
        name="played",
        actor=Actor(cast.builder),
        config={"tools": TOOLS, "judged": "end", "user": "script", "script": script},
        verifier={"kind": "episode"},
        terms=Terms("episode"),
    )
    arguments = {"person": "Bako", "day": "friday"}
    wanted = {"wanted": [{"type": "calls", "calls": [{"tool": "calendar.create_event", "arguments": arguments}]}]}
    task = build.task(Split.TRAIN, played, prompt="Book a meeting", target=wanted, state={})
    task_set = build.task_set(0, 0, environment=played)
    TaskSetMember.objects.create(task_set=task_set, task=task, split=task.split)
    asked: list[str] = []

    def does(work: dict[str, Any]) -> Any:
        asked.append(work["messages"][-1]["content"])
        if len(asked) == 1:
            return {"output": "Whom shall I meet?"}
        use_tool(work, "calendar_create_event", arguments)
        return {"output": "Booked."}

    with serve_program(does) as program:
        run = submit(build, task_set, program_version(build, url=program.url), split=Split.TRAIN, samples=1)
        fake.work(run)
    result = run.results.select_related("trajectory").get()
    assert (result.score, asked) == (1.0, ["Book a meeting", script[0]["say"]]), result.reason
    assert result.trajectory is not None
    said = stored_traces.trace_of(result.trajectory).conversation()
    assert [message.role for message in said][-5:] == ["assistant", "user", "assistant", "tool", "assistant"]


def world(cast: Cast, kind: str) -> Any:
    row = made(cast, kind)
    work(asked(cast, row, 8))
    return freeze(environment=row, name=kind, actor=Actor(cast.builder))


def tools_of(work: dict[str, Any]) -> list[Any]:
    request = urllib.request.Request(work["tools_url"], headers={"Authorization": f"Bearer {work['api_key']}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: list[Any] = json.loads(reply.read())["tools"]
    return found


# Commands


def command(build: Build, tmp_path: Path, source: str, **endpoint: Any) -> Any:
    program = tmp_path / "agent.py"
    program.write_text(source)
    return program_version(build, way="command", command=[sys.executable, str(program)], **endpoint)


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_COMMANDS", str(tmp_path))


def test_a_command_is_started_where_the_operator_allows_it(build: Build, served: str, tmp_path: Path) -> None:
    version = command(build, tmp_path, "print('Hello.')")
    with pytest.raises(Refused, match="the operator sets FLYWHEEL_COMMANDS"):
        submit(build, build.task_set(held_out=1), version)


@pytest.mark.usefixtures("allowed")
def test_a_command_gets_its_attempt_and_nothing_of_the_workers(
    build: Build, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "sk-secret")
    source = """
import json, os, sys
work = json.load(sys.stdin)
names = sorted(name for name in os.environ if not name.startswith(("LC_", "PYTHON", "__")))
print(json.dumps({"output": json.dumps([names, os.environ["OPENAI_API_KEY"] == work["api_key"], os.getcwd()])}))
"""
    run = one_run(build, command(build, tmp_path, source))
    result = run.results.select_related("trajectory").get()
    assert result.trajectory is not None, result.error
    said = stored_traces.trace_of(result.trajectory).final()
    assert said is not None
    names, is_key, place = json.loads(said.content)
    assert is_key
    assert place == str(tmp_path)
    assert not {name for name in names if "SECRET" in name or "DATABASE" in name or name == "FLYWHEEL_HOME"}
    assert {"FLYWHEEL_ATTEMPT", "FLYWHEEL_TOOLS_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"} <= set(names)


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit('no model')", "crashed: exit code 1: no model"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed: signal 11"),
        ("import time; time.sleep(60)", "timed out: it did not end within 1 s"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "it wrote more than 2 MiB"),
        ("", "no trace"),
        ("""print('{"output": 1, "code": 2}')""", "its output cannot be read: code:"),
    ],
)
def test_a_command_that_gives_no_answer_is_unscored(
    build: Build, served: str, tmp_path: Path, source: str, reason: str
) -> None:
    run = one_run(build, command(build, tmp_path, source, timeout_s=1.0))
    result = run.results.get()
    assert result.score is None
    assert reason in result.error


@pytest.mark.usefixtures("allowed")
def test_a_commands_children_end_with_it(build: Build, served: str, tmp_path: Path) -> None:
    child = tmp_path / "child"
    source = f"""
import os, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(child)!r}, "w").write(str(left.pid))
print("Done.")
"""
    run = one_run(build, command(build, tmp_path, source))
    assert run.results.get().score == 0.0
    pid = int(child.read_text())
    wait_for(
        lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(), "ended"
    )


# Pulling


def test_a_program_behind_a_firewall_pulls_its_work(build: Build, cast: Cast, served: str) -> None:
    _, key = ApiKey.make(cast.project, "puller", ["build"], cast.builder)
    version = program_version(build, way="pull")
    run = submit(build, build.task_set(held_out=3), version)
    claim = {"agent": version.agent.name, "code": CODE, "limit": 2}
    with worked(run):
        assert post(f"{served}/api/v1/attempts/claim", {**claim, "code": "fffffff"}, key)["items"] == [], "other code"
        done = 0
        while done < 6:
            for work in post(f"{served}/api/v1/attempts/claim", claim, key)["items"]:
                assert work["base_url"].startswith(served)
                assert work["mcp_url"] == f"{served}/attempts/{work['attempt']}/mcp"
                assert work["traces_url"] == f"{served}/v1/traces"
                assert work["attempt"] in work["traceparent"]
                assert post(f"{served}/attempts/{work['attempt']}/lease", {}, work["api_key"])["lease_until"]
                post(work["result_url"], {"output": "Done.", "code": CODE}, work["api_key"])
                assert status_of(work["result_url"], {"output": "Again."}, work["api_key"]) == 409
                done += 1
    run.refresh_from_db()
    assert (run.state, run.results.filter(score=0.0).count()) == (State.SUCCEEDED, 6)
    assert differences(run) == []


def test_an_attempt_whose_puller_died_is_given_to_another(
    build: Build, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_lifecycle, "LEAST_LEASE_S", 0.2)
    monkeypatch.setattr(program_runs, "EXPIRE_S", 0.0)
    version = program_version(build, way="pull")
    run = submit(build, build.task_set(held_out=1), version, samples=1)

    def claimed(lease_s: float) -> dict[str, Any]:
        found: list[attempt_lifecycle.Claim] = []

        def is_there() -> bool:
            found[:] = attempt_lifecycle.claim_some(version.agent, CODE, 1, lease_s)
            return bool(found)

        wait_for(is_there, "an attempt waits")
        return found[0].to_json(served)

    with worked(run):
        dead, alive = claimed(0.2), claimed(PATIENCE_S)
        assert dead["attempt"] != alive["attempt"]
        assert status_of(dead["result_url"], {"output": "late"}, dead["api_key"]) == 404
        post(alive["result_url"], {"output": "Done."}, alive["api_key"])
    run.refresh_from_db()
    assert run.results.get().score == 0.0


@contextmanager
def worked(run: EvalRun) -> Iterator[None]:
    """A worker carries the run out meanwhile."""

    def carry_out() -> None:
        try:
            fake.work(EvalRun.objects.get(pk=run.pk))
        finally:
            connections.close_all()

    thread = threading.Thread(target=carry_out)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
