"""Trying a world before it is saved: which tools its Python defines, how it begins, and what one call does.

The text is read here; a worker runs it (`workers/jobs/draft_trials.py`). What comes out is kept for an hour.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.envs.kinds import check_new
from flywheel.core.envs.worlds import own_world, server_world, tool_functions
from flywheel.core.envs.worlds.own_world import OwnWorld
from flywheel.core.traces import tooling
from flywheel.edge.jobs import FINISHED, StaleState
from flywheel.edge.refusals import Refused
from flywheel.environments.models import WorldTrial
from flywheel.environments.versions import environment_versions

KEPT = timedelta(hours=1)


@transaction.atomic
def submit(
    *,
    project: Project,
    config: dict[str, Any],
    actor: Actor,
    key: uuid.UUID,
    seed: int = 0,
    tool: str = "",
    arguments: dict[str, Any] | None = None,
) -> WorldTrial:
    """Let a worker begin the world with this seed and make the call, if one is named. Raises Refused, and
    VerifierError which names the setting."""
    tools = _check(project, config)
    if tool and tools and (problem := tooling.call_error(tools, tool, arguments or {}, {})):
        raise Refused(problem, field="call")
    if not 0 <= seed <= own_world.LARGEST_SEED:
        raise Refused(f"{seed} is not from 0 to {own_world.LARGEST_SEED}", field="seed")
    own = WorldTrial.objects.filter(project=project, created_by=actor.user)
    own.filter(state__in=FINISHED, finished_at__lt=timezone.now() - KEPT).delete()
    # Whoever tries again does not wait for what they have changed since.
    for older in own.exclude(state__in=FINISHED).exclude(idempotency_key=key):
        with suppress(StaleState):
            older.ask_to_end()
    job, _ = WorldTrial.submit(
        key=key, project=project, actor=actor, config=config, seed=seed, tool=tool, arguments=arguments or {}
    )
    return job


def tools_of(trial: WorldTrial) -> list[dict[str, Any]]:
    """The tools as they follow from the source, or as the server has them once it was asked."""
    if is_server(trial.config):
        return list(trial.report.get("tools") or trial.config.get("tools", []))
    return list(tool_functions.read(trial.config["source"]).tools)


def is_server(config: Mapping[str, Any]) -> bool:
    """Whether a draft's tools are a server's, and not Python."""
    return "base_url" in config


def _check(project: Project, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of a draft; none of a server that nobody has asked yet. Raises FieldError."""
    if not is_server(config):
        check_new(own_world.KIND, config)
        return OwnWorld(config, {"kind": own_world.KIND}).tools
    check_new(server_world.KIND, config)
    environment_versions.check_server(project, config)
    return server_world.tools_of(config.get("tools", []))
