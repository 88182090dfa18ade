"""Attempts a second of an eval whose version is a program, beside the bare program: `python -m tests.bench_harness`.

The program is one server on this machine, which asks a model twice for each task. The bare loop sends it the same
tasks, as many at once, with the model's own address; the eval has it call the model through the gateway, judges every
attempt and stores it. Both go in turns. Flywheel is served as the supervisor serves it; all of it shares the machine.
"""

import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, AT_ONCE = 2, 8
TASKS, SAMPLES = 64, 5
MODEL_CALLS, THINKS_S = 2, 0.5
"""Of one attempt, and how long the model takes for each."""
CODE = "0123abc"


def measure(project: Any, actor: Any, program: int, model: int) -> dict[str, Any]:
    """Rounds of both; the ratio is the median of the rounds'."""
    from flywheel.accounts.actors import Actor
    from flywheel.agents.models import Version
    from flywheel.environments.models import TaskSet
    from flywheel.evals.runs import submission
    from tests.conftest import Build, Cast
    from workers.jobs import eval_runs

    people = dict.fromkeys(("viewer", "reviewer", "builder", "trainer", "approver", "admin", "stranger"), actor)
    build = Build(Cast(project=project, elsewhere=project, **people))
    task_set: TaskSet = build.task_set(held_out=TASKS)
    url = f"http://127.0.0.1:{program}/run"
    server = {"base_url": f"http://127.0.0.1:{model}/v1", "model": "tiny"}
    endpoint = {"kind": "program", "way": "http", "url": url, "code": CODE, "concurrency": AT_ONCE, **server}
    version: Version = build.version(endpoint=endpoint, form="native")

    ends: list[dict[str, float]] = []

    def ours() -> None:
        settings = submission.RunSettings(samples=SAMPLES)
        run, _ = submission.submit(
            key=uuid.uuid4(), version=version, task_set=task_set, actor=Actor(actor), settings=settings
        )
        lease = type(run).claim(run.pk)
        assert lease is not None
        with lease:
            eval_runs.evaluate(lease)
        run.refresh_from_db()
        assert run.started_at is not None
        assert run.finished_at is not None
        rows = run.attempts.values_list("claimed_at", "ended_at")
        times = [(began, ended) for began, ended in rows if began and ended]
        ends.append(
            {
                "before_s": (min(began for began, _ in times) - run.started_at).total_seconds(),
                "after_s": (run.finished_at - max(ended for _, ended in times)).total_seconds(),
                "attempt_ms": statistics.mean((ended - began).total_seconds() * 1000 for began, ended in times),
            }
        )
        assert run.results.exclude(score=None).count() == TASKS * SAMPLES, (run.error, run.results.values("error")[:1])

    def bare() -> None:
        tasks = [member.task.prompt for member in task_set.members.select_related("task")][:TASKS] * SAMPLES
        works = (
            {"input": text, "messages": [{"role": "user", "content": text}], "api_key": "", **server} for text in tasks
        )
        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert all("output" in found for found in pool.map(lambda work: _post(url, work), works))

    rounds = []
    for number in range(ROUNDS):
        order: list[Callable[[], None]] = [ours, bare] if number % 2 else [bare, ours]
        took = {work.__name__: _timed(work) for work in order}
        rounds.append((TASKS * SAMPLES / took["ours"], TASKS * SAMPLES / took["bare"]))
        sys.stderr.write(f"{rounds[-1][0]:.2f} and {rounds[-1][1]:.2f} attempts/s\n")
    ratios = [one / other for one, other in rounds]
    return {
        "what": f"eval of a program, {MODEL_CALLS} model calls of {THINKS_S * 1000:g} ms, {AT_ONCE} at once",
        "attempts_per_s": statistics.median(one for one, _ in rounds),
        "bare_per_s": statistics.median(other for _, other in rounds),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "ends": ends,
    }


def _post(url: str, work: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(work).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# The program, and its model: one process each


async def _serve(answer: Callable[[Any], Any]) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                assert length
                body = json.dumps(await answer(json.loads(await reader.readexactly(int(length[1]))))).encode()
                about = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                writer.write(about + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def model(asked: Any) -> Any:
    await asyncio.sleep(THINKS_S)
    message = {"role": "assistant", "content": f"Answer {len(asked['messages'])}."}
    usage = {"prompt_tokens": 200, "completion_tokens": 30}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage, "model": "tiny"}


async def program(work: Any) -> Any:
    messages = work["messages"]
    for _ in range(MODEL_CALLS):
        messages.append((await _ask(work, messages))["choices"][0]["message"])
    return {"output": messages[-1]["content"]}


async def _ask(work: Any, messages: Sequence[Any]) -> Any:
    parts = urlsplit(work["base_url"])
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps({"model": work["model"], "messages": messages}).encode()
    head = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {work['api_key']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    about = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", about, re.IGNORECASE)
    assert length, about
    answer = json.loads(await reader.readexactly(int(length[1])))
    writer.close()
    return answer


def _started(name: str) -> tuple["subprocess.Popen[str]", int]:
    command = [sys.executable, "-m", "tests.bench_harness", name]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def main(arguments: Sequence[str]) -> None:
    if arguments:
        return asyncio.run(_serve({"model": model, "program": program}[arguments[0]]))
    home = Path(tempfile.mkdtemp(prefix="flywheel-bench-"))
    os.environ |= {"FLYWHEEL_HOME": str(home), "DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    os.environ.pop("DATABASE_URL", None)
    from flywheel.system import postgres

    started: list[Any] = []
    try:
        os.environ["DATABASE_URL"] = postgres.start(home / "postgres").url
        import django
        from django.core.management import call_command

        django.setup()
        call_command("prepare", verbosity=0)
        from flywheel.accounts.models import Project, User
        from flywheel.edge.jobs import Job
        from tests.bench_gateway import _served

        Job.nudge = lambda _: None  # type: ignore[method-assign, assignment]
        of_model, model_port = _started("model")
        of_program, program_port = _started("program")
        web, served, _ = _served(model_port)
        started += [of_model, of_program, web]
        os.environ["FLYWHEEL_URL"] = f"http://127.0.0.1:{served}"
        found = measure(
            Project.objects.get(slug="default"), User.objects.get(username="admin"), program_port, model_port
        )
        print(json.dumps(found))
        return None
    finally:
        for process in started:
            process.terminate()
            process.wait(20)
        postgres.stop(home / "postgres")
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
