"""The buckets of a project: what is offered to reviewers, and defining, changing and archiving its own.

A project's bucket is a kind of one of the built-in ones (its parent), so that whatever works on kinds of failures, such
as the fix ladder, works on it too. Its key is in every label, so it never changes; its name may.
"""

import re
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import BUCKETS, Bucket
from flywheel.edge.refusals import Refused
from flywheel.failures.models import ProjectBucket
from flywheel.trajectories.annotations.project_buckets import every, forget, name_of

__all__ = ["Wanted", "archive", "change", "define", "every", "family", "name_of", "of_project", "offered"]

SHORTCUTS = "abhilmotvwz"
"""Keys that nothing else on the pages of review listens to."""
DESCRIPTION_LIMIT = 2_000
EDITABLE = ("label", "description", "parent", "shortcut")
RESERVED = ("none", "new")
"""Words of the filter bar and of addresses, which cannot be keys."""

_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested definition of a bucket."""

    label: str
    parent: str
    description: str = ""
    shortcut: str = ""


def of_project(project: Project) -> dict[str, Bucket]:
    """Return the buckets to choose from, the built-in ones first; those that are archived are left out."""
    return {key: bucket for key, bucket in every(project).items() if not bucket.is_archived}


def offered(project: Project, chosen: str = "") -> list[Bucket]:
    """The buckets of a form: those that can be chosen, and an archived one where it stands in it."""
    return [bucket for key, bucket in every(project).items() if not bucket.is_archived or key == chosen]


def family(project: Project, key: str) -> str:
    """The built-in bucket that this one is a kind of, or is."""
    known = every(project).get(key)
    return known.family if known else key


def define(*, project: Project, actor: Actor, wanted: Wanted, key: str = "") -> ProjectBucket:
    """Define a bucket. Without `key` it is made of the label. Raises Refused."""
    bucket = ProjectBucket(project=project, key=key or _key_of(project, wanted.label), created_by=actor.user)
    return _save(bucket, actor, wanted, "define_bucket")


def change(*, bucket: ProjectBucket, actor: Actor, wanted: Wanted) -> ProjectBucket:
    """Make the bucket so; its labels follow. Raises Refused."""
    return _save(bucket, actor, wanted, "change_bucket")


@transaction.atomic
def archive(*, bucket: ProjectBucket, actor: Actor, is_archived: bool = True) -> None:
    """Offer the bucket no more, or again. Raises Refused when its name or key was given away meanwhile, and while a
    detector proposes it."""
    if not is_archived:
        _check(bucket, Wanted(bucket.label, bucket.parent, bucket.description, bucket.shortcut))
    stored = ProjectBucket.objects.select_for_update().get(pk=bucket.pk)
    bucket.archived_at = stored.archived_at
    if is_archived and (
        names := sorted(bucket.project.detector_settings.filter(bucket=bucket.key).values_list("detector", flat=True))
    ):
        raise Refused(f"the detector {names[0]} proposes it; choose another one for it first", field="bucket")
    if (stored.archived_at is not None) != is_archived:
        bucket.archived_at = timezone.now() if is_archived else None
        bucket.save()
        forget(bucket.project)
        _record(bucket, actor, "archive_bucket" if is_archived else "unarchive_bucket")


def _save(bucket: ProjectBucket, actor: Actor, wanted: Wanted, action: str) -> ProjectBucket:
    _check(bucket, wanted)
    before = {name: getattr(bucket, name) for name in EDITABLE} if bucket.pk else {}
    bucket.label, bucket.parent, bucket.shortcut = wanted.label.strip(), wanted.parent, wanted.shortcut
    bucket.description = wanted.description.strip()
    changed = {name: getattr(bucket, name) for name, value in before.items() if getattr(bucket, name) != value}
    if before and not changed:
        return bucket
    try:
        with transaction.atomic():
            bucket.save()
            forget(bucket.project)
            _record(bucket, actor, action, **changed)
    except IntegrityError:
        raise Refused("someone just defined a category with this name or key", field="label") from None
    return bucket


def _check(bucket: ProjectBucket, wanted: Wanted) -> None:
    """Raise Refused for what does not fit."""
    label = wanted.label.strip()
    others = BUCKETS | {
        row.key: row.bucket for row in bucket.project.buckets.filter(archived_at=None).exclude(pk=bucket.pk)
    }
    if not label or len(label) > 60 or not label.isprintable():
        raise Refused("expected between 1 and 60 visible characters", field="label")
    if label.lower() in {other.label.lower() for other in others.values()}:
        raise Refused(f"a category {label!r} already exists", field="label")
    if wanted.parent not in BUCKETS:
        raise Refused(f"{wanted.parent!r} is not built in; expected one of {', '.join(BUCKETS)}", field="parent")
    if len(wanted.description) > DESCRIPTION_LIMIT or "\0" in wanted.description:
        raise Refused(f"at most {DESCRIPTION_LIMIT} characters, without null characters", field="description")
    if wanted.shortcut and (len(wanted.shortcut) > 1 or wanted.shortcut not in SHORTCUTS):
        raise Refused(f"expected one of {' '.join(SHORTCUTS)}, or none", field="shortcut")
    taken = {other.shortcut: other.label for other in others.values() if other.shortcut}
    if wanted.shortcut in taken:
        raise Refused(f"{wanted.shortcut} already selects {taken[wanted.shortcut]!r}", field="shortcut")

    if bucket.pk is None and not _KEY.fullmatch(bucket.key):
        raise Refused("expected lower-case letters, digits and underscores, a letter first, at most 64", field="key")
    is_taken = bucket.key in (*BUCKETS, *RESERVED) or bucket.project.buckets.filter(key=bucket.key).exists()
    if bucket.pk is None and is_taken:
        raise Refused(f"{bucket.key!r} is taken; archived categories keep their key", field="key")


def _key_of(project: Project, label: str) -> str:
    """The label as a key; where it has no letters that a key may have, a number."""
    written = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")[:64]
    return written if _KEY.fullmatch(written) else f"bucket_{project.buckets.count() + 1}"


def _record(bucket: ProjectBucket, actor: Actor, action: str, **data: Any) -> None:
    actor.record(project=bucket.project, action=f"failures.{action}", subject=f"bucket {bucket.key}", **data)
