"""API keys: secrets for machines."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import connection, models
from django.utils import timezone

from flywheel.accounts.models.people import PROJECT_COLUMNS, Project, User
from flywheel.accounts.models.permissions import Scope, granted
from flywheel.system.sql import planned


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
            raise ValueError(f"scope {unknown[0]!r} is unknown; use one of {', '.join(Scope.values)}")
        public, secret = public or secrets.token_hex(6), secrets.token_urlsafe(32).replace("_", "-")
        key = cls.objects.create(
            project=project, name=name, public=public, hashed=keyed_hash(secret), scopes=scopes, created_by=created_by
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
        known = hmac.compare_digest(key.hashed, keyed_hash(secret))
        return key if known and not key.is_expired else None

    @property
    def permissions(self) -> frozenset[str]:
        """The maker's current permissions in the key's project; only for a key that `find` has found."""
        return granted(self.maker_roles) if self.created_by.is_active else frozenset()


_READ: dict[type[models.Model], Sequence[str]] = {
    ApiKey: ("id", "project_id", "name", "public", "hashed", "scopes", "created_by_id", "last_used_at", "expires_at"),
    Project: PROJECT_COLUMNS,
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


def _key_from(row: Sequence[Any]) -> ApiKey:
    values = iter(row)

    def of(model: type[models.Model]) -> Any:
        return model.from_db(connection.alias, _READ[model], [next(values) for _ in _READ[model]])

    key: ApiKey = of(ApiKey)
    key.project, key.created_by, key.maker_roles = of(Project), of(User), row[-1]
    # Django has psycopg leave JSON as text, for its fields to read.
    key.scopes, key.project.upstream = json.loads(str(key.scopes)), json.loads(str(key.project.upstream))
    return key


def keyed_hash(secret: str) -> str:
    """HMAC under the installation's key: a stolen table is worth nothing (256 random bits need no slow hash)."""
    return hmac.new(settings.SECRET_KEY.encode(), secret.encode(), hashlib.sha256).hexdigest()
