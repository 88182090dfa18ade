"""The gateway as it is served: gunicorn, a real client, a model's server, and what a kill leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from django.conf import settings

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway.journals import journal as journals
from flywheel.trajectories.models import Batch, Step, Trajectory
from flywheel.trajectories.store import stored_traces
from tests.conftest import Cast
from tests.trajectories.ingest.gateway.calls import response, told_in_events
from tests.trajectories.ingest.upstream import Answer, Seen, Upstream, completion, delta, hello, serve, sse
from tests.waiting import PATIENCE_S, wait_for
from tests.worker import database_url

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[4]


class Served:
    """gunicorn on a free port, as the supervisor starts it, with one process."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = settings.HOME / f"gunicorn-{self.port}.log"
        environment = {
            **os.environ,
            "FLYWHEEL_HOME": str(settings.HOME),
            "FLYWHEEL_PORT": str(self.port),
            "FLYWHEEL_WEB_PROCESSES": "1",
            "DATABASE_URL": database_url(),
            "TEST_API_KEY": "sk-upstream",
            "TEST_API_KEY_HOSTS": "127.0.0.1",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "gunicorn",
                    "flywheel.wsgi",
                    "--config",
                    "python:flywheel.server.gunicorn_settings",
                ],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(self.answers, "it answers", self.log.read_text)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=PATIENCE_S):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """-9, of the process that answers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serve() as server:
        yield server


@pytest.fixture
def served(broker_installed: None) -> Iterator[Served]:
    made = Served()
    yield made
    os.killpg(made.process.pid, signal.SIGTERM)
    try:
        made.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()
    for path in settings.GATEWAY_DIR.glob("*.exchange"):
        path.unlink()


@pytest.fixture
def client(served: Served, upstream: Upstream, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    """The two lines that change for somebody who has a program already: the address, and the key."""
    monkeypatch.setenv("TEST_API_KEY_HOSTS", "127.0.0.1")
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url=upstream.url, api_key_env="TEST_API_KEY")
    _, key = ApiKey.make(cast.project, "gateway", ["gateway"], cast.admin)
    with openai.OpenAI(base_url=f"{served.url}/gateway/v1", api_key=key, max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, text: str = "Hi", **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], **more)


def recorded(count: int) -> None:
    wait_for(lambda: Step.objects.count() >= count, f"{count} are recorded", Step.objects.count)


def test_the_client_that_people_have_passes_through(client: openai.OpenAI, upstream: Upstream, served: Served) -> None:
    assert ask(client).choices[0].message.content == "Hello."
    upstream.say(hello(hold=(seen := threading.Event())))
    pieces = []
    for event in ask(client, stream=True, stream_options={"include_usage": True}):
        seen.set()  # only now does the upstream say the rest: piece by piece, not all at once
        pieces += [choice.delta.content or "" for choice in event.choices]
    assert "".join(pieces) == "Hello."
    upstream.say(b'{"object": "list", "data": [{"id": "tiny", "object": "model", "created": 1, "owned_by": "us"}]}')
    assert [model.id for model in client.models.list()] == ["tiny"]
    recorded(2)
    for step in Step.objects.all():
        assert (step.status, step.tokens_in) == ("ok", 9)
    assert {seen.headers["authorization"] for seen in upstream.seen} == {"Bearer sk-upstream"}


def test_the_clients_responses_pass_through(client: openai.OpenAI, upstream: Upstream) -> None:
    whole = response("Hello.", tools=[], tool_choice="auto", parallel_tool_calls=True)
    upstream.say(json.dumps(whole).encode())
    first = client.responses.create(model="tiny", input="Hi")
    assert (first.output_text, first.id) == ("Hello.", "resp_1")
    upstream.say(Answer(told_in_events({**whole, "id": "resp_2"}), kind="text/event-stream"))
    events = list(client.responses.create(model="tiny", input="Go on.", previous_response_id=first.id, stream=True))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello."
    upstream.say(Answer(b'{"error": {"message": "Not Found"}}', status=404))
    with pytest.raises(openai.NotFoundError, match="Not Found"):
        client.responses.create(model="tiny", input="Other")
    recorded(3)
    assert sorted(Trajectory.objects.values_list("step_count", flat=True)) == [1, 2]


def test_the_clients_own_errors_are_those_of_the_upstream(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.say(Answer(b'{"error": {"message": "slow down"}}', status=429, headers={"Retry-After": "3"}))
    with pytest.raises(openai.RateLimitError, match="slow down") as limited:
        ask(client)
    assert limited.value.response.headers["retry-after"] == "3"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="nobody@live", messages=[])
    with pytest.raises(openai.AuthenticationError):
        ask(client.with_options(api_key="fw_0_0"))
    recorded(1)


def test_an_answer_that_breaks_off_is_an_error_for_the_client(
    client: openai.OpenAI, upstream: Upstream, served: Served
) -> None:
    upstream.say(Answer([delta(content="He")], kind="text/event-stream", breaks=True))
    with pytest.raises(openai.APIConnectionError):
        for _ in ask(client, stream=True):
            pass
    recorded(1)
    assert "broke off" in Step.objects.get().error
    assert "Traceback" not in served.log.read_text()


def test_eight_at_once_are_eight_trajectories(client: openai.OpenAI, upstream: Upstream) -> None:
    def answer(seen: Seen) -> Answer:
        text = seen.body["messages"][0]["content"]
        return sse(*[delta(content=f"{text}:{number} ") for number in range(20)], wait_s=0.005)

    upstream.say(answer)

    def call(number: int) -> str:
        events = ask(client, f"n{number}", stream=True)
        return "".join(choice.delta.content or "" for event in events for choice in event.choices)

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(call, range(32)))
    assert said == ["".join(f"n{number}:{part} " for part in range(20)) for number in range(32)]
    recorded(32)
    kept = sorted(stored_traces.trace_of(row).conversation()[-1].content for row in Trajectory.objects.all())
    assert kept == sorted(said)


def test_a_client_that_goes_away_ends_the_call_upstream(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.say(sse(*[delta(content="x" * 5000)] * 2000, wait_s=0.005))
    stream = ask(client, stream=True)
    next(iter(stream))
    stream.close()
    assert upstream.hung_up.wait(PATIENCE_S)
    recorded(1)
    step = Step.objects.get()
    assert step.status == "error"
    assert "the caller went away" in step.error


def nothing_lies_there() -> bool:
    recording.sweep()
    return not list(settings.GATEWAY_DIR.glob("*.exchange"))


def test_what_a_caller_was_answered_outlives_a_kill(
    client: openai.OpenAI, upstream: Upstream, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at a random moment under load, three times: every answer that somebody had is recorded, once."""
    upstream.say(lambda seen: Answer(completion(seen.body["messages"][0]["content"])))
    answered: list[str] = []
    stop = threading.Event()

    def work(name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                answered.append(ask(client, f"{name}-{number}").choices[0].message.content)
            except openai.APIConnectionError:
                time.sleep(0.05)

    threads = [threading.Thread(target=work, args=[name]) for name in range(4)]
    for thread in threads:
        thread.start()
    for pause_s in (0.4, 0.9, 0.7):
        time.sleep(pause_s)
        served.kill()
        wait_for(served.answers, "it answers", served.log.read_text)
    stop.set()
    for thread in threads:
        thread.join()
    assert len(answered) > 10
    os.killpg(served.process.pid, signal.SIGKILL)
    served.process.wait()
    monkeypatch.setattr(journals, "YOUNG_S", 0.0)
    # Its children are killed with it, but what they have open is theirs until each has really gone.
    wait_for(nothing_lies_there, "all is recorded")
    kept = [row.title for row in Trajectory.objects.all()]
    assert set(answered) <= set(kept)
    assert len(kept) == len(set(kept)) == Step.objects.count()
    assert sum(Batch.objects.values_list("inserted", flat=True)) == len(kept)
