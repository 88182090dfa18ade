"""The people of a project who may label."""

from flywheel.accounts.models import GRANTS, Permission, Project, User


def reviewers(project: Project) -> list[User]:
    """Who may label here, by name."""
    roles = [role for role, granted in GRANTS.items() if Permission.REVIEW in granted]
    members = User.objects.filter(memberships__project=project, memberships__role__in=roles, is_active=True)
    return list(members.distinct().order_by("username"))
