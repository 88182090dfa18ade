"""Who may do what: users, projects, memberships, API keys, and the audit log of every change."""

import hashlib
import hmac
import secrets
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q
from django.utils import timezone


class Permission(models.TextChoices):
    """What a URL or an API call may ask for. Every one of them belongs to a project."""

    VIEW = "view", "see the project"
    REVIEW = "review", "label failures"
    BUILD = "build", "make tasks, task sets and evals"
    TRAIN = "train", "launch and stop training"
    APPROVE = "approve", "approve and roll back promotions"
    ADMIN = "admin", "manage members, keys and settings"


class Role(models.TextChoices):
    VIEWER = "viewer"
    REVIEWER = "reviewer"
    BUILDER = "builder"
    TRAINER = "trainer"
    APPROVER = "approver"
    ADMIN = "admin"


GRANTS: dict[str, frozenset[str]] = {
    Role.VIEWER: frozenset({Permission.VIEW}),
    Role.REVIEWER: frozenset({Permission.VIEW, Permission.REVIEW}),
    Role.BUILDER: frozenset({Permission.VIEW, Permission.REVIEW, Permission.BUILD}),
    Role.TRAINER: frozenset({Permission.VIEW, Permission.REVIEW, Permission.BUILD, Permission.TRAIN}),
    Role.APPROVER: frozenset({Permission.VIEW, Permission.REVIEW, Permission.APPROVE}),
    # An admin runs the house but does not approve by default: who may promote is said by name.
    Role.ADMIN: frozenset({Permission.VIEW, Permission.REVIEW, Permission.BUILD, Permission.TRAIN, Permission.ADMIN}),
}


class User(AbstractUser):
    """A person, or a named machine account such as the story's oracle."""

    must_change_password = models.BooleanField(default=False)
    """Somebody else knows the password: an admin was shown it. Nothing else is open until it is changed."""

    def permissions(self, project: "Project") -> frozenset[str]:
        """What this user may do in the project; empty for a stranger, and for an account that is closed."""
        if not self.is_active:
            return frozenset()
        roles = self.memberships.filter(project=project).values_list("role", flat=True)
        return frozenset().union(*(GRANTS[role] for role in roles))

    def projects(self) -> "models.QuerySet[Project]":
        return Project.objects.filter(memberships__user=self).distinct().order_by("name")


class Project(models.Model):
    """A workspace. Every object belongs to one; who is no member sees none of it."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=100)
    is_demo = models.BooleanField(default=False)
    """Everything in it was made by the demo; pages say so."""
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """One role of one user in one project. A user may have several."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["user", "project", "role"], name="membership_once"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_is_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.project}"


class Scope(models.TextChoices):
    """What an API key may do. `ingest` alone cannot read anything."""

    INGEST = "ingest", "send trajectories"
    READ = "read", "read everything"
    REVIEW = "review", "label failures"
    BUILD = "build", "make tasks, task sets and evals"
    TRAIN = "train", "launch and stop training"
    APPROVE = "approve", "approve and roll back promotions"
    ADMIN = "admin", "manage members, keys and settings"


class ApiKey(models.Model):
    """A secret for machines, `fw_<public>_<secret>`, stored only as a keyed hash and shown once.

    A key never does more than its maker may: each call needs the scope and the maker's permission.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    public = models.CharField(max_length=16, unique=True)
    hashed = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} (fw_{self.public}_…)"

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at < timezone.now()

    @classmethod
    def make(
        cls, project: Project, name: str, scopes: list[str], created_by: User, public: str = ""
    ) -> tuple["ApiKey", str]:
        """A new key and its secret text, which is nowhere to be had again. Raises ValueError for an unknown scope.

        A caller that chooses the public part gets IntegrityError when there is such a key already.
        """
        if unknown := sorted(set(scopes) - set(Scope.values)):
            raise ValueError(f"scope {unknown[0]!r} is unknown: one of {', '.join(Scope.values)} is wanted")
        public, secret = public or secrets.token_hex(6), secrets.token_urlsafe(32).replace("_", "-")
        key = cls.objects.create(
            project=project, name=name, public=public, hashed=_keyed_hash(secret), scopes=scopes, created_by=created_by
        )
        return key, f"fw_{public}_{secret}"

    @classmethod
    def find(cls, text: str) -> "ApiKey | None":
        """The live key whose text this is, or None."""
        prefix, _, rest = text.partition("_")
        public, _, secret = rest.partition("_")
        if prefix != "fw" or not secret:
            return None
        key = cls.objects.select_related("project", "created_by").filter(public=public, revoked_at=None).first()
        if key is None or not hmac.compare_digest(key.hashed, _keyed_hash(secret)):
            return None
        return None if key.is_expired else key


class AuditEntry(models.Model):
    """Who changed what, when and why. Append-only: a trigger refuses every update and delete."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="audit", null=True)
    at = models.DateTimeField(default=timezone.now)
    actor = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    through = models.CharField(max_length=120, blank=True)
    """The API key or command, when it was not the person's own click."""
    action = models.CharField(max_length=64)
    """Room and verb, `failures.confirm`."""
    subject = models.CharField(max_length=200)
    """What it was done to, `trajectory 9f2…`."""
    reason = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["project", "-id"], name="audit_newest")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.actor} {self.action} {self.subject}"


def record(
    *,
    project: Project | None,
    actor: User,
    action: str,
    subject: object,
    reason: str = "",
    through: str = "",
    **data: Any,
) -> None:
    """Write one audit entry, in the transaction of the change that it tells of."""
    AuditEntry.objects.create(
        project=project,
        actor=actor,
        action=action,
        subject=str(subject)[:200],
        reason=reason,
        through=through,
        data=data,
    )


def _keyed_hash(secret: str) -> str:
    """HMAC under the installation's key: a stolen table is worth nothing (256 random bits need no slow hash)."""
    return hmac.new(settings.SECRET_KEY.encode(), secret.encode(), hashlib.sha256).hexdigest()


class LoginAttempt(models.Model):
    """A login that did not succeed, or is being tried; `accounts.login` counts them."""

    username = models.CharField(max_length=150)
    address = models.CharField(max_length=64)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["username", "address"], name="attempt_by_name"),
            models.Index(fields=["address", "at"], name="attempt_by_address"),
        ]

    def __str__(self) -> str:
        return f"{self.username} from {self.address} at {self.at:%H:%M:%S}"


class Pulse(models.Model):
    """When a background process last reported; `readyz` reads it."""

    name = models.CharField(max_length=32, unique=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} at {self.at:%H:%M:%S}"
