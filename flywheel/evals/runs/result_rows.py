"""Judged attempts into rows, a chunk of them by one COPY."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection

from flywheel.core.digests import canonical
from flywheel.core.envs.policy_rollouts import ChatResponse, Rollout
from flywheel.core.verifiers import Verdict
from flywheel.evals.models import EvalRun
from flywheel.trajectories.formats.values.hostile_json import count, text

Judged = tuple[int, Rollout, Verdict, int | None]
"""The task's key, the attempt, what is said of it, and the key of its trajectory, where one is kept."""

_COLUMNS = {
    "run_id": "int8",
    "task_id": "int8",
    "sample": "int2",
    "seed": "int8",
    "trajectory_id": "int8",
    "score": "float8",
    "success": "bool",
    "parts": "bytea",
    "reason": "text",
    "error": "text",
    "cause": "text",
    "tokens_in": "int4",
    "tokens_out": "int4",
    "cost_usd": "float8",
    "latency_ms": "float8",
}
"""Column and how it is sent. In binary, `jsonb` is a byte that says its version, and then text; an integer that its
type cannot hold would be cut off without a word."""
_COPY = f"COPY evals_result ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)"


def write(run: EvalRun, judged: Iterable[Judged]) -> None:
    """Insert the results, which the run does not have yet."""
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(list(_COLUMNS.values()))
        for each in judged:
            copy.write_row((run.pk, *_row(*each)))


def _row(task: int, rollout: Rollout, verdict: Verdict, trajectory: int | None) -> Sequence[Any]:
    reason, responses = text(verdict.reason), rollout.responses
    return (
        task,
        rollout.sample,
        rollout.seed,
        trajectory,
        _float(verdict.score),
        verdict.success,
        b"\x01" + canonical(dict(verdict.parts)),
        reason,
        reason if verdict.score is None else "",
        verdict.cause,
        count(total(responses, "tokens_in")),
        count(total(responses, "tokens_out")),
        _float(total(responses, "cost_usd")),
        _float(total(responses, "latency_ms")),
    )


def total(responses: Sequence[ChatResponse], name: str) -> Any:
    """Sum one figure of the requests; None where an answer does not say what it took. Those that failed need not."""
    told = [getattr(response, name) for response in responses]
    is_untold = any(value is None and not each.error for value, each in zip(told, responses, strict=True))
    known = [value for value in told if value is not None]
    return sum(known) if known and not is_untold else None


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
