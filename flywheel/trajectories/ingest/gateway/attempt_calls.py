"""Model calls of attempts: a version's own program is evaluated, and asks its model with the attempt's key.

The key decides which version answers, whatever model the program names: its server, with its prompt, tools and
sampling where the program says nothing, as for a live version. Each call is counted before it is sent on, so that an
attempt is judged when as many are recorded; a key whose attempt is over, or that nobody gave out, carries nothing.
"""

import functools
from collections.abc import Sequence
from typing import Any

from flywheel.accounts.access import KeyRefused
from flywheel.accounts.project_settings.model_prices import price_of
from flywheel.accounts.project_settings.server_addresses import KEY_NAME
from flywheel.agents.models import AttemptKey, AttemptSpan
from flywheel.agents.models.attempt_keys import parts_of
from flywheel.core.traces import Step
from flywheel.system.sql import planned
from flywheel.trajectories.formats.values.hostile_json import plain
from flywheel.trajectories.ingest.gateway import routing
from flywheel.trajectories.ingest.gateway.journals import journal_traces
from flywheel.trajectories.ingest.gateway.journals.journal_contents import Seen
from flywheel.trajectories.ingest.gateway.routing import NoRoute, Route

REMEMBERED = 1000
TOO_MANY, BAD_GATEWAY = 429, 502


def route(token: str, model: str) -> Route:
    """Where a call with this key goes. Raises KeyRefused and NoRoute."""
    try:
        return routing.keyed(_look_up(*parts_of(token), model))
    finally:
        routing.give_back_connection()


def begin(found: Route) -> None:
    """Count one call of the attempt. Raises KeyRefused when the attempt is over."""
    try:
        if not planned(_BEGIN, [found.attempt]):
            raise KeyRefused(401, "this attempt is over: its time is up, it has its result, or its eval ended")
    finally:
        routing.give_back_connection()


_BEGIN = """
UPDATE agents_attemptkey SET calls = calls + 1
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unflushed
WHERE id = %s AND deadline > now() AND NOT EXISTS (
    SELECT FROM evals_programattempt JOIN evals_evalrun AS run ON run.id = run_id
    WHERE key_id = agents_attemptkey.id
    AND (run.state NOT IN ('queued', 'running') OR run.cancel_requested_at IS NOT NULL)
)
RETURNING calls
"""
"""An eval that was stopped or has ended asks nothing more; one that changes hands does.

Not flushed before the call goes on: a count that a crash of the machine loses is lower than the calls recorded."""


@functools.lru_cache(REMEMBERED)
def _look_up(public: str, hashed: str, model: str) -> Route:
    """Nothing of it changes while the attempt lasts, and `begin` looks whether it does."""
    keys = AttemptKey.objects.select_related("version__agent__project")
    key = keys.filter(public=public, hashed=hashed).first() if public else None
    if key is None:
        raise KeyRefused(401, "there is no such attempt: its key is none of ours, or it was given to another program")
    version, endpoint = key.version, key.version.endpoint
    project = version.agent.project
    server = endpoint if endpoint.get("base_url") else project.upstream
    if not server:
        raise NoRoute(
            f"no server answers for {version}: name one in its endpoint (base_url and model), or set the project's "
            "upstream under Settings › Gateway",
            code="no_upstream",
            headers=routing.headers_of(str(version), version.digest),
        )
    variable, name = server.get("api_key_env", ""), endpoint.get("model", "")
    return Route(
        project.pk,
        0,
        server["base_url"].rstrip("/"),
        variable if KEY_NAME.fullmatch(variable) else "",
        model=name,
        agent=version.agent.name,
        version=str(version.number),
        digest=version.digest,
        defaults=routing.defaults_of(version) | key.sampling,
        price=price_of(project.pk, name or model, endpoint, f"version:{version.pk}"),
        attempt=key.pk,
    )


# What is kept


def keep(group: Sequence[Seen]) -> None:
    """Keep these calls for their attempts; those of an attempt that is gone are nobody's.

    As they are: what is judged is what was said, and a rollout that we ask ourselves is stored so too.
    """
    keys = set(AttemptKey.objects.filter(pk__in={seen.head["attempt"] for seen in group}).values_list("pk", flat=True))
    spans = []
    for seen in group:
        if (key := seen.head["attempt"]) in keys:
            step = journal_traces.trace_of(seen).steps[0]
            assert step.started_at is not None
            content = _content(step, seen.status)
            spans.append(AttemptSpan(key_id=key, span_id=step.span_id, started_at=step.started_at, content=content))
    AttemptSpan.objects.bulk_create(spans, ignore_conflicts=True)


def _content(step: Step, status: int | None) -> dict[str, Any]:
    """The call as JSON that the database takes."""
    found: dict[str, Any] = plain(
        {
            "input": [message.to_json() for message in step.input],
            "output": [message.to_json() for message in step.output],
            "model": step.model,
            "finish_reason": step.finish_reason,
            "tokens_in": step.tokens_in,
            "tokens_out": step.tokens_out,
            "cost_usd": step.cost_usd,
            "ms": step.duration_ms,
            "error": step.error,
            "is_away": status is None or status == TOO_MANY or status >= BAD_GATEWAY,
        }
    )
    return found
