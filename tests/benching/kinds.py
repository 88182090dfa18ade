"""Kinds of trajectory: what agents of one company do, as OTLP spans, 12 of each.

The first kinds are common and the last ones rare, as `WEIGHTS` says; a rare kind has a tool, a version, an environment
or a tag of its own. What differs from one trajectory of a kind to the next (words, session, user, ids, times) stands
there as a mark, for which `filling.py` puts something else.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

KINDS = 300
RARE = 10
"""The last kinds, of which there are a few in ten thousand each."""
STEPS = 12
OWN_WORDS = 110
"""Words of a trajectory that other trajectories of its kind do not share."""
BEGAN_US = 1_780_000_000_000_000
"""When the first of each kind began."""
SESSION, USER = "qqsessionqq", "qquserqq"
AGENTS = ("support", "mail", "travel")
ACTIONS = ("find", "get", "list", "create", "update", "cancel", "send", "check")
THINGS = ("orders", "calendar", "email", "crm", "billing", "shipping", "flights", "hotels", "tickets", "docs")
TOOLS = [f"{thing}.{action}" for thing in THINGS for action in ACTIONS]
SYSTEM = "You help the customers of a shop. Use the tools, confirm what you change, and answer in one short paragraph."
WEIGHTS = [1 / (number + 4) for number in range(KINDS - RARE)] + [0.0005] * RARE


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of trajectory is, beside its spans."""

    number: int
    spans: bytes
    """An OTLP request, as JSON."""
    trace_id: str
    source: str
    feedback: list[dict[str, Any]] = field(default_factory=list)
    bucket: str | None = None
    """What a person said of it: a bucket, or an empty string where nothing is wrong; None where nobody looked."""


def mark(number: int) -> str:
    """A word of its own, which stands for another in each trajectory."""
    return f"qqw{number:03}qq"


def every() -> list[Kind]:
    return [_kind(number, random.Random(number)) for number in range(KINDS)]


def _kind(number: int, source: random.Random) -> Kind:
    is_rare = number >= KINDS - RARE
    trace_id = f"{0xBE0000 + number:032x}"
    feedback = []
    if source.random() < 0.2:
        feedback.append({"trace_id": trace_id, "key": "helpful", "value": source.random() < 0.7, "source": "end_user"})
    if source.random() < 0.1:
        feedback.append({"trace_id": trace_id, "key": "score", "value": round(source.random(), 2), "source": "model"})
    if source.random() < 0.02:
        feedback.append({"trace_id": trace_id, "key": "intervention", "value": "took over", "source": "human"})
    bucket = None
    if number > 20 and source.random() < 0.08:
        bucket = source.choice(["wrong_tool", "wrong_arguments", "bad_planning", "incomplete_execution", ""])
    return Kind(
        number,
        json.dumps(_request(number, trace_id, is_rare, source)).encode(),
        trace_id,
        "rollout" if number % 12 == 11 else "import" if number % 40 == 39 else "production",
        feedback,
        bucket,
    )


def _request(number: int, trace_id: str, is_rare: bool, source: random.Random) -> dict[str, Any]:
    agent = AGENTS[number % len(AGENTS)]
    version = "0.9-legacy" if is_rare and number % 2 else str(source.choice([1, 2, 3, 4, 5, 6, 6, 6, 6]))
    environment = "canary" if is_rare else source.choices(["production", "staging", "dev"], [85, 10, 5])[0]
    resource = {
        "service.name": agent,
        "service.version": "1.4.2",
        "deployment.environment.name": environment,
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
    }
    words = iter([mark(each) for each in range(OWN_WORDS)])

    def some(count: int) -> str:
        return " ".join(next(words) for _ in range(count))

    names = source.choices(TOOLS, [1 / (at + 2) for at in range(len(TOOLS))], k=3)
    if is_rare:
        names[0] = f"archive.restore_{number}"
    asked = f"Please {some(10)}?"
    region = source.choice(["eu", "us"])
    given: dict[str, Any] = {"gen_ai.conversation.id": SESSION, "user.id": USER, "flywheel.meta.region": region}
    if source.random() < 0.3:
        given["tag.tags"] = ["audit" if is_rare else source.choice(["vip", "trial", "internal", "beta"])]
    if (ends := source.choices(["success", "failed", None], [60, 15, 25])[0]) is not None:
        given["flywheel.outcome"] = ends
    given["gen_ai.tool.definitions"] = json.dumps([_definition(name) for name in sorted({*names, TOOLS[0]})])
    at, spans = BEGAN_US, []
    spans.append(_span(trace_id, 0, "invoke_agent", at, {"gen_ai.agent.version": version, **given}, agent=agent))
    fails = source.random()
    history = [_message("system", SYSTEM), _message("user", asked)]
    for step in range(1, STEPS):
        takes = source.randrange(80_000, 2_500_000)
        name = names[step // 2 % 3]
        if fails < 0.06 and step in (3, 4):
            name = "orders.teleport"  # which the agent does not have
        if step == STEPS - 1:
            ours = _answered(f"Done: {some(12)}.")
        elif step % 2:
            ours = _asked(history, _call(name, f"c{step}", {"query": some(3), "limit": 5}, fails))
        else:
            result = {"error": "timeout"} if 0.06 < fails < 0.12 and step == 6 else {"found": [some(5), some(4)]}
            ours = _ran(name, f"c{step - 1}", result)
        if "gen_ai.usage.input_tokens" in ours:
            ours["gen_ai.usage.input_tokens"] = source.randrange(300, 3000)
            ours["gen_ai.usage.output_tokens"] = source.randrange(10, 400)
            if number % 5:
                ours["gen_ai.usage.cost"] = round(source.randrange(20, 4000) / 1e6, 6)
        is_error = "timeout" in str(ours.get("gen_ai.tool.call.result", ""))
        spans.append(_span(trace_id, step, name, at, ours, takes=takes, is_error=is_error))
        at += takes + 1000
    spans[0]["endTimeUnixNano"] = str(at * 1000)
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in resource.items()]
    return {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]}]}


def _span(
    trace_id: str,
    step: int,
    name: str,
    at: int,
    attributes: dict[str, Any],
    *,
    agent: str = "",
    takes: int = 0,
    is_error: bool = False,
) -> dict[str, Any]:
    kind = "invoke_agent" if agent else attributes["gen_ai.operation.name"]
    if agent:
        attributes |= {"gen_ai.operation.name": kind, "gen_ai.agent.name": agent}
    return {
        "traceId": trace_id,
        "spanId": f"{int(trace_id[-8:], 16) * 256 + step:016x}",
        "parentSpanId": f"{int(trace_id[-8:], 16) * 256:016x}" if step else "",
        "name": f"{kind} {agent or (name if kind == 'execute_tool' else 'gpt-5')}",
        "kind": 3,
        "startTimeUnixNano": str(at * 1000),
        "endTimeUnixNano": str((at + takes) * 1000),
        "status": {"code": 2, "message": "timeout"} if is_error else {"code": 1},
        "attributes": [{"key": key, "value": _value(value)} for key, value in attributes.items()],
    }


def _asked(history: list[dict[str, Any]], call: dict[str, Any]) -> dict[str, Any]:
    output = [{"role": "assistant", "parts": [call], "finish_reason": "tool_call"}]
    return {**_CHAT, "gen_ai.input.messages": json.dumps(history), "gen_ai.output.messages": json.dumps(output)}


def _answered(text: str) -> dict[str, Any]:
    return {**_CHAT, "gen_ai.output.messages": json.dumps([_message("assistant", text)])}


def _ran(name: str, call: str, result: Any) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call,
        "gen_ai.tool.call.result": json.dumps(result),
    }


_CHAT: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-5",
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.usage.input_tokens": 0,
    "gen_ai.usage.output_tokens": 0,
}


def _call(name: str, key: str, arguments: dict[str, Any], fails: float) -> dict[str, Any]:
    if 0.12 < fails < 0.18:
        arguments = {"wanted": arguments["query"]}  # what the tool does not take
    return {"type": "tool_call", "id": key, "name": name, "arguments": arguments}


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _definition(name: str) -> dict[str, Any]:
    properties = {"query": {"type": "string"}, "limit": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["query"], "additionalProperties": False}
    return {"type": "function", "name": name, "description": f"Does {name} of the shop.", "parameters": schema}


def _value(value: Any) -> dict[str, Any]:
    match value:
        case float():
            return {"doubleValue": value}
        case int():
            return {"intValue": str(value)}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case _:
            return {"stringValue": value}
