"""A project's settings for the detectors: which are off, and which propose another bucket than their own.

Off means that what it proposes and nobody decided yet is withdrawn; decisions stay, and so does what it had proposed to
those who decided. On means that every trajectory of the project is read again. Another bucket means that what waits is
proposed there from now on. All happen in one way: the trajectories that it concerns are put up for reading, and whoever
reads them next goes by what the project says then.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Project
from flywheel.core.detectors.standard_buckets import BUCKETS, DETECTORS, Detector
from flywheel.edge.refusals import Missing, Refused, check_choice
from flywheel.failures.buckets.bucket_definitions import of_project
from flywheel.failures.models import DetectorSetting, ProjectBucket
from flywheel.system.sql import bound
from flywheel.trajectories.models import Source
from flywheel.trajectories.store import detector_wakeup

AT_ONCE = 2_000
"""Trajectories that are put up for reading in one transaction."""
_ON, _OFF, _POINTED, _SUBJECT = "failures.detector_on", "failures.detector_off", "failures.detector_bucket", "detector "
"""As the audit log has them: what was done, and how the name of whose detector begins."""


@transaction.atomic
def switch(*, project: Project, actor: Actor, name: str, is_on: bool) -> bool:
    """Switch the detector on or off in the project; returns whether it was the other way. Raises Missing."""
    row = _locked(project, actor, name)
    if row.is_on == is_on:
        return False
    row.is_on, row.by, row.at, row.reads_all = is_on, actor.user, timezone.now(), is_on
    _changed(row, actor, _ON if is_on else _OFF)
    return True


@transaction.atomic
def point(*, project: Project, actor: Actor, name: str, bucket: str) -> bool:
    """Let the detector propose this bucket in the project; empty, or its own, is its own again.

    Returns whether it proposed another one. Raises Missing, and Refused for one that is not offered.
    """
    row = _locked(project, actor, name)
    # Whoever archives it meanwhile waits, and then learns of this.
    own = ProjectBucket.objects.select_for_update().filter(project=project, key=bucket).first()
    if bucket and bucket not in BUCKETS and (own is None or own.archived_at is not None):
        offered = ", ".join(of_project(project))
        raise Refused(f"{bucket!r} is {'archived' if own else 'unknown'}, expected one of {offered}", field="bucket")
    before = row.proposes
    row.bucket = "" if bucket == DETECTORS[name].bucket else bucket
    if row.proposes == before:
        return False
    row.bucket_since = timezone.now() if row.bucket else None
    row.reads_all = row.reads_all and row.caught_up_at is None
    _changed(row, actor, _POINTED, bucket=row.proposes, before=before)
    return True


def settings(projects: Collection[int]) -> dict[int, dict[str, DetectorSetting]]:
    """Return these projects' settings, by project and detector; those that have none are left out."""
    found: dict[int, dict[str, DetectorSetting]] = {}
    for row in DetectorSetting.objects.filter(project__in=projects, detector__in=DETECTORS).select_related("by"):
        found.setdefault(row.project_id, {})[row.detector] = row
    return found


def proposing(project: Project, bucket: str) -> list[Detector]:
    """Those that propose this bucket in the project."""
    said = settings([project.pk]).get(project.pk, {})
    off = switched_off(said)
    on = [each for name, each in DETECTORS.items() if name not in off]
    return [each for each in on if (said[each.name].proposes if each.name in said else each.bucket) == bucket]


def switched_off(said: Mapping[str, DetectorSetting]) -> list[str]:
    """Return which propose nothing in a project with these settings; without one a detector is as its row says."""
    return [name for name, each in DETECTORS.items() if not (said[name].is_on if name in said else each.is_on)]


def changed_since(project_id: int, at: datetime) -> tuple[list[str], list[str]]:
    """Return which were on at that time and are off, and which are on as then but propose another bucket. By the audit
    log: a setting knows only what is said now."""
    present = settings([project_id]).get(project_id, {})
    was_on = {name: row.is_on for name, row in present.items()}
    proposed = {name: row.proposes for name, row in present.items()}
    for entry in _changes(project_id, present, at):
        name = entry.subject.removeprefix(_SUBJECT)
        if entry.action == _POINTED:
            proposed[name] = entry.data["before"]
        else:
            was_on[name] = entry.action == _OFF
    known = sorted(name for name in present if was_on[name])
    off = [name for name in known if not present[name].is_on]
    return off, [name for name in known if present[name].is_on and present[name].proposes != proposed[name]]


def _changes(project_id: int, names: Collection[str], since: datetime) -> QuerySet[AuditEntry]:
    """The changes of these detectors since, the newest first, as they are to be undone."""
    subjects = [f"{_SUBJECT}{name}" for name in names]
    entries = AuditEntry.objects.filter(project=project_id, subject__in=subjects, action__in=[_ON, _OFF, _POINTED])
    return entries.filter(at__gte=since).order_by("-pk")


def _locked(project: Project, actor: Actor, name: str) -> DetectorSetting:
    """Return and lock the project's setting for the detector; nobody else changes it until the transaction ends."""
    check_choice(name, DETECTORS, field="detector", error=Missing)
    # Who only refers to the project goes on: they may hold trajectories for which a catch-up waits, and we for that.
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    rows = DetectorSetting.objects.select_for_update(of=("self",))
    found = rows.filter(project=project, detector=name).first()
    return found or DetectorSetting(project=project, detector=name, is_on=DETECTORS[name].is_on, by=actor.user)


def _changed(row: DetectorSetting, actor: Actor, action: str, **data: Any) -> None:
    row.marked_to, row.caught_up_at = 0, None
    row.save()
    actor.record(project=row.project, action=action, subject=f"{_SUBJECT}{row.detector}", **data)
    transaction.on_commit(lambda: detector_wakeup.now(row.project_id))


def catch_up(project_id: int | None = None) -> int:
    """Put up for reading what was changed since the last time; returns how many trajectories.

    Only for who keeps others from reading meanwhile: a reader that began before the change would write after it.
    """
    waiting = DetectorSetting.objects.filter(caught_up_at=None)
    if project_id is not None:
        waiting = waiting.filter(project=project_id)
    return sum(_catch_up(key) for key in waiting.values_list("pk", flat=True))


def _catch_up(key: int) -> int:
    count, is_over = 0, False
    while not is_over:
        with transaction.atomic():
            # Whoever changes it meanwhile waits here, and has the next round begin anew.
            row = DetectorSetting.objects.select_for_update().filter(pk=key, caught_up_at=None).first()
            keys = _concerned(row) if row else []
            if row and keys:
                bound(_LOCK, [keys])
                bound("UPDATE trajectories_trajectory SET detected_at = NULL WHERE id = ANY(%s)", [keys])
                DetectorSetting.objects.filter(pk=key).update(marked_to=keys[-1])
            elif row:
                DetectorSetting.objects.filter(pk=key).update(caught_up_at=timezone.now())
            count, is_over = count + len(keys), not keys
    return count


def _concerned(row: DetectorSetting) -> list[int]:
    """The next trajectories that are to be read again."""
    if row.reads_all:
        found = bound(_EVERY, [row.project_id, row.marked_to, AT_ONCE])
    else:
        wanted = row.proposes if row.is_on else ""
        found = bound(_OTHERWISE, [row.project_id, row.marked_to, row.detector, wanted, AT_ONCE])
    return [key for (key,) in found]


_EVERY = f"""
SELECT id FROM trajectories_trajectory
WHERE project_id = %s AND id > %s AND source NOT IN {Source.ATTEMPTS_SQL} AND detected_at IS NOT NULL
ORDER BY id LIMIT %s
"""  # noqa: S608 only names of sources
_OTHERWISE = """
SELECT DISTINCT kept.id FROM failures_proposal AS proposal
JOIN trajectories_trajectory AS kept ON kept.id = proposal.trajectory_id
WHERE proposal.project_id = %s AND kept.id > %s AND proposal.detector = %s AND proposal.bucket <> %s AND kept.label = ''
ORDER BY kept.id LIMIT %s
"""
"""What waits with something else than it would propose now."""
_LOCK = "SELECT FROM trajectories_trajectory WHERE id = ANY(%s) ORDER BY trace_id FOR NO KEY UPDATE"
"""In the order in which ingest locks, so that neither waits for the other for ever."""
