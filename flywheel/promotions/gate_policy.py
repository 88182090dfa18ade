"""Change what the gate asks for: always a new version, so that an old verdict still says by which rules it came."""

from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.evidence.gate import Policy as Rules
from flywheel.promotions.models import Policy


def current_policy(project: Project, actor: Actor) -> Policy:
    """The project's newest gate policy; the default one is written down when there is none yet."""
    newest = project.policies.order_by("-version").first()
    return newest or Policy.objects.create(project=project, version=1, rules=Rules().to_dict(), created_by=actor.user)


@transaction.atomic
def change_policy(*, project: Project, actor: Actor, rules: dict[str, Any], reason: str) -> Policy:
    """The next version of the policy, or the present one when nothing changed. Raises ValueError for bad rules."""
    Project.objects.select_for_update().get(pk=project.pk)
    before = current_policy(project, actor)
    wanted = Rules.from_dict(rules).to_dict()
    if wanted == before.rules:
        return before
    made = Policy.objects.create(project=project, version=before.version + 1, rules=wanted, created_by=actor.user)
    actor.record(
        project=project,
        action="promotions.change_policy",
        subject=made,
        reason=reason,
        before=before.rules,
        after=wanted,
    )
    return made
