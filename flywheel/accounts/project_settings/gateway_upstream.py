"""Where a project's gateway sends model calls: one OpenAI-compatible server, chosen by an admin.

The key is named, never written down here: it is one that an admin entered, or an environment variable of the web
process whose name ends in `_API_KEY`, so that no other secret of the process can be sent to a server of one's choice.
Either must be bound to that server (`provider_keys`).
"""

import time
from pathlib import Path
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.accounts.project_settings import provider_keys
from flywheel.accounts.project_settings.server_addresses import check_address, check_variable
from flywheel.edge.refusals import Refused


@transaction.atomic
def set_upstream(*, project: Project, actor: Actor, base_url: str, api_key_env: str = "") -> dict[str, Any]:
    """Send the project's model calls there from now on; an empty address ends it. Raises Refused."""
    chosen = _checked(project, base_url, api_key_env) if base_url.strip() else {}
    locked = Project.objects.select_for_update().get(pk=project.pk)
    if locked.upstream != chosen:
        before, locked.upstream = locked.upstream, chosen
        locked.save(update_fields=["upstream"])
        actor.record(
            project=project,
            action="accounts.set_upstream",
            subject=chosen.get("base_url", "no upstream"),
            before=before,
            after=chosen,
        )
    project.upstream = chosen
    return chosen


def _checked(project: Project, base_url: str, api_key_env: str) -> dict[str, Any]:
    """Return the setting as it is stored. Raises Refused."""
    address, variable = check_address(base_url), check_variable(api_key_env)
    if variable and (problem := provider_keys.refusal(project.pk, variable, address)):
        raise Refused(problem, field="api_key_env")
    return {"base_url": address, "api_key_env": variable}


def key_problem(project: Project) -> str:
    """Why the upstream cannot be sent its key; empty where it can, or wants none."""
    chosen = project.upstream
    if not chosen or not chosen.get("api_key_env"):
        return ""
    try:
        provider_keys.secret_for(project.pk, chosen["api_key_env"], chosen["base_url"])
    except provider_keys.NoKey as error:
        return str(error)
    return ""


def is_left(journal: Path) -> bool:
    """Whether a call's journal was last written a minute ago: younger ones are of calls under way."""
    try:
        return journal.stat().st_mtime < time.time() - 60
    except OSError:
        return False
