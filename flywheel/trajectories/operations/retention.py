"""Retention of what arrives in a project: the setting, what it would delete now, and the deleting.

Age counts from arrival: a trajectory is as old as the last thing that arrived of it. What somebody has decided about,
what a task was made of and what an eval measured stays whatever its age, unless the project says otherwise.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Agent
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.ingest.gateway.journals import journal
from flywheel.trajectories.models import Batch, Body, Quarantined, Retention, Source, Trajectory
from flywheel.trajectories.operations.deletion import erase, forget_agent
from flywheel.trajectories.search import known_values
from flywheel.trajectories.store.aggregates.agent_resolution import IS_SEEN

log = logging.getLogger(__name__)

BY_SOURCE = {
    Source.PRODUCTION: "production_days",
    Source.IMPORT: "import_days",
    **dict.fromkeys(map(Source, Source.ATTEMPTS), "rollout_days"),
}
DAYS = ("bodies_days", "quarantine_days", "ledger_days", *dict.fromkeys(BY_SOURCE.values()))
COUNTED_UP_TO = 100_000
SWEEP_S = 30.0
"""How long one sweep works for a project; the next one goes on."""
ROWS_AT_ONCE = 500
BODIES_AT_ONCE = 100
"""Of about 20 kB each, a batch takes some 30 ms (docs/design/ingest.md)."""
TRAJECTORIES_AT_ONCE = 50
NAMED_FOR = timedelta(minutes=10)
"""How long an agent may stand there without a trajectory: the span that says its real name may still be on its way."""

DECIDED = ~Q(label="")
TASKED = Q(tasks__isnull=False)
MEASURED = Q(result__isnull=False)


@dataclass(slots=True)
class Doomed:
    """Counts of what a setting would delete now; one of more than `COUNTED_UP_TO` is not read further."""

    bodies: int = 0
    quarantined: int = 0
    batches: int = 0
    trajectories: dict[str, int] = field(default_factory=dict)
    """By source."""
    decided: int = 0
    """Old enough, but kept because somebody has decided about them; so the others."""
    tasked: int = 0
    measured: int = 0

    @property
    def total(self) -> int:
        return sum(self.trajectories.values())

    @property
    def spared(self) -> int:
        return self.decided + self.tasked + self.measured


def of(project: Project) -> Retention:
    """The project's setting, or the one that holds while it has none."""
    return Retention.objects.filter(project=project).first() or Retention(project=project)


@transaction.atomic
def set_retention(*, project: Project, actor: Actor, takes_used: bool, **days: int | None) -> Retention:
    """Keep things for so many days from now on; the sweeper deletes what is older."""
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    row = of(project)
    before = _audit_data(row)
    for name in DAYS:
        setattr(row, name, days[name])
    row.takes_used = takes_used
    if row.pk and _audit_data(row) == before:
        return row
    row.set_by = actor.user
    row.save()
    actor.record(
        project=project,
        action="trajectories.set_retention",
        subject=f"project {project.slug}",
        before=before,
        after=_audit_data(row),
    )
    return row


def _audit_data(row: Retention) -> dict[str, Any]:
    return {name: getattr(row, name) for name in (*DAYS, "takes_used")}


# What would go


def doomed(row: Retention) -> Doomed:
    """Count what this setting, saved or not, would delete at once."""
    now = timezone.now()
    found = Doomed(
        bodies=_counted(_old_bodies(row, now)),
        quarantined=_counted(_old_quarantined(row, now)),
        batches=_counted(_old_batches(row, now)),
    )
    aged = {source: _old_trajectories(row, source, now) for source in BY_SOURCE if getattr(row, BY_SOURCE[source])}
    for source, rows in aged.items():
        found.trajectories[source] = _counted(_unused(row, rows))
        if not row.takes_used:
            found.decided += _counted(rows.filter(DECIDED))
            found.tasked += _counted(rows.filter(~DECIDED & TASKED).distinct())
            found.measured += _counted(rows.filter(~DECIDED & ~TASKED & MEASURED))
    return found


def _counted(rows: QuerySet[Any]) -> int:
    return rows.order_by()[: COUNTED_UP_TO + 1].count()


def _old_bodies(row: Retention, now: datetime) -> QuerySet[Body]:
    return Body.objects.filter(project=row.project, received_at__lt=now - timedelta(days=row.bodies_days))


def _old_quarantined(row: Retention, now: datetime) -> QuerySet[Quarantined]:
    return Quarantined.objects.filter(project=row.project, received_at__lt=now - timedelta(days=row.quarantine_days))


def _old_batches(row: Retention, now: datetime) -> QuerySet[Batch]:
    """Ledger rows, but for those of which something is still in quarantine."""
    if row.ledger_days is None:
        return Batch.objects.none()
    until = now - timedelta(days=row.ledger_days)
    return Batch.objects.filter(project=row.project, received_at__lt=until, quarantined=None)


def _old_trajectories(row: Retention, source: str, now: datetime) -> QuerySet[Trajectory]:
    until = now - timedelta(days=getattr(row, BY_SOURCE[Source(source)]))
    return Trajectory.objects.filter(project=row.project, source=source, received_at__lt=until, changed_at__lt=until)


def _unused(row: Retention, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
    return rows if row.takes_used else rows.exclude(DECIDED | TASKED | MEASURED)


# Deleting


def sweep() -> None:
    """Delete what is too old: files that were sent and never imported, calls of the gateway that could not be
    recorded, and then, a bounded while for each project, what it keeps no longer."""
    try:
        uploads.sweep()
        days = dict(Retention.objects.values_list("project", "quarantine_days"))
        journal.forget_old(lambda project: timedelta(days=days.get(project, Retention().quarantine_days)))
    except OSError:
        log.exception("old files could not be deleted; it is tried again")
    for project in Project.objects.order_by("pk"):
        try:
            gone = expire(project)
        except Exception:
            log.exception("what is too old in project %s could not be deleted; it is tried again", project.slug)
        else:
            if gone:
                log.info("project %s: deleted for their age: %s", project.slug, dict(gone))
    known_values.forget()


def expire(project: Project, now: datetime | None = None) -> Counter[str]:
    """Delete what the project keeps no longer, in batches that commit one by one. Returns how many of what."""
    row, now = of(project), now or timezone.now()
    until = time.monotonic() + SWEEP_S
    gone: Counter[str] = Counter()

    def repeat(what: str, step: Callable[[], int]) -> None:
        while time.monotonic() < until and (count := step()):
            gone[what] += count

    repeat("raw requests", lambda: _delete(_old_bodies(row, now), BODIES_AT_ONCE))
    repeat("quarantined", lambda: _delete(_old_quarantined(row, now), ROWS_AT_ONCE))
    repeat("rows of the ledger", lambda: _delete(_old_batches(row, now), ROWS_AT_ONCE))
    for source in BY_SOURCE:
        if getattr(row, BY_SOURCE[source]):
            repeat("trajectories", lambda source=source: _erase_some(row, source, now))  # type: ignore[misc]
    gone += forget_agents(project, now)
    if gone["trajectories"] and row.set_by is not None:
        Actor(row.set_by, "retention").record(
            project=project,
            action="trajectories.expire",
            subject=f"{gone['trajectories']} trajectories",
            **_audit_data(row),
        )
    return gone


def forget_agents(project: Project, now: datetime) -> Counter[str]:
    """Delete agents that telemetry has named and that nothing speaks of any more.

    A part of a trajectory that does not say whose it is goes under its service's name until the part comes that does.
    Whoever stores something of such an agent at this very moment is told to send it again, and makes it anew.
    """
    named = Agent.objects.filter(IS_SEEN, project=project, live=None, created_at__lt=now - NAMED_FOR)
    unused = named.filter(~Exists(Trajectory.objects.filter(agent=OuterRef("pk"))))
    gone: Counter[str] = Counter()
    for key in unused.values_list("pk", flat=True):
        with transaction.atomic():
            gone["agents"] += forget_agent(key)
    return +gone


def _delete(rows: QuerySet[Any], limit: int) -> int:
    with transaction.atomic():
        keys = list(rows.select_for_update(skip_locked=True, of=("self",)).values_list("pk", flat=True)[:limit])
        rows.model._default_manager.filter(pk__in=keys)._raw_delete(connection.alias)
    return len(keys)


def _erase_some(row: Retention, source: str, now: datetime) -> int:
    with transaction.atomic():
        aged = _unused(row, _old_trajectories(row, source, now)).order_by("id")
        rows = list(aged.select_for_update(of=("self",), skip_locked=True)[:TRAJECTORIES_AT_ONCE])
        if rows:
            erase(row.project, rows)
    return len(rows)
