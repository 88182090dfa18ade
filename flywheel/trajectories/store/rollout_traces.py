"""Attempts that this house made, in the shape in which trajectories are stored."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from flywheel.core.envs.policy_rollouts import ChatResponse, Rollout
from flywheel.core.traces import Message, Outcome, Step, Trace
from flywheel.trajectories.formats.messages.sampling import sampling

LOGPROB_DIGITS = 6
"""Behind the point: nearer than what two ways of adding up the same logits give."""


def trace_of_rollout(
    rollout: Rollout,
    *,
    trace_id: str,
    started_at: datetime,
    tools: Sequence[dict[str, Any]] = (),
    session_id: str = "",
    model: str = "",
    outcome: Outcome | None = None,
    metadata: dict[str, Any] | None = None,
) -> Trace:
    """The rollout as a trace, for `store_rollouts`: one step a message, answers with their tokens, cost and latency.

    `session_id` should name the task's source cluster, so that attempts are never split from where they came from.
    """
    responses = iter(rollout.responses)
    steps: list[Step] = []
    now = started_at
    for index, message in enumerate(rollout.messages):
        is_own = message.role == "assistant" and index >= rollout.opened
        response = next(responses, None) if is_own else None
        step = _step(f"m{index}", message, response, now)
        step.model = model if response else ""
        now = step.ended_at or now
        steps.append(step)
    if (error := rollout.error) and (last := next(responses, None)):
        failed = _step(f"m{len(steps)}", Message("assistant", last.text, last.tool_calls), last, now)
        failed.status, failed.error, failed.model = "error", error, model
        steps.append(failed)
    if rollout.broken:
        at = f"m{len(steps)}"
        steps.append(
            Step(at, "other", "environment", started_at=now, ended_at=now, status="error", error=rollout.broken)
        )
    return Trace(
        trace_id=trace_id,
        steps=[*steps, *rollout.inside],
        session_id=session_id,
        tools=list(tools),
        outcome=outcome,
        metadata=metadata or {},
    )


def _step(span_id: str, message: Message, response: ChatResponse | None, now: datetime) -> Step:
    step = Step(span_id=span_id, kind=message.role, started_at=now, ended_at=now, output=[message])
    if message.role == "tool":
        step.tool_name, step.tool_call_id, step.result = message.name, message.tool_call_id, message.content
    if response:
        step.ended_at = now + timedelta(milliseconds=response.latency_ms or 0)
        step.finish_reason = response.finish_reason
        step.tokens_in, step.tokens_out, step.cost_usd = response.tokens_in, response.tokens_out, response.cost_usd
        logprobs = [round(logprob, LOGPROB_DIGITS) for logprob in response.logprobs]
        step.sampling = sampling(tokens=list(response.token_ids), logprobs=logprobs)
    return step
