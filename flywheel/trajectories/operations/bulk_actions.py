"""One thing done with many trajectories, in the background: tag, export, delete, and what other rooms register.

It is done to what a filter finds when it is asked for: the keys of what matches then are kept with it. It is done to a
few at a time, in the order of their keys. Each few are one transaction, which also notes how far it is: whoever takes
over goes on exactly behind it (`workers/jobs/trajectories/bulk_changes.py`).
"""

import os
import shutil
import time
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max, ProtectedError, QuerySet
from django.db.utils import DataError, IntegrityError
from django.http import FileResponse, HttpResponseBase

from flywheel.accounts.access import audit
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project, Scope
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing, Refused
from flywheel.system.sql import sql_of
from flywheel.trajectories.import_export import trajectory_export
from flywheel.trajectories.models import Bulk, BulkKeys, Trajectory
from flywheel.trajectories.operations import deletion
from flywheel.trajectories.search.query import parse, settled

EXAMPLES = 100
"""Trajectories that a report names, with the reason why nothing was done to them."""
TAGS_AT_ONCE = 10
FILES_KEPT_SECONDS = 7 * 24 * 60 * 60


class BadBulk(Refused):
    """It cannot be asked for so; the message says what would be right."""


@dataclass(slots=True)
class Done:
    """The result of an action on a few trajectories."""

    changed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """By reason."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Trace id and reason."""
    more: dict[str, Any] = field(default_factory=dict)
    """What else the report says from now on."""


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    label: str
    """A verb, as on a button."""
    past: str
    permission: Permission
    scope: Scope
    do: Callable[[Bulk, list[int]], Done]
    """In a transaction, of the keys of a few trajectories. May be done again when the transaction is."""
    check: Callable[[Project, dict[str, Any]], dict[str, Any]]
    """The options as they are kept. Raises BadBulk."""
    at_once: int = 100
    option: str = ""
    """The one option that is chosen out of a list, and that list as (value, words)."""
    choices: Callable[[Project], list[tuple[str, str]]] = lambda _: []


ACTIONS: dict[str, Action] = {}


def register(action: Action) -> None:
    ACTIONS[action.name] = action


# What a person does


@transaction.atomic
def submit(
    *,
    project: Project,
    actor: Actor,
    action: str,
    options: dict[str, Any],
    key: uuid.UUID,
    q: str = "",
    ids: Iterable[str] = (),
    up_to: int | None = None,
) -> Bulk:
    """Let a worker do it to what matches now. The same key again is the same job. Raises BadBulk.

    `up_to` is the key of the newest trajectory that was there when somebody was told how many they are.
    """
    known = _action_named(action)
    chosen = list(dict.fromkeys(ids))
    try:
        trajectory_export.selection(project.pk, q, chosen)
    except trajectory_export.BadSelection as error:
        raise BadBulk(str(error)) from None
    job, is_new = Bulk.submit(
        key=key,
        project=project,
        actor=actor,
        action=action,
        options=known.check(project, options),
        q="" if chosen else settled(q),
        ids=chosen,
        up_to=newest() if up_to is None else up_to,
    )
    if is_new:
        _freeze(job)
        about: dict[str, Any] = {"bulk": action, "job": job.pk, "q": job.q, "ids": chosen[:20], "number": len(chosen)}
        about |= job.options
        actor.record(project=project, action="trajectories.bulk", subject=job, **about)
    return job


def newest() -> int:
    """Key of the newest trajectory that there is."""
    return int(Trajectory.objects.aggregate(newest=Max("pk", default=0))["newest"])


def _action_named(action: str) -> Action:
    if action not in ACTIONS:
        raise BadBulk(f"action: {action!r} is unknown; use one of {', '.join(ACTIONS)}")
    return ACTIONS[action]


# What a worker does


def rows_of(job: Bulk) -> QuerySet[Trajectory]:
    """Return the trajectories that match now, of those that were there when the action was asked for."""
    rows = Trajectory.objects.filter(project=job.project_id, pk__lte=job.up_to)
    return rows.filter(trace_id__in=job.ids) if job.ids else parse(job.q).apply(rows, job.project_id)


_FREEZE = """
INSERT INTO trajectories_bulkkeys (job_id, keys)
SELECT %s, coalesce(array_agg(found.id ORDER BY found.id), '{{}}') FROM ({found}) AS found
"""


def _freeze(job: Bulk) -> None:
    """Keep the keys of what matches now: it is done to these, whatever comes to match while it is done. They may be a
    million: the request that asks does not read them."""
    found, values = sql_of(rows_of(job).order_by().values("id"))
    with connection.cursor() as cursor:
        cursor.execute(_FREEZE.format(found=found), [job.pk, *values])


def keys_of(job: Bulk) -> list[int]:
    """Return the keys of all trajectories that it is about, in order."""
    kept = BulkKeys.objects.filter(job=job)
    if not kept.exists():
        _freeze(job)  # one that was asked for before keys were kept
    return kept.get().keys


def forget_keys(job: Bulk) -> None:
    """Once all is done, in the transaction that says so: with a part left they would be looked for anew."""
    BulkKeys.objects.filter(job=job).delete()


def parts(job: Bulk, keys: list[int]) -> Iterator[list[int]]:
    """Those of the keys that are still to be done, a few at a time, in their order."""
    at_once = ACTIONS[job.action].at_once
    for start in range(bisect_right(keys, job.at), len(keys), at_once):
        yield keys[start : start + at_once]


def do(job: Bulk, keys: list[int]) -> dict[str, Any]:
    """Do it to these, in a transaction. Returns the report of all that is done then."""
    done = ACTIONS[job.action].do(job, keys)
    before = job.report
    reasons = Counter(reason for _, reason in done.failed)
    examples = [{"trace_id": trace_id, "reason": reason} for trace_id, reason in done.failed]
    return {
        **before,
        "changed": before.get("changed", 0) + done.changed,
        "skipped": dict(Counter(before.get("skipped", {})) + done.skipped),
        "failed": dict(Counter(before.get("failed", {})) + reasons),
        "examples": [*before.get("examples", []), *examples][:EXAMPLES],
        **done.more,
    }


# Tags

_TAG = """
UPDATE trajectories_trajectory SET
    tags = ARRAY(SELECT DISTINCT tag FROM unnest(tags || %(tags)s::varchar[]) AS tag ORDER BY tag),
    claims = jsonb_set(claims, '{by_hand}', coalesce(claims->'by_hand', '{}') || %(claims)s)
WHERE id = ANY(%(keys)s) AND NOT tags @> %(tags)s::varchar[]
"""
_UNTAG = """
UPDATE trajectories_trajectory SET
    tags = ARRAY(SELECT tag FROM unnest(tags) AS tag WHERE tag <> ALL(%(tags)s) ORDER BY tag),
    claims = jsonb_set(claims, '{by_hand}', coalesce(claims->'by_hand', '{}') || %(claims)s)
WHERE id = ANY(%(keys)s) AND tags && %(tags)s::varchar[]
"""


def _tagging(statement: str, holds: bool, otherwise: str) -> Callable[[Bulk, list[int]], Done]:
    """`claims.py` keeps to what a person said of a tag when more of the trajectory comes."""

    def do(job: Bulk, keys: list[int]) -> Done:
        tags = job.options["tags"]
        # In the order in which ingest locks, so that neither waits for the other for ever.
        locked = Trajectory.objects.select_for_update(no_key=True).filter(pk__in=keys).order_by("trace_id")
        there = list(locked.values_list("pk", flat=True))
        claims = dict.fromkeys(tags, holds)
        with connection.cursor() as cursor:
            cursor.execute(
                statement, {"tags": tags, "keys": there, "claims": connection.ops.adapt_json_value(claims, None)}
            )
            changed = cursor.rowcount
        skipped = Counter({otherwise: len(there) - changed, _GONE: len(keys) - len(there)})
        return Done(changed, +skipped)

    return do


def _check_tags(_: Project, options: dict[str, Any]) -> dict[str, Any]:
    tags = sorted({tag.strip() for tag in options.get("tags", []) if tag.strip()})
    if not tags or len(tags) > TAGS_AT_ONCE or any(len(tag) > 100 or "\0" in tag for tag in tags):
        raise BadBulk(f"tags: expected between 1 and {TAGS_AT_ONCE}, each of at most 100 characters")
    return {"tags": tags}


# Export


def _export(job: Bulk, keys: list[int]) -> Done:
    """Write them behind what is there already. Each owner of the job has a file of its own: one that was replaced and
    does not know it yet writes into nobody's."""
    entry = trajectory_export.EXPORTS[job.options["format"]]
    name, size = entry.filename(f"{job.pk}-{job.fence}"), int(job.report.get("size", 0))
    path = file_of(job, name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = job.report.get("file", name)
    if before != name:
        shutil.copyfile(file_of(job, before), path)
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(size)
        file.seek(size)
        count = 0
        if not size:
            file.write(entry.head(job.options.get("attributes", ())))
        rows = Trajectory.objects.filter(pk__in=keys)
        for line in trajectory_export.lines(rows, entry, job.options.get("attributes", ())):
            file.write(line)
            count += 1
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    if before != name:
        transaction.on_commit(lambda: file_of(job, before).unlink(missing_ok=True))
    return Done(count, +Counter({_GONE: len(keys) - count}), more={"file": name, "size": size})


def _check_export(_: Project, options: dict[str, Any]) -> dict[str, Any]:
    if options.get("format") not in trajectory_export.EXPORTS:
        raise BadBulk(
            f"format: {options.get('format')!r} is unknown; use one of {', '.join(trajectory_export.EXPORTS)}"
        )
    keys = trajectory_export.attribute_keys(options.get("columns", ()))
    return {"format": options["format"]} | ({"attributes": keys} if keys else {})


def file_of(job: Bulk, name: str = "") -> Path:
    """Where the file of an export is; it may be gone for its age."""
    return _root() / str(job.project_id) / (name or str(job.report.get("file", "none")))


def answer(request: Any, job: Bulk) -> HttpResponseBase:
    """The file of an export that is over. Raises Missing when it has none, or has it no longer."""
    path = file_of(job)
    if job.action != "export" or job.state != State.SUCCEEDED or not path.is_file():
        raise Missing("this export has no file, or has it no longer")
    audit(request, "trajectories.export", job, q=job.q, format=job.options["format"], job=job.pk)
    entry = trajectory_export.EXPORTS[job.options["format"]]
    name = entry.filename(f"{request.project.slug}-{job.created_at:%Y%m%d-%H%M}")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    response = FileResponse(path.open("rb"), as_attachment=True, filename=name, headers=headers)
    response["Content-Type"] = entry.media_type
    return response


def sweep() -> int:
    """Delete exports that are older than a week. Returns how many went."""
    gone = 0
    oldest = time.time() - FILES_KEPT_SECONDS
    for path in _root().glob("*/*-*.*"):
        with suppress(FileNotFoundError):  # another was quicker
            if path.stat().st_mtime < oldest:
                path.unlink()
                gone += 1
    return gone


def _root() -> Path:
    return Path(settings.HOME) / "exports"


# Delete


def _delete(job: Bulk, keys: list[int]) -> Done:
    done = Done()
    _delete_all(job, keys, done)
    done.skipped = +Counter({_GONE: len(keys) - done.changed - len(done.failed)})
    return done


def _delete_all(job: Bulk, keys: list[int], done: Done) -> None:
    """Together; where one of them cannot be deleted, each half alone, until it is found."""
    reason, actor = job.options.get("reason", ""), Actor(job.created_by, job.through or f"bulk action {job.pk}")
    try:
        with transaction.atomic():
            gone = deletion.delete_all(project=job.project, keys=keys, actor=actor, reason=reason)
        done.changed += len(gone)
    except (ProtectedError, IntegrityError, DataError) as error:
        if len(keys) == 1:
            names = Trajectory.objects.filter(pk__in=keys).values_list("trace_id", flat=True)
            done.failed += [(name, f"{type(error).__name__}: {error}"[:300]) for name in names]
            return
        middle = len(keys) // 2
        _delete_all(job, keys[:middle], done)
        _delete_all(job, keys[middle:], done)


def _check_delete(_: Project, options: dict[str, Any]) -> dict[str, Any]:
    return {"reason": str(options.get("reason", "")).replace("\0", "").strip()[:1000]}


_GONE = "deleted meanwhile"

_TAGGED, _UNTAGGED = _tagging(_TAG, True, "tagged already"), _tagging(_UNTAG, False, "without these tags")

for _action in (
    Action("tag", "Tag", "tagged", Permission.REVIEW, Scope.REVIEW, _TAGGED, _check_tags, at_once=500),
    Action("untag", "Untag", "untagged", Permission.REVIEW, Scope.REVIEW, _UNTAGGED, _check_tags, at_once=500),
    Action(
        "export",
        "Export",
        "exported",
        Permission.VIEW,
        Scope.READ,
        _export,
        _check_export,
        option="format",
        choices=lambda _: [(entry.name, entry.label) for entry in trajectory_export.EXPORTS.values()],
    ),
    Action("delete", "Delete", "deleted", Permission.ADMIN, Scope.ADMIN, _delete, _check_delete, at_once=200),
):
    register(_action)
