"""What must hold in the database whatever has happened: each question answers with the rows that break it."""

import hashlib
import json
import time
from collections.abc import Collection
from typing import Any

from tests.chaos.installation import Installation

BROKEN = {
    "a span is stored twice": """
        SELECT t.project_id, t.trace_id, s.span_id, count(*) FROM trajectories_step s
        JOIN trajectories_trajectory t ON t.id = s.trajectory_id GROUP BY 1, 2, 3 HAVING count(*) > 1""",
    "a ledger row does not add up": """
        SELECT id, received, inserted, updated, duplicate, rejected FROM trajectories_batch
        WHERE received <> inserted + updated + duplicate + rejected""",
    "the ledger's inserted are not the stored steps": """
        SELECT * FROM (
            SELECT p.slug,
                (SELECT coalesce(sum(inserted), 0) FROM trajectories_batch b
                 WHERE b.project_id = p.id AND b.format <> 'otlp-logs') AS said,
                (SELECT count(*) FROM trajectories_step s JOIN trajectories_trajectory t ON t.id = s.trajectory_id
                 WHERE t.project_id = p.id) AS stored
            FROM accounts_project p) AS each WHERE said <> stored""",
    "the ledger's inserted are not the stored events": """
        SELECT * FROM (
            SELECT p.slug,
                (SELECT coalesce(sum(inserted), 0) FROM trajectories_batch b
                 WHERE b.project_id = p.id AND b.format = 'otlp-logs') AS said,
                (SELECT count(*) FROM trajectories_event e WHERE e.project_id = p.id) AS stored
            FROM accounts_project p) AS each WHERE said <> stored""",
    "a trajectory's figures are not those of its steps": """
        SELECT t.trace_id, t.step_count, count(s.id), t.error_count, count(s.id) FILTER (WHERE s.status = 'error')
        FROM trajectories_trajectory t LEFT JOIN trajectories_step s ON s.trajectory_id = t.id GROUP BY t.id
        HAVING t.step_count <> count(s.id) OR t.error_count <> count(s.id) FILTER (WHERE s.status = 'error')""",
    "positions are not 0 to n-1": """
        SELECT trajectory_id, count(*), min(position), max(position), count(DISTINCT position)
        FROM trajectories_step GROUP BY 1
        HAVING min(position) <> 0 OR max(position) <> count(*) - 1 OR count(DISTINCT position) <> count(*)""",
    "a trajectory does not count its events": """
        SELECT t.trace_id, t.event_count, count(e.id) FROM trajectories_trajectory t LEFT JOIN trajectories_event e
        ON e.project_id = t.project_id AND e.trace_id = t.trace_id GROUP BY t.id HAVING t.event_count <> count(e.id)""",
    "a large value is missing": """
        SELECT s.id, held FROM trajectories_step s JOIN trajectories_trajectory t ON t.id = s.trajectory_id
        CROSS JOIN unnest(s.blobs) AS held
        WHERE NOT EXISTS (SELECT 1 FROM trajectories_blob b WHERE b.project_id = t.project_id AND b.sha256 = held)""",
    "a request of the ledger was not kept": """
        SELECT b.id FROM trajectories_batch b JOIN accounts_project p ON p.id = b.project_id
        WHERE b.format = 'otlp' AND b.redactions = '{}' AND b.received > 0
        AND p.slug NOT LIKE 'malformed-%'  -- what nobody can look through for secrets is not kept
        AND NOT EXISTS (SELECT 1 FROM trajectories_body x WHERE x.project_id = b.project_id AND x.sha256 = b.sha256)""",
}
UNFINISHED = """
    SELECT 'reread ' || id || ' is ' || state || ' at ' || at FROM trajectories_reread
    WHERE state IN ('queued', 'running')
    UNION ALL SELECT 'no detector has read ' || trace_id FROM trajectories_trajectory
    WHERE source <> 'rollout' AND (detected_at IS NULL OR detected_at < changed_at)
"""


def violations(installation: Installation) -> list[str]:
    found = []
    for what, query in BROKEN.items():
        if rows := installation.sql(query):
            found.append(f"{what}: {len(rows)}, as {rows[:3]}")
    return found


def missing_steps(installation: Installation, slug: str, acknowledged: Collection[tuple[str, str]]) -> list[str]:
    """Acknowledged (trace id, span id) that are not stored."""
    stored = set(
        installation.sql(
            "SELECT t.trace_id, s.span_id FROM trajectories_step s JOIN trajectories_trajectory t"
            " ON t.id = s.trajectory_id JOIN accounts_project p ON p.id = t.project_id WHERE p.slug = %s",
            slug,
        )
    )
    lost = set(acknowledged) - stored
    return [f"acknowledged and not stored: {len(lost)} of {len(acknowledged)}, as {sorted(lost)[:3]}"] if lost else []


def missing_events(installation: Installation, slug: str, acknowledged: Collection[tuple[str, str, str]]) -> list[str]:
    stored = set(
        installation.sql(
            "SELECT e.trace_id, e.span_id, e.name FROM trajectories_event e JOIN accounts_project p"
            " ON p.id = e.project_id WHERE p.slug = %s",
            slug,
        )
    )
    lost = set(acknowledged) - stored
    return [f"acknowledged events not stored: {len(lost)}, as {sorted(lost)[:3]}"] if lost else []


def unfinished(installation: Installation, within_s: float) -> list[str]:
    """What is still waiting or running when nothing has moved for this long."""
    deadline, known = time.monotonic() + within_s, None
    while True:
        rows = installation.sql(UNFINISHED)
        if not rows or time.monotonic() > deadline:
            return [f"nothing has moved for {within_s:.0f} s: {len(rows)}, as {rows[:3]}"] if rows else []
        if rows != known:
            deadline, known = time.monotonic() + within_s, rows
        time.sleep(0.5)


LEFT_OUT = {
    "id", "project_id", "trajectory_id", "received_at", "changed_at", "detected_at", "agent_id", "version_id",
    "proposed_bucket", "proposed_score",  # the last two are the detectors', which read when they can
}  # fmt: skip
CONTENT = {
    "trajectories": "SELECT to_jsonb(t) FROM trajectories_trajectory t WHERE t.project_id = %s",
    "steps": "SELECT to_jsonb(s) || jsonb_build_object('trace', t.trace_id) FROM trajectories_step s"
    " JOIN trajectories_trajectory t ON t.id = s.trajectory_id WHERE t.project_id = %s",
    "events": "SELECT to_jsonb(e) FROM trajectories_event e WHERE e.project_id = %s",
    "feedback": "SELECT to_jsonb(f) FROM trajectories_feedback f WHERE f.project_id = %s",
    "blobs": "SELECT to_jsonb(b) FROM trajectories_blob b WHERE b.project_id = %s",
    # Of agents only those that something belongs to: one that was named for a moment stays in the project's list.
    "agents": "SELECT jsonb_build_object('trace', t.trace_id, 'agent', a.name) FROM trajectories_trajectory t"
    " JOIN agents_agent a ON a.id = t.agent_id WHERE t.project_id = %s",
}


def content(installation: Installation, slug: str) -> dict[str, list[str]]:
    """Everything that a project holds, without keys and moments of arrival, in an order of its own."""
    ((project,),) = installation.sql("SELECT id FROM accounts_project WHERE slug = %s", slug)
    held: dict[str, list[str]] = {}
    for table, query in CONTENT.items():
        rows = (row for (row,) in installation.sql(query, project))
        held[table] = sorted(_line(row) for row in rows)
    return held


def digest(held: dict[str, list[str]]) -> str:
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def _line(row: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if name not in LEFT_OUT}, sort_keys=True)
