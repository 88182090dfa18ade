"""Users, projects, and who has which roles where."""

import json
from collections.abc import Sequence

from django.contrib.auth.models import AbstractUser
from django.db import connection, models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models.permissions import Role, granted
from flywheel.system.sql import planned

PROJECT_COLUMNS: Sequence[str] = ("id", "slug", "name", "is_demo", "upstream", "created_at")
"""What every page and every call needs of its project."""


class User(AbstractUser):
    """A person, or a named machine account such as the story's oracle."""

    must_change_password = models.BooleanField(default=False)
    """Somebody else knows the password: an admin was shown it. Nothing else is open until it is changed."""
    is_mailed_notices = models.BooleanField(default=False)
    """Their notices also go to their e-mail address, where the operator has named a mail server."""

    def permissions(self, project: "Project") -> frozenset[str]:
        """Return this user's permissions in the project; empty for a stranger, and for an account that is closed."""
        if not self.is_active:
            return frozenset()
        return granted(self.memberships.filter(project=project).values_list("role", flat=True))

    def project(self, slug: str) -> "tuple[Project, frozenset[str]] | None":
        """The project of that name and what this user may do in it: one statement, since every page asks. None where
        the user may do nothing, as where there is no such project."""
        rows = planned(_MINE, [self.pk, slug]) if self.is_active else []
        if not rows or not rows[0][-1]:
            return None
        (row,) = rows
        found = Project.from_db(connection.alias, PROJECT_COLUMNS, row[:-1])
        found.upstream = json.loads(str(found.upstream))
        return found, granted(row[-1])

    def projects(self) -> "models.QuerySet[Project]":
        return Project.objects.filter(memberships__user=self).distinct().order_by("name")


class Project(models.Model):
    """A workspace. Every object belongs to one; who is no member sees none of it."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=100)
    is_demo = models.BooleanField(default=False)
    """Everything in it was made by the demo; pages say so."""
    upstream = models.JSONField(default=dict, blank=True)
    """Where its gateway sends model calls: `{"base_url", "api_key_env"}`, or empty. `gateway_upstream` sets it."""
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """One role of one user in one project. A user may have several."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "project", "role"], name="membership_once"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_is_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.project}"


_MINE = f"""
SELECT {", ".join(PROJECT_COLUMNS)},
    ARRAY(SELECT role FROM accounts_membership WHERE user_id = %s AND project_id = accounts_project.id)
FROM accounts_project
WHERE slug = %s
"""  # noqa: S608
