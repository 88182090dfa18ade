"""Trying a world before it is saved: which tools its Python defines, how it begins, and what one call does.

The text is read here; a worker runs it (`workers/jobs/draft_trials.py`). What comes out is kept for an hour.
"""

import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.envs.kinds import check_new
from flywheel.core.envs.worlds import own_world
from flywheel.core.envs.worlds.own_world import OwnWorld
from flywheel.core.traces import tooling
from flywheel.edge.jobs import FINISHED, StaleState
from flywheel.edge.refusals import Refused
from flywheel.environments.models import WorldTrial

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
    check_new(own_world.KIND, config)
    tools = OwnWorld(config, {"kind": own_world.KIND}).tools
    if tool and (problem := tooling.call_error(tools, tool, arguments or {}, {})):
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
