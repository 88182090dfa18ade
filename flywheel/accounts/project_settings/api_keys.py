"""API keys: made and revoked here, by people and by `manage.py create_key`. Both leave an audit entry."""

import hashlib
import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.utils import timezone

from flywheel.accounts.access import SCOPE_NEEDS
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, Permission, Project, Scope
from flywheel.edge.refusals import Refused


class SentTwice(Exception):
    """The form was sent before: there is a key of it already, and its text was shown."""


class Made(NamedTuple):
    key: ApiKey
    text: str
    """To be shown once: it is nowhere to be had again."""


@transaction.atomic
def make(
    *,
    project: Project,
    actor: Actor,
    name: str,
    scopes: Collection[str],
    days: int | None = None,
    form: uuid.UUID | None = None,
) -> Made:
    """A key that acts in the name of `actor`, for so many days or until it is revoked.

    `form` is minted with the form, so that a double click makes one key. Raises Refused, SentTwice.
    """
    name = name.strip()
    if not name or len(name) > 100:
        raise Refused("a key needs a name of at most 100 characters, so that you know what you revoke")
    if not scopes:
        raise Refused(f"a key needs at least one scope: {', '.join(Scope.values)}")
    if days is not None and not 1 <= days <= 3650:
        raise Refused("a key expires after 1 to 3650 days, or when revoked")
    may = actor.user.permissions(project)
    for scope in scopes:
        if scope in Scope.values and SCOPE_NEEDS[Scope(scope)] not in may:
            needed = Permission(SCOPE_NEEDS[Scope(scope)])
            raise Refused(f"{actor.user} can't {needed.label} here, so a key with the scope {scope!r} would do nothing")
    public = hashlib.sha256(form.bytes).hexdigest()[:12] if form else ""
    try:
        with transaction.atomic():
            key, text = ApiKey.make(project, name, sorted(set(scopes)), actor.user, public)
    except ValueError as error:
        raise Refused(str(error)) from None
    except IntegrityError:
        raise SentTwice from None
    if days is not None:
        key.expires_at = timezone.now() + timedelta(days=days)
        key.save(update_fields=["expires_at"])
    actor.record(project=project, action="accounts.make_key", subject=key, scopes=key.scopes, days=days)
    return Made(key, text)


@transaction.atomic
def revoke(*, key: ApiKey, actor: Actor) -> bool:
    """End a key at once. Returns whether it was live."""
    moved = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())
    if moved:
        actor.record(project=key.project, action="accounts.revoke_key", subject=key)
    return bool(moved)
