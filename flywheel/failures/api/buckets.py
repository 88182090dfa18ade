"""Buckets for programs: what is in each and how far it is, defining one's own, whose each is, closing and reopening."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.core.detectors.standard_buckets import Bucket
from flywheel.edge.answers import Ref
from flywheel.edge.refusals import Missing
from flywheel.edge.schemas import Body, Schema
from flywheel.failures.buckets import bucket_counts, bucket_definitions, bucket_lifecycle
from flywheel.failures.models import BucketLife

router = Router(tags=["failures"])


class EvidenceAfterOut(Schema):
    sessions: int
    evidence: float
    """After so many sessions."""


class RecurrenceOut(Schema):
    version: Ref
    """The fix that did not last, as `agent@3`."""
    claim: float
    """The largest share of sessions that its promotion claimed, 0 to 1."""
    failed: float
    """The share of the last sessions in which it was found, 0 to 1."""
    sessions: int
    """Sessions that were watched until then."""
    at: datetime
    answer: str
    """`same`, or empty until a person confirms it."""
    path: list[EvidenceAfterOut]
    """The evidence against the claim over time, at most a hundred points."""
    bound: float | None
    """The evidence at which the claim is broken; null for recurrences that do not have it."""


class BucketOut(Schema):
    key: str
    label: str
    description: str
    shortcut: str
    """Key that selects the category on the review pages."""
    fix: str
    """What usually helps."""
    parent: str
    """For a category of the project's own, the built-in one that it belongs to."""
    is_archived: bool
    waiting: int
    """Undecided trajectories for which it is the strongest proposal."""
    confirmed: int
    """Trajectories that people filed under it."""
    tasks: int
    """Tasks made from its failures."""
    runs: int
    """Training runs on task sets that contain its tasks."""
    last_seen: datetime | None
    state: str
    """`open`, `fixing`, `fixed`, `closed` or `reopened`."""
    owner: str
    """A username; empty for nobody."""
    priority: str
    """`urgent`, `high`, `normal` or `low`."""
    severity: str
    """Harm of one failure: `critical`, `major` or `minor`; empty until someone sets it."""
    closed_at: datetime | None
    closed_by: str
    closed_because: str
    reopened_at: datetime | None
    recurrence: RecurrenceOut | None
    """Of the watch that reopened it; null if none did, or somebody said that it is not the same."""
    reopened_for: str
    """Trace id of the failure that came back."""


class BucketIn(Body):
    label: str = Field(max_length=60)
    """Name that people read, at most 60 characters."""
    parent: str
    """Key of the built-in category that it belongs to."""
    description: str = ""
    """When to use it, for reviewers."""
    shortcut: str = ""
    """One letter that selects it on the review pages; empty for none."""


class NewBucketIn(BucketIn):
    key: str = ""
    """Key of the category, which never changes; made from the label if omitted."""


class ChangeIn(BucketIn):
    archived: bool = False
    """Whether it is hidden from reviewers."""


class SteerIn(Body):
    owner: str | None = None
    """A username; empty for nobody. Omitted fields keep their value."""
    priority: str | None = None
    """`urgent`, `high`, `normal` or `low`."""
    severity: str | None = None
    """Harm of one failure: `critical`, `major` or `minor`."""


class ReasonIn(Body):
    reason: str


@router.get("/buckets", response=list[BucketOut], auth=Key(Scope.READ))
def list_buckets(request: HttpRequest) -> list[dict[str, Any]]:
    """List all categories, including archived ones, with their counts and their state."""
    project = keyed(request).project
    known = bucket_definitions.every(project)
    lives = bucket_lifecycle.of_project(project, list(known))
    found = {
        count.bucket.key: count for count in bucket_counts.by_bucket(project, bucket_counts.period(project, 14))[0]
    }
    return [_shown(bucket, lives[key], found.get(key)) for key, bucket in known.items()]


@router.post("/buckets", response={201: BucketOut}, auth=Key(Scope.BUILD))
def define_bucket(request: HttpRequest, wanted: NewBucketIn) -> Status[dict[str, Any]]:
    """Create a category of the project's own."""
    key = keyed(request)
    row = bucket_definitions.define(
        project=key.project,
        actor=key.actor,
        wanted=bucket_definitions.Wanted(**wanted.model_dump(exclude={"key"})),
        key=wanted.key,
    )
    return Status(201, get_bucket(request, row.key))


@router.get("/buckets/{key}", response=BucketOut, auth=Key(Scope.READ))
def get_bucket(request: HttpRequest, key: str) -> dict[str, Any]:
    """Return one category."""
    row = next((row for row in list_buckets(request) if row["key"] == key), None)
    if row is None:
        raise Missing(f"there is no category {key[:64]!r}")
    return row


@router.put("/buckets/{key}", response=BucketOut, auth=Key(Scope.BUILD))
def change_bucket(request: HttpRequest, key: str, wanted: ChangeIn) -> dict[str, Any]:
    """Change a category of the project's own, and archive or restore it. Failures filed under it stay there."""
    row = keyed(request).project.buckets.filter(key=key).first()
    if row is None:
        known = key in bucket_definitions.every(keyed(request).project)
        raise Missing(f"{key[:64]!r} is {'built in' if known else 'not a category'}")
    actor, content = keyed(request).actor, wanted.model_dump(exclude={"archived"})
    bucket_definitions.change(bucket=row, wanted=bucket_definitions.Wanted(**content), actor=actor)
    bucket_definitions.archive(bucket=row, is_archived=wanted.archived, actor=actor)
    return get_bucket(request, key)


@router.post("/buckets/{key}/steer", response=BucketOut, auth=Key(Scope.REVIEW))
def steer_bucket(request: HttpRequest, key: str, wanted: SteerIn) -> dict[str, Any]:
    """Set a category's owner, its priority and how severe one failure of it is."""
    return _lived(request, key, bucket_lifecycle.steer, **wanted.model_dump())


@router.post("/buckets/{key}/close", response=BucketOut, auth=Key(Scope.REVIEW))
def close_bucket(request: HttpRequest, key: str, wanted: ReasonIn) -> dict[str, Any]:
    """Close a category. It reopens when a person confirms a failure that began after it was closed."""
    return _lived(request, key, bucket_lifecycle.close, reason=wanted.reason)


@router.post("/buckets/{key}/reopen", response=BucketOut, auth=Key(Scope.REVIEW))
def reopen_bucket(request: HttpRequest, key: str, wanted: ReasonIn) -> dict[str, Any]:
    """Reopen a category."""
    return _lived(request, key, bucket_lifecycle.reopen, reason=wanted.reason)


class RecurrenceIn(Body):
    same: bool
    """Whether it is the failure that was fixed. False takes the reopening back."""
    reason: str = ""
    """Needed if `same` is false."""


@router.post("/buckets/{key}/recurrence", response=BucketOut, auth=Key(Scope.REVIEW))
def answer_recurrence(request: HttpRequest, key: str, wanted: RecurrenceIn) -> dict[str, Any]:
    """Confirm or dismiss the recurrence by which the watch reopened the category. 409 if somebody has."""
    row = keyed(request).project.recurrences.filter(bucket=key).first()
    if row is None:
        raise Missing(f"the watch has not reopened {key[:64]!r}")
    actor = keyed(request).actor
    bucket_lifecycle.answer(recurrence=row, actor=actor, is_same=wanted.same, reason=wanted.reason)
    return get_bucket(request, key)


def _lived(request: HttpRequest, key: str, verb: Any, **content: Any) -> dict[str, Any]:
    verb(project=keyed(request).project, key=key, actor=keyed(request).actor, **content)
    return get_bucket(request, key)


def _shown(bucket: Bucket, life: bucket_lifecycle.Life, count: bucket_counts.BucketCount | None) -> dict[str, Any]:
    row = life.row
    names = ("key", "label", "description", "shortcut", "fix", "parent", "is_archived")
    return {
        **{name: getattr(bucket, name) for name in names},
        **{name: getattr(count, name) if count else 0 for name in ("waiting", "confirmed")},
        **{name: getattr(life, name) for name in ("tasks", "runs", "state")},
        "last_seen": count.last_seen if count else None,
        "owner": row.owner.username if row.owner else "",
        "closed_by": row.closed_by.username if row.closed_by else "",
        "reopened_for": row.reopened_for.trajectory.trace_id if row.reopened_for else "",
        "recurrence": _recurrence(row),
        **{name: getattr(row, name) for name in ("priority", "severity", "closed_at", "closed_because", "reopened_at")},
    }


def _recurrence(row: BucketLife) -> dict[str, Any] | None:
    found = row.reopened_by_watch
    if found is None:
        return None
    path = [{"sessions": sessions, "evidence": evidence} for sessions, evidence in found.points]
    names = ("claim", "failed", "sessions", "at", "answer", "bound")
    return {"version": str(found.version), "path": path, **{name: getattr(found, name) for name in names}}
