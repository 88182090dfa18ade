"""The people of a project who may label."""

from collections.abc import Sequence

from flywheel.accounts.models import GRANTS, Permission, Project, User
from flywheel.edge.refusals import Refused


def reviewers(project: Project) -> list[User]:
    """Who may label here, by name."""
    roles = [role for role, granted in GRANTS.items() if Permission.REVIEW in granted]
    members = User.objects.filter(memberships__project=project, memberships__role__in=roles, is_active=True)
    return list(members.distinct().order_by("username"))


def named(project: Project, names: Sequence[str], *, field: str) -> list[User]:
    """Those of these names, in their order, each once. Raises Refused for who may not label here."""
    known = {user.username: user for user in reviewers(project)}
    if unknown := sorted(set(names) - set(known)):
        raise Refused(f"{unknown[0]!r} may not label here; expected one of {', '.join(known)}", field=field)
    return [known[name] for name in dict.fromkeys(names)]
