"""The examples of the connect page are real: they compile, and those whose libraries are here send to a live server.

Further interpreters with the libraries of single frameworks are tried when `FLYWHEEL_SNIPPET_PYTHONS` names them,
separated by colons, and `FLYWHEEL_SNIPPET_MODULES` names folders that hold a `node_modules`.
"""

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from django.conf import settings
from django.utils import timezone
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import ApiKey, Project
from flywheel.failures.detectors.proposals import detect, unread
from flywheel.failures.models import Proposal
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway import upstream_connection as connections
from flywheel.trajectories.ingest.onboarding.diagnosis import diagnose
from flywheel.trajectories.ingest.onboarding.snippets import KEY, ORIGIN, PROJECT, SNIPPETS, Snippet
from flywheel.trajectories.models import Trajectory
from tests.conftest import Cast
from tests.trajectories.ingest.upstream import Answer, Seen, Upstream, completion, serve
from tests.waiting import PATIENCE_S, wait_for
from tests.worker import database_url

ROOT = Path(__file__).resolve().parents[4]
GUIDE = (ROOT / "docs/guides/connect.md").read_text()
PYTHON = [snippet for snippet in SNIPPETS.values() if snippet.language == "python"]
JAVASCRIPT = [snippet for snippet in SNIPPETS.values() if snippet.language == "javascript"]


def named(snippets: list[Snippet]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("snippet", snippets, ids=lambda snippet: snippet.key)


@named(list(SNIPPETS.values()))
def test_page_and_guide_say_the_same(snippet: Snippet) -> None:
    assert f"## {snippet.label}" in GUIDE
    section = GUIDE.partition(f"## {snippet.label}\n")[2].partition("\n## ")[0]
    assert f"```{snippet.language}\n{snippet.text}```" in section
    assert snippet.install in section
    assert " ".join(snippet.note.split()) in " ".join(section.split())


@named(list(SNIPPETS.values()))
def test_the_address_and_the_key_are_filled_in(snippet: Snippet) -> None:
    filled = snippet.filled("https://flywheel.example", "fw_a_b", "acme").text
    assert "https://flywheel.example" in filled
    assert "fw_a_b" in filled
    assert not [placeholder for placeholder in (ORIGIN, KEY, PROJECT) if placeholder in filled]
    assert KEY in snippet.filled("https://flywheel.example").text


@named(PYTHON)
def test_python_compiles(snippet: Snippet) -> None:
    compile(snippet.text, snippet.file, "exec")


@named(JAVASCRIPT)
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
def test_javascript_can_be_parsed(snippet: Snippet, tmp_path: Path) -> None:
    path = tmp_path / snippet.file
    path.write_text(snippet.text)
    subprocess.run(["node", "--check", str(path)], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
@named([snippet for snippet in SNIPPETS.values() if snippet.language == "shell"])
def test_shell_can_be_parsed(snippet: Snippet) -> None:
    subprocess.run(["sh", "-n"], input=snippet.text, text=True, check=True, capture_output=True)


def test_the_collectors_pipelines_name_what_there_is() -> None:
    config = yaml.safe_load(SNIPPETS["collector"].text)
    for pipeline in config["service"]["pipelines"].values():
        for part, names in pipeline.items():
            assert set(names) <= set(config[part])
    assert config["exporters"]["otlphttp/flywheel"]["endpoint"] == ORIGIN


# Against a live server

SAID = "It comes on Friday."


@pytest.fixture
def served(transactional_db: None) -> Iterator[str]:
    """The real web server, which takes a body in chunks as JavaScript's exporter sends it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = {"FLYWHEEL_HOME": str(settings.HOME), "FLYWHEEL_PORT": str(port), "DATABASE_URL": database_url()}
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "flywheel.wsgi", "--config", "python:flywheel.server.gunicorn_settings"],
        cwd=ROOT,
        env={**os.environ, **here, "FLYWHEEL_WEB_PROCESSES": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"{url}/healthz"), "the web server answers")
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S):
            return True
    except OSError:
        return False


@functools.cache
def interpreter_for(needs: tuple[str, ...]) -> str | None:
    """A Python that has all of these modules."""
    look = (
        "import importlib.util as u, sys; "
        "sys.exit(any(u.find_spec('.'.join(n.split('.')[:i + 1])) is None"
        " for n in sys.argv[1:] for i in range(n.count('.') + 1)))"
    )
    for python in [sys.executable, *filter(None, os.environ.get("FLYWHEEL_SNIPPET_PYTHONS", "").split(":"))]:
        if subprocess.run([python, "-c", look, *needs], capture_output=True).returncode == 0:
            return python
    return None


@pytest.fixture
def model() -> Iterator[Upstream]:
    """It speaks the two languages of OpenAI's clients."""
    with serve() as upstream:
        upstream.say(lambda seen: Answer(response() if seen.path.endswith("/responses") else completion(SAID)))
        yield upstream
        connections.forget()


def response() -> bytes:
    text = {"type": "output_text", "text": SAID, "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return json.dumps(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_790_000_000,
            "status": "completed",
            "model": "gpt-4.1-mini",
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12, **details},
        }
    ).encode()


def surroundings(model: Upstream) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "FLYWHEEL_"))}
    return {
        **kept,
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "unused",
        "TRACELOOP_TELEMETRY": "false",
        "MLFLOW_TRACKING_URI": "file:///nowhere",
    }


def run(snippet: Snippet, url: str, project: Project, model: Upstream, *command: str, at: Path) -> str:
    """Run the text as a person would, with a fresh key; returns what it printed."""
    maker = project.memberships.get(role="admin").user
    _, key = ApiKey.make(project, "snippet", [snippet.scope], maker)
    path = at / (snippet.file or "runs.sh")
    path.write_text(snippet.filled(url, key, project.slug).text)
    done = subprocess.run(
        [*command, str(path)], cwd=at, env=surroundings(model), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def arrived(project: Project) -> Trajectory:
    """One trajectory with a model call that says what was asked and answered."""
    row = Trajectory.objects.get(project=project)
    calls = row.steps.filter(kind="assistant")
    assert calls.count() == 1
    assert row.title == "Where is my order A-17?"
    return row


@pytest.mark.django_db(transaction=True)
@named([snippet for snippet in PYTHON if snippet.scope == "ingest"])
def test_python_sends(snippet: Snippet, live_server: LiveServer, cast: Cast, model: Upstream, tmp_path: Path) -> None:
    python = interpreter_for(snippet.needs)
    if python is None:
        assert snippet.key != "opentelemetry-python", "its libraries are of the project"
        pytest.skip(f"no interpreter with {', '.join(snippet.needs)}")
    run(snippet, live_server.url, cast.project, model, python, at=tmp_path)
    row = arrived(cast.project)
    assert row.tokens is not None


@pytest.mark.django_db(transaction=True)
@named(JAVASCRIPT)
def test_javascript_sends(snippet: Snippet, served: str, cast: Cast, model: Upstream, tmp_path: Path) -> None:
    wanted = snippet.install.removeprefix("npm install ").split()
    folders = [Path(name) for name in os.environ.get("FLYWHEEL_SNIPPET_MODULES", "").split(":") if name]
    found = next((f for f in folders if all((f / "node_modules" / name).exists() for name in wanted)), None)
    if found is None:
        pytest.skip("no folder with its modules")
    (tmp_path / "node_modules").symlink_to(found / "node_modules")
    run(snippet, served, cast.project, model, "node", "--preserve-symlinks", at=tmp_path)
    arrived(cast.project)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
@pytest.mark.django_db(transaction=True)
def test_curl_sends(live_server: LiveServer, cast: Cast, model: Upstream, tmp_path: Path) -> None:
    snippet = SNIPPETS["curl"]
    for _ in range(2):
        assert "200 OK" in run(snippet, live_server.url, cast.project, model, "sh", at=tmp_path)
    assert Trajectory.objects.count() == 2, "new ids each time"
    row = Trajectory.objects.latest("pk")
    assert (row.title, row.tokens_in, row.tokens_out) == ("Where is my order A-17?", 14, 6)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
@pytest.mark.django_db(transaction=True)
def test_a_file_is_sent(live_server: LiveServer, cast: Cast, model: Upstream, tmp_path: Path) -> None:
    line = '{"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."}]}\n'
    (tmp_path / "runs.jsonl").write_text(line)
    api_only = Snippet("file", "", "shell", SNIPPETS["file"].text.partition("# or")[0])
    run(api_only, live_server.url, cast.project, model, "sh", at=tmp_path)
    assert Trajectory.objects.get().source == "import"


@pytest.mark.django_db(transaction=True)
def test_the_gateway_records(
    live_server: LiveServer,
    cast: Cast,
    model: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "GATEWAY_DIR", tmp_path / "gateway")
    monkeypatch.setattr(recording.recorder, "put", lambda journal: recording.recorder.record([journal]))
    Project.objects.filter(pk=cast.project.pk).update(upstream={"base_url": model.url, "api_key_env": ""})
    printed = run(SNIPPETS["gateway"], live_server.url, cast.project, model, sys.executable, at=tmp_path)
    assert SAID in printed
    arrived(cast.project)


# An agent whose loop has no span around it

LOOP = """
import json, os

from openai import OpenAI
{setup}

def run(client, topic, session):
    messages = [{{"role": "system", "content": "Help."}}, {{"role": "user", "content": f"Where is order {{topic}}?"}}]
    for question in (None, "And when does it come?"):
        if question:
            messages.append({{"role": "user", "content": question}})
        while True:
            answer = ask(client, messages, session).choices[0].message
            messages.append(answer.model_dump(exclude_none=True))
            if not answer.tool_calls:
                break
            for call in answer.tool_calls:
                messages.append({{"role": "tool", "tool_call_id": call.id, "content": "packed"}})


{body}
"""

TRACED = LOOP.format(
    setup="""
from openinference.instrumentation import using_session
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

exporter = OTLPSpanExporter(
    endpoint="http://127.0.0.1:8000/v1/traces", headers={"Authorization": "Bearer fw_YOUR_KEY"}
)
provider = TracerProvider(resource=Resource.create({"service.name": "my-agent"}))
provider.add_span_processor(SimpleSpanProcessor(exporter))
OpenAIInstrumentor().instrument(tracer_provider=provider)
TOOL = {"type": "function", "function": {"name": "find_order", "parameters": {"type": "object"}}}


def ask(client, messages, session):
    with using_session(session):
        return client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL])
""",
    body="""
for number in range(12):
    run(OpenAI(), f"A-{number}", f"session-{number % 5}")
provider.shutdown()
""",
)

PASSED = LOOP.format(
    setup="""
def ask(client, messages, session):
    return client.chat.completions.create(model="tiny", messages=messages)
""",
    body="""
client = OpenAI(base_url="http://127.0.0.1:8000/gateway/v1", api_key="fw_YOUR_KEY")
for number in range(12):
    run(client, f"A-{number}", "")
""",
)


def conversing(seen: Seen) -> Answer:
    """Ask for the order first, then say that it is packed, then when it comes."""
    messages = seen.body["messages"]
    topic = messages[1]["content"].split()[-1].rstrip("?")
    if len(messages) == 2:
        function = {"name": "find_order", "arguments": json.dumps({"order_id": topic})}
        call = {"id": f"call_{topic}", "type": "function", "function": function}
        return Answer(completion(None, message={"tool_calls": [call]}))
    return Answer(completion(f"{topic} is packed." if len(messages) == 4 else "On Friday."))


def check_twelve(project: Project) -> None:
    rows = list(Trajectory.objects.filter(project=project))
    assert len(rows) == 12
    assert {row.steps.filter(kind="assistant").count() for row in rows} == {3}
    assert {row.title for row in rows} == {f"Where is order A-{number}?" for number in range(12)}
    detect(unread(project.pk))
    assert not Proposal.objects.filter(trajectory__project=project, bucket="incomplete_execution").exists()


@pytest.mark.django_db(transaction=True)
def test_twelve_conversations_are_twelve_trajectories(
    live_server: LiveServer, cast: Cast, model: Upstream, tmp_path: Path
) -> None:
    needs = SNIPPETS["openai"].needs
    if (python := interpreter_for(needs)) is None:
        pytest.skip(f"no interpreter with {', '.join(needs)}")
    model.say(conversing)
    run(Snippet("loop", "", "python", TRACED), live_server.url, cast.project, model, python, at=tmp_path)
    check_twelve(cast.project)
    [live, *_] = diagnose(cast.project, since=timezone.now() - timedelta(hours=1)).findings
    assert {fact.name: fact.value for fact in live.facts}["tools"] == "1 call"


@pytest.mark.django_db(transaction=True)
def test_twelve_conversations_through_the_gateway_are_twelve_trajectories(
    live_server: LiveServer, cast: Cast, model: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "GATEWAY_DIR", tmp_path / "gateway")
    monkeypatch.setattr(recording.recorder, "put", lambda journal: recording.recorder.record([journal]))
    Project.objects.filter(pk=cast.project.pk).update(upstream={"base_url": model.url, "api_key_env": ""})
    model.say(conversing)
    snippet = Snippet("loop", "", "python", PASSED, scope="gateway")
    run(snippet, live_server.url, cast.project, model, sys.executable, at=tmp_path)
    check_twelve(cast.project)
