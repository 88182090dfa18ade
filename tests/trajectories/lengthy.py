"""A trajectory as long as wanted, written straight into the tables: a model call, its tool, and so on."""

from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.trajectories.models import Trajectory

STEPS = 35_000
ERROR_EVERY = 1_001
"""One step in so many fails: an odd number, so that calls and answers take turns."""

_STEPS = """
INSERT INTO trajectories_step (trajectory_id, span_id, parent_id, position, place, kind, name, status, error,
    started_at, ended_at, model, tool_name, tool_call_id, finish_reason, tokens_in, tokens_out, cost_usd, is_span, body,
    size, digest, received_at)
SELECT %(trajectory)s, 's' || n,
    CASE WHEN n = 0 THEN '' WHEN n %% 100 = 1 THEN 's0' ELSE 's' || ((n - 1) / 100 * 100 + 1) END,
    n, 0, kind,
    CASE kind WHEN 'agent' THEN 'invoke_agent' WHEN 'other' THEN 'round ' || (n / 100 + 1)
        WHEN 'assistant' THEN 'chat' ELSE 'search' END,
    CASE WHEN failed THEN 'error' ELSE 'ok' END,
    CASE WHEN failed THEN 'no connection to shelf ' || n ELSE '' END,
    %(start)s + n * interval '1 second',
    %(start)s + n * interval '1 second' + CASE kind WHEN 'agent' THEN %(steps)s * interval '1 second'
        WHEN 'other' THEN interval '100 seconds' ELSE (100 + n %% 7 * 130) * interval '1 millisecond' END,
    CASE kind WHEN 'assistant' THEN 'tiny-7b' ELSE '' END,
    CASE kind WHEN 'tool' THEN 'search' ELSE '' END,
    CASE kind WHEN 'tool' THEN 'c' || n ELSE '' END, '',
    CASE kind WHEN 'assistant' THEN 900 + n %% 40 END,
    CASE kind WHEN 'assistant' THEN 60 END,
    CASE kind WHEN 'assistant' THEN 0.0002 END,
    false,
    CASE kind WHEN 'assistant' THEN json_build_object(
        'input', '[{"role": "system", "content": "You look for parts."}, {"role": "user", "content": "Go on"}]'::json,
        'output', json_build_array(json_build_object(
            'role', 'assistant', 'content', 'Answer ' || n || '. ' || repeat('The shelf is looked at. ', 12),
            'tool_calls', CASE WHEN (n + 1) %% 100 = 1 THEN '[]'::json ELSE json_build_array(json_build_object(
                'id', 'c' || n + 1, 'name', 'search',
                'arguments', json_build_object('q', 'shelf ' || n + 1, 'limit', 20))) END)))
    WHEN 'tool' THEN json_build_object(
        'arguments', json_build_object('q', 'shelf ' || n, 'limit', 20),
        'result', json_build_object('found', n, 'parts', (
            SELECT json_agg(json_build_object('part', 'part-' || n || '-' || i, 'place', json_build_array(n, i),
                'note', 'kept dry, second row from the wall')) FROM generate_series(1, 6) AS i)))
    ELSE '{}'::json END,
    0, '', now()
FROM (
    SELECT n, n > 0 AND n %% %(error_every)s = 0 AS failed, CASE WHEN n = 0 THEN 'agent'
        WHEN n %% 100 = 1 THEN 'other' WHEN n %% 2 = 0 THEN 'assistant' ELSE 'tool' END AS kind
    FROM generate_series(0, %(steps)s - 1) AS n
) AS made
"""


def long_trajectory(project: Project, steps: int = STEPS, trace_id: str = "e" * 32) -> Trajectory:
    """Rounds of a hundred steps under one agent: `s0` is the agent, `s1`, `s101`, … the rounds."""
    start = timezone.now() - timedelta(seconds=steps)
    row = Trajectory.objects.create(
        project=project,
        trace_id=trace_id,
        title="Look at every shelf",
        started_at=start,
        ended_at=start + timedelta(seconds=steps),
        latency_ms=steps * 1000.0,
        step_count=steps,
        error_count=(steps - 1) // ERROR_EVERY,
        tool_names=["search"],
        tokens_in=steps // 2 * 919,
        tokens_out=steps // 2 * 60,
        cost_usd=steps // 2 * 0.0002,
    )
    values: dict[str, Any] = {"trajectory": row.pk, "steps": steps, "start": start, "error_every": ERROR_EVERY}
    with connection.cursor() as cursor:
        cursor.execute(_STEPS, values)
    return row
