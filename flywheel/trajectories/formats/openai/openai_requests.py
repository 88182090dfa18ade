"""Raw exchanges with an OpenAI-compatible API: `{"request": {…}, "response": {…}}`, one call a line.

As NVIDIA's data flywheel logs them, with `timestamp`, `workload_id` and `client_id`; chat completions or Responses.
Log-probabilities and, from vLLM, token ids are kept with the answer.
"""

from typing import Any

from flywheel.core.traces import Trace
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn, read_message, read_turns, steps_of
from flywheel.trajectories.formats.messages.sampling import of_choice
from flywheel.trajectories.formats.openai import openai_responses
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, plain, structured
from flywheel.trajectories.formats.values.times import moment


def detect(row: dict[str, Any]) -> bool:
    request, response = structured(row.get("request")), structured(row.get("response"))
    return (
        isinstance(request, dict)
        and ("messages" in request or "input" in request)
        and isinstance(response, dict)
        and ("choices" in response or "output" in response or "error" in response)
    )


def parse(value: dict[str, Any]) -> Trace:
    """Raises FormatError, naming the field and what would be right."""
    decoded = {**value, "request": structured(value.get("request")), "response": structured(value.get("response"))}
    root = Row(plain(decoded))
    request, response = root.row("request"), root.row("response")
    ids = (root.text("id"), root.text("trace_id"))
    if "messages" in request.value:
        trace = _chat(request, response)
        trace.trace_id = message_shapes.trace_id(*ids, content=value)
    else:
        trace = openai_responses.exchange(request, response, value, *ids)
    trace.agent = root.text("workload_id")
    trace.user_id = trace.user_id or root.text("user_id")
    trace.session_id = trace.session_id or root.text("session_id")
    known = ("request", "response", "workload_id", "id", "trace_id", "timestamp", "user_id", "session_id")
    trace.metadata |= {key: item for key, item in root.value.items() if key not in known and item is not None}
    at = moment(root.value.get("timestamp"))
    for step in trace.steps:
        step.started_at = step.started_at or at
    return trace


def _chat(request: Row, response: Row) -> Trace:
    turns = read_turns(request, "messages")
    choices = list(response.rows("choices"))
    for index, choice in enumerate(choices):
        message = choice.row("message")
        # Of several choices the conversation shows the first; the others are in its raw form.
        if index == 0:
            turns.append(_answer(choice, Row({"role": "assistant", **message.value}, message.path), request, response))
    error = response.value.get("error")
    if not choices and turns:
        said = error.get("message") if isinstance(error, dict) else error
        turns[-1].error = message_shapes.as_text(said) or "no answer"
    if not turns:
        raise FormatError(f"{request.at('messages')}: empty, expected at least one message")
    return Trace(
        "",
        steps=steps_of(turns),
        tools=message_shapes.tool_definitions(request.value.get("tools")),
        user_id=message_shapes.as_text(request.value.get("user")),
        metadata=dict(as_dict(request.value.get("metadata"))),
    )


def _answer(choice: Row, message: Row, request: Row, response: Row) -> Turn:
    usage = response.row("usage")
    details = usage.row("prompt_tokens_details")
    return Turn(
        read_message(message),
        response.value,
        model=response.text("model") or request.text("model"),
        finish_reason=message_shapes.as_text(choice.value.get("finish_reason")),
        started_at=moment(response.value.get("created")),
        tokens_in=usage.count("prompt_tokens"),
        tokens_out=usage.count("completion_tokens"),
        tokens_cached=details.count("cached_tokens"),
        sampling=of_choice(choice.value, response.value, request.value),
    )
