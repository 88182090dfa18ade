"""Production traffic of the story: the policy answers requests, and a real OpenTelemetry SDK exports what happened.

Each request is one trace: `invoke_agent` around a `chat` span and, when the answer was a call, an `execute_tool` span
whose result a simulated workplace gives. The customer's verdict (accepted or not, sometimes undone) travels along as
the outcome and the intervention. Ids are a function of the request, so sending again is sending the same.
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from flywheel.core.envs import build
from flywheel.core.envs.policy_rollouts import Engine, Rollout, Sampling, play
from flywheel.core.envs.tool_call import ToolCallEnvironment
from flywheel.core.traces import Trace, tooling
from workers.reference import story

SAMPLING = Sampling(temperature=0.7, top_p=1.0, max_tokens=96)
"""How the story's agent runs in production."""
VERIFIER = {"kind": "tool_call"}
UNDONE_SHARE = 0.25
"""Of failed calls that did something, the share that the customer undoes by hand."""


class _Ids(IdGenerator):
    """Ids from hashes: the n-th span of a request always has the same one."""

    def __init__(self) -> None:
        self.request = ""
        self.count = 0

    def begin(self, request: str) -> None:
        self.request, self.count = request, 0

    def generate_trace_id(self) -> int:
        return int.from_bytes(hashlib.sha256(f"trace {self.request}".encode()).digest()[:16])

    def generate_span_id(self) -> int:
        self.count += 1
        return int.from_bytes(hashlib.sha256(f"span {self.request} {self.count}".encode()).digest()[:8])


def answer(engine: Engine, requests: Sequence[story.Request]) -> list[Rollout]:
    """Return the policy's answers, sampled as in production, seeded by the request."""
    env = build("tool_call", story.environment_config(), VERIFIER, agent=story.AGENT_CONFIG)
    return play(engine, env, [(request.to_task(), 0, seed_of(request)) for request in requests], SAMPLING)


def seed_of(request: story.Request) -> int:
    """By which the answer to it is drawn."""
    return int.from_bytes(hashlib.sha256(request.id.encode()).digest()[:6])


def send(
    endpoint: str,
    key: str,
    requests: Sequence[story.Request],
    rollouts: Sequence[Rollout],
    *,
    version: str,
    begin: datetime,
    end: datetime,
) -> None:
    """Export one trace per request to `endpoint`, spread evenly from `begin` to `end`.

    Raises RuntimeError when the exporter could not deliver everything.
    """
    ids = _Ids()
    exporter = OTLPSpanExporter(
        endpoint=f"{endpoint}/v1/traces", headers={"authorization": f"Bearer {key}"}, timeout=60
    )
    provider = TracerProvider(
        resource=Resource.create({"service.name": story.AGENT, "deployment.environment.name": "production"}),
        id_generator=ids,
    )
    processor = BatchSpanProcessor(exporter, max_queue_size=100_000, max_export_batch_size=512)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("workplace-assistant", "1")
    env = ToolCallEnvironment(story.environment_config(), VERIFIER)
    pause = (end - begin) / max(1, len(requests))
    for number, (request, rollout) in enumerate(zip(requests, rollouts, strict=True)):
        ids.begin(request.id)
        _trace(tracer, env, request, rollout, version, begin + number * pause)
    if not provider.force_flush(120_000):
        raise RuntimeError(f"not every span could be delivered to {endpoint}")
    provider.shutdown()


def _trace(
    tracer: Any, env: ToolCallEnvironment, request: story.Request, rollout: Rollout, version: str, at: datetime
) -> None:
    response = rollout.responses[0]
    thinking = timedelta(milliseconds=response.latency_ms or 1)
    verdict = env.verifier(rollout.task)(Trace.from_messages("", rollout.messages), rollout.task.target)
    root = tracer.start_span(
        f"invoke_agent {story.AGENT}",
        start_time=_ns(at),
        attributes={
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": story.AGENT,
            "gen_ai.agent.version": version,
            "gen_ai.conversation.id": request.session_id,
            "gen_ai.tool.definitions": json.dumps(story.TOOLS),
            "user.id": request.session_id,
            "flywheel.meta.state": json.dumps(request.state),
            "flywheel.meta.slice": request.wording,
            **({} if verdict.success is None else {"flywheel.outcome": "success" if verdict.success else "failed"}),
        },
    )
    inside = set_span_in_context(root)
    chat = tracer.start_span(
        "chat flywheel-reference",
        context=inside,
        start_time=_ns(at),
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "flywheel",
            "gen_ai.request.model": "flywheel-reference",
            "gen_ai.request.temperature": SAMPLING.temperature,
            "gen_ai.request.max_tokens": SAMPLING.max_tokens,
            "gen_ai.system_instructions": json.dumps([{"type": "text", "content": story.SYSTEM_PROMPT}]),
            "gen_ai.input.messages": json.dumps([_message("user", request.prompt)]),
            "gen_ai.output.messages": json.dumps([_message("assistant", response.text)]),
            "gen_ai.response.finish_reasons": [response.finish_reason],
            "gen_ai.usage.input_tokens": response.tokens_in or 0,
            "gen_ai.usage.output_tokens": response.tokens_out or 0,
        },
    )
    chat.end(_ns(at + thinking))
    ended = _execute(tracer, env, request, rollout, inside, at + thinking)
    if verdict.success is False and ended is not None and story.share(request.id, "undone") < UNDONE_SHARE:
        root.add_event(
            "flywheel.intervention",
            {"kind": "undone", "by": request.session_id, "note": "the customer undid it by hand"},
            timestamp=_ns(ended + timedelta(minutes=2)),
        )
    root.end(_ns(ended or at + thinking))


def _execute(
    tracer: Any, env: ToolCallEnvironment, request: story.Request, rollout: Rollout, inside: Any, at: datetime
) -> datetime | None:
    """The tool's span, when the answer was a call; returns when it was over, or None."""
    call = tooling.parse_call(rollout.messages[-1]).call
    if call is None or not isinstance(call.arguments, dict):
        return None
    error = env.execute(call.name, call.arguments, request.state)
    span = tracer.start_span(
        f"execute_tool {call.name}",
        context=inside,
        start_time=_ns(at),
        attributes={
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": f"call-{request.id}",
            "gen_ai.tool.call.arguments": json.dumps(call.arguments),
            "gen_ai.tool.call.result": json.dumps({"error": error} if error else {"status": "done"}),
            **({"error.type": "tool_error"} if error else {}),
        },
    )
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    ended = at + timedelta(milliseconds=20)
    span.end(_ns(ended))
    return ended


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
