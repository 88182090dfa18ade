"""What a program tells of itself while it is evaluated is its attempt's, and no production; told by the real SDK."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flywheel.agents.models import AttemptKey, AttemptSpan
from flywheel.agents.models.attempt_keys import TRACE_MARK
from flywheel.edge.jobs import State
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun
from flywheel.trajectories.ingest import attempt_spans
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.models.ledger import Body
from flywheel.trajectories.store import stored_traces
from tests.conftest import Build, Cast
from tests.evals import fake
from tests.evals.conftest import served
from tests.evals.fake import submit
from tests.evals.programs import ask_model, program_version, serve_program
from tests.trajectories.ingest.upstream import serve
from tests.workers.policies.test_program_runs import obeys, world

__all__ = ["served"]

pytestmark = pytest.mark.django_db(transaction=True)
Keys = Callable[..., dict[str, str]]


@contextmanager
def telling(url: str, headers: dict[str, str], **resource: str) -> Iterator[Tracer]:
    """A tracer of a program; all is sent when this ends."""
    provider = TracerProvider(resource=Resource.create(resource))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces", headers=headers, timeout=20)))
    yield provider.get_tracer("program")
    provider.shutdown()


def steps_of(run: EvalRun) -> list[tuple[str, str]]:
    result = run.results.select_related("trajectory").get()
    assert result.trajectory is not None, result.error
    return [(step.kind, step.name) for step in stored_traces.trace_of(result.trajectory).steps]


def evaluated(build: Build, version: Any) -> EvalRun:
    run = submit(build, build.task_set(held_out=1), version, samples=1)
    fake.work(run)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    return run


def test_spans_below_the_context_that_it_was_given_are_the_attempts(build: Build, served: str, key: Keys) -> None:
    headers = key("ingest")

    def does(work: dict[str, Any]) -> Any:
        context = TraceContextTextMapPropagator().extract({"traceparent": work["traceparent"]})
        with (
            telling(served, headers, **{"service.name": "mail-agent"}) as tracer,
            tracer.start_as_current_span("answer", context=context),
        ):
            with tracer.start_as_current_span("look up", attributes={"openinference.span.kind": "RETRIEVER"}):
                pass
            ask_model(work)
        return {"output": "Done."}

    with serve() as model, serve_program(does) as program:
        model.say(obeys)
        run = evaluated(build, program_version(build, model.url, url=program.url))
    assert [name for _, name in steps_of(run) if name in ("answer", "look up")] == ["answer", "look up"]
    result = run.results.get()
    assert (result.score, result.tokens_in, result.tokens_out) == (1.0, 9, 3)
    assert not Trajectory.objects.exclude(source__in=Source.ATTEMPTS).exists()
    assert not AttemptSpan.objects.exists()
    assert not Body.objects.exists(), "what is read again would be production"


def test_a_program_whose_model_is_asked_elsewhere_is_judged_by_the_calls_that_it_tells_of(
    build: Build, served: str, key: Keys
) -> None:
    headers = key("ingest")

    def does(work: dict[str, Any]) -> Any:
        person = work["input"].split()[1]
        call: dict[str, Any] = {"type": "tool_call", "id": "c1", "name": "calendar.create_event"}
        call["arguments"] = {"person": person, "day": "friday"}
        said = [{"role": "assistant", "parts": [call]}]
        told: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "theirs",
            "gen_ai.usage.input_tokens": 40,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.output.messages": json.dumps(said),
        }
        with (
            telling(served, headers, **{attempt_spans.ATTRIBUTE: work["attempt"]}) as tracer,
            tracer.start_as_current_span("chat theirs", attributes=told),
        ):
            pass
        return {"output": "Done."}

    with serve_program(does) as program:
        run = evaluated(build, program_version(build, url=program.url))
    result = run.results.get()
    assert (result.score, result.tokens_in, result.tokens_out) == (1.0, 40, 7), result.error
    assert not Trajectory.objects.exclude(source__in=Source.ATTEMPTS).exists()


@pytest.mark.usefixtures("served")
def test_a_command_tells_of_itself_with_nothing_but_the_sdks_own_variables(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_COMMANDS", str(tmp_path))
    (tmp_path / "agent.py").write_text("""
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
with provider.get_tracer("agent").start_as_current_span("think"):
    pass
provider.shutdown()
print("Done.")
""")
    version = program_version(build, way="command", command=[sys.executable, str(tmp_path / "agent.py")])
    assert ("other", "think") in steps_of(evaluated(build, version))
    assert not Trajectory.objects.exclude(source__in=Source.ATTEMPTS).exists()


def test_what_it_told_in_an_earlier_turn_is_kept(build: Build, cast: Cast, served: str, key: Keys) -> None:
    headers, task_set = key("ingest"), world(cast, "tictactoe")

    def does(work: dict[str, Any]) -> Any:
        turn = sum(message["role"] == "user" for message in work["messages"])
        about = {attempt_spans.ATTRIBUTE: work["attempt"]}
        with (
            telling(served, headers) as tracer,
            tracer.start_as_current_span(f"turn {turn}", attributes=about),
        ):
            pass
        return {"output": next(cell for cell in "123456789" if cell in work["messages"][-1]["content"])}

    with serve_program(does) as program:
        version = program_version(build, url=program.url)
        run = submit(build, task_set, version, split=Split.TRAIN, samples=1)
        fake.work(run)
    told = [
        [step.name for step in stored_traces.trace_of(row.trajectory).steps if step.name.startswith("turn")]
        for row in run.results.select_related("trajectory")
        if row.trajectory is not None
    ]
    assert max(map(len, told)) > 1
    assert all(names == [f"turn {number}" for number in range(1, len(names) + 1)] for names in told)


def span(trace_id: str, span_id: str, **attributes: str) -> dict[str, Any]:
    said = [{"key": name, "value": {"stringValue": value}} for name, value in attributes.items()]
    about = {"traceId": trace_id, "spanId": span_id, "name": "s", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    return about | {"attributes": said}


def sent(client: Any, headers: dict[str, str], *spans: dict[str, Any]) -> Any:
    body = {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}
    answer = client.post("/v1/traces", json.dumps(body), "application/json", headers=headers)
    return answer.status_code, json.loads(answer.content)


def test_a_name_that_is_no_attempts_is_refused_and_its_siblings_are_kept(build: Build, client: Any, key: Keys) -> None:
    version = build.version(endpoint={"kind": "program", "way": "http", "url": "http://x/", "code": "0123abcd"})
    of_others, _ = AttemptKey.make(version, {}, timezone.now())
    theirs = span("b" * 32, "2" * 16, **{attempt_spans.ATTRIBUTE: "nobody"})
    late = span(TRACE_MARK + of_others.public, "3" * 16)
    status, answer = sent(client, key("ingest"), span("a" * 32, "1" * 16), theirs, late)
    partial = answer["partialSuccess"]
    assert (status, partial["rejectedSpans"]) == (200, "2")
    assert "it is of no attempt that is under way in this project" in partial["errorMessage"]
    assert "its attempt is over: send spans before the answer" in partial["errorMessage"]
    assert Trajectory.objects.get().trace_id == "a" * 32


def test_what_comes_after_the_attempts_key_is_gone_is_no_production(client: Any, key: Keys) -> None:
    """A key goes with its turn, and what was asked in that may be held out."""
    status, answer = sent(client, key("ingest"), span(TRACE_MARK + "0" * 24, "1" * 16))
    assert (status, answer["partialSuccess"]["rejectedSpans"]) == (200, "1")
    assert not Trajectory.objects.exists()


def test_an_attempts_key_brings_spans_to_its_attempt_alone_and_not_for_ever(build: Build, client: Any) -> None:
    version = build.version(endpoint={"kind": "program", "way": "http", "url": "http://x/", "code": "0123abcd"})
    key, secret = AttemptKey.make(version, {}, timezone.now() + timedelta(minutes=5))
    headers = {"Authorization": f"Bearer {secret}"}
    assert sent(client, headers, span("a" * 32, "1" * 16), span("a" * 32, "1" * 16)) == (200, {})
    assert list(key.spans.values_list("span_id", "is_own")) == [("1" * 16, True)]
    status, answer = sent(client, headers, span("a" * 32, "4" * 16, big="x" * (attempt_spans.SIZE_MAX + 1)))
    assert (status, answer["partialSuccess"]["rejectedSpans"]) == (200, "1")
    AttemptKey.objects.update(deadline=timezone.now())
    assert sent(client, headers, span("a" * 32, "2" * 16))[0] == 401
    assert sent(client, {"Authorization": "Bearer fwa_x_y"}, span("a" * 32, "3" * 16))[0] == 401
    assert not Trajectory.objects.exists()
