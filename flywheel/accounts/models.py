"""Who may do what: users, projects, memberships, API keys, and the audit log of every change."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import connection, models
from django.db.models import Q
from django.utils import timezone

from flywheel.core.redact import Mode
from flywheel.sql import planned


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


def granted(roles: Iterable[str]) -> frozenset[str]:
    """What these roles together may do."""
    return frozenset().union(*(GRANTS[role] for role in roles))


class User(AbstractUser):
    """A person, or a named machine account such as the story's oracle."""

    must_change_password = models.BooleanField(default=False)
    """Somebody else knows the password: an admin was shown it. Nothing else is open until it is changed."""

    def permissions(self, project: "Project") -> frozenset[str]:
        """What this user may do in the project; empty for a stranger, and for an account that is closed."""
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
        found = Project.from_db(connection.alias, _READ[Project], row[:-1])
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
    """Where its gateway sends model calls: `{"base_url", "api_key_env", "prices"}`, or empty. `upstream.py` sets it."""
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
    """What an API key may do. `ingest` alone can neither read anything nor spend anything."""

    INGEST = "ingest", "send trajectories"
    GATEWAY = "gateway", "call models through the gateway, at the upstream's price"
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
    maker_roles: Sequence[str] = ()
    """Roles that its maker has in its project, once `find` has looked."""

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
        rows = planned(_LIVE_KEY, [public])
        if not rows:
            return None
        key = _key_from(rows[0])
        known = hmac.compare_digest(key.hashed, _keyed_hash(secret))
        return key if known and not key.is_expired else None

    @property
    def permissions(self) -> frozenset[str]:
        """What its maker may do in its project now; of a key that `find` has found."""
        return granted(self.maker_roles) if self.created_by.is_active else frozenset()


_READ: dict[type[models.Model], Sequence[str]] = {
    ApiKey: ("id", "project_id", "name", "public", "hashed", "scopes", "created_by_id", "last_used_at", "expires_at"),
    Project: ("id", "slug", "name", "is_demo", "upstream", "created_at"),
    User: ("id", "username", "first_name", "last_name", "is_active"),
}
"""What every call needs of its key, its project and its maker: one statement, since it comes before all else."""

_LIVE_KEY = f"""
SELECT {", ".join(f"{model._meta.db_table}.{name}" for model, names in _READ.items() for name in names)},
    ARRAY(SELECT role FROM accounts_membership WHERE user_id = accounts_user.id AND project_id = accounts_project.id)
FROM accounts_apikey
JOIN accounts_project ON accounts_project.id = accounts_apikey.project_id
JOIN accounts_user ON accounts_user.id = accounts_apikey.created_by_id
WHERE accounts_apikey.public = %s AND accounts_apikey.revoked_at IS NULL
"""  # noqa: S608

_MINE = f"""
SELECT {", ".join(_READ[Project])},
    ARRAY(SELECT role FROM accounts_membership WHERE user_id = %s AND project_id = accounts_project.id)
FROM accounts_project
WHERE slug = %s
"""  # noqa: S608


def _key_from(row: Sequence[Any]) -> ApiKey:
    values = iter(row)

    def of(model: type[models.Model]) -> Any:
        return model.from_db(connection.alias, _READ[model], [next(values) for _ in _READ[model]])

    key: ApiKey = of(ApiKey)
    key.project, key.created_by, key.maker_roles = of(Project), of(User), row[-1]
    # Django has psycopg leave JSON as text, for its fields to read.
    key.scopes, key.project.upstream = json.loads(str(key.scopes)), json.loads(str(key.project.upstream))
    return key


class RedactionPolicy(models.Model):
    """One version of what is taken out of a project's traces before they are stored; the newest holds.

    A project without any has the default: `secrets` and no rules. `redaction.py` sets it.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="redaction_policies")
    number = models.PositiveIntegerField()
    mode = models.CharField(max_length=8, choices=[(mode.value, mode.value) for mode in Mode])
    rules = models.JSONField(default=list, blank=True)
    """`{"name", "pattern", "kind"}` each."""
    made_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "redaction policies"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "number"], name="redaction_policy_once"),
            models.CheckConstraint(condition=Q(mode__in=[mode.value for mode in Mode]), name="redaction_mode_is_known"),
        ]

    def __str__(self) -> str:
        return f"redaction policy {self.number} of {self.project}"


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
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["project", "-id"], name="audit_newest"),
            models.Index(fields=["project", "subject", "-id"], name="audit_of_subject"),
        ]

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
