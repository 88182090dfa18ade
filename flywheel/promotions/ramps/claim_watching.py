"""The watch after a promotion: does what was mended stay mended in the traffic that the live version answers?

The claims are the promotion's (`promotion_claims`). Evidence against each is summed up session by session
(`claim_watch`); all claims of a promotion together alarm falsely after 20,000 sessions on average at the soonest.

A bucket that breaks its claim is opened again, not confirmed yet. Unsafe actions and server errors bring the version
before back where the gate's policy says so, and where what this installation knows the version to have answered breaks
the claim by itself: anybody who may send traces can report a version. It is not causal: the traffic may have changed.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import F, Min, Q
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import NoticeEvent, Project
from flywheel.accounts.notices import notify
from flywheel.agents.models import Agent, Split, SplitUnit
from flywheel.agents.splits.assignment import Arm
from flywheel.core.detectors import DETECTORS
from flywheel.core.detectors.standard_buckets import name_of
from flywheel.core.evidence.gate import decision
from flywheel.core.evidence.ramp.ramp_plan import BUCKET, SIGNALS
from flywheel.core.evidence.statistics.sequential.claim_watch import ClaimWatch, bound
from flywheel.core.text.number_words import percent
from flywheel.edge.refusals import Refused
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.models import DetectorSetting, Recurrence
from flywheel.failures.models.recurrences import BOUND
from flywheel.failures.queues import intake
from flywheel.promotions import live_version
from flywheel.promotions.claims.session_results import (
    COLUMNS,
    SURE,
    Calls,
    Read,
    buckets_of,
    calls_of,
    kinds_of,
    parts_of,
)
from flywheel.promotions.models import Promotion, Ramp, Watch, WatchedSession
from flywheel.promotions.ramps import ramp_units
from flywheel.trajectories.models import Source, Trajectory

log = logging.getLogger(__name__)

QUIET = timedelta(seconds=120)
"""How long a session must be silent to count as over; after a ramp it is as the ramp's plan says."""
WINDOW = timedelta(hours=1)
"""What changed so long before `Watch.read_to` is looked at once more: somebody may have been storing it still."""
KEEP = timedelta(days=1)
"""How long the row of a session is kept at the least."""
SESSIONS: Final = 1000
"""Read in one look."""
KEPT: Final = 10_000
"""Of the newest sessions that remain as rows."""
SHOWN: Final = 50
"""Trajectories, and points of the path, that a recurrence keeps."""
KNOWN: Final = "known:"
"""Begins the key under which `Watch.sums` has a signal's second sum, of what is known to be the version's answer."""
REPORTED: Final = "sessions that only report the version broke it"

_NAMES = """
SELECT name FROM (
    SELECT coalesce(nullif(session_id, ''), trace_id) AS name, max(changed_at) AS last,
           bool_and(coalesce(detected_at >= changed_at, false)) AS is_read
    FROM trajectories_trajectory
    WHERE version_id = %(version)s AND source = %(source)s AND changed_at >= %(since)s AND started_at >= %(began)s
    GROUP BY 1
) AS session
WHERE is_read AND last < %(quiet)s
  AND NOT EXISTS (
    SELECT 1 FROM promotions_watchedsession AS row WHERE row.watch_id = %(watch)s AND row.name = session.name)
  AND NOT EXISTS (
    SELECT 1 FROM (
        SELECT max(changed_at) OVER arrived AS last, lead(received_at) OVER arrived AS next
        FROM trajectories_trajectory AS part
        WHERE part.session_id = session.name AND project_id = %(project)s AND version_id = %(version)s
          AND source = %(source)s AND started_at >= %(began)s
        WINDOW arrived AS (ORDER BY received_at, id)
    ) AS earlier
    WHERE earlier.last < %(forgotten)s AND earlier.next - earlier.last > %(silence)s)
ORDER BY last, name LIMIT %(most)s
"""
_TRAJECTORIES = f"""
SELECT session.name, {COLUMNS} FROM unnest(%(names)s::text[]) AS session (name)
CROSS JOIN LATERAL (
    SELECT * FROM trajectories_trajectory
    WHERE project_id = %(project)s AND version_id = %(version)s AND source = %(source)s AND started_at >= %(began)s
      AND (session_id = session.name OR (session_id = '' AND trace_id = session.name))
    ORDER BY id LIMIT %(each)s
) AS found
"""  # noqa: S608 only names of columns


@dataclass(frozen=True, slots=True)
class Session:
    """A session that is over and read."""

    name: str
    parts: dict[str, float | None]
    """By signal the part that went wrong."""
    own_parts: dict[str, float | None]
    """The same of the trajectories that the version is known to have answered; None where there are none. Of the
    signals that may bring the version before back."""


def look() -> None:
    """Begin the watches of what went live, and read what their versions have answered since."""
    for agent in Agent.objects.exclude(live=None).select_related("live__agent", "project"):
        try:
            watch = _watch_of(agent)
            if watch is not None:
                follow(watch)
        except Exception:
            log.exception("what the live version of %s does could not be watched", agent)
    Watch.objects.filter(state=Watch.State.RUNNING).exclude(
        promotion__after_id__in=Agent.objects.exclude(live=None).values("live")
    ).update(state=Watch.State.OVER)


def follow(watch: Watch) -> None:
    """Read the sessions that are over since, and act where a claim breaks."""
    with transaction.atomic():
        rows = Watch.objects.select_related(
            "promotion__after__agent", "promotion__before", "promotion__approved_by", "agent__project"
        )
        row = rows.select_for_update(of=("self",), no_key=True, skip_locked=True).filter(pk=watch.pk).first()
        if row is None or row.state != Watch.State.RUNNING:
            return
        _begin_anew_where_detectors_changed(row)
        # Asked before: what detectors read meanwhile holds it until the next look.
        settled = _settled_to(row)
        found = _read(row)
        broken = _take_in(row, found)
        _forget(row, len(found))
        if len(found) < SESSIONS:
            row.read_to = max(row.read_to, settled)
        row.save()
        for signal in broken:
            if signal.startswith(BUCKET):
                _reopen(row, signal)
    # Also those that a look before broke and did not come to act upon.
    for signal, found_of in row.broken.items():
        if not signal.startswith(BUCKET) and not found_of["did"]:
            _bring_back(row, signal)


def _watch_of(agent: Agent) -> Watch | None:
    """The watch of the promotion by which its version is live; none where that was a rollback or the first, or while
    its ramp goes on with a holdback, whose test is causal."""
    newest = agent.promotions.order_by("-generation").select_related("candidate", "before").first()
    if newest is None or not newest.claims or newest.after_id != agent.live_id:
        return None
    if Ramp.objects.filter(promotion=newest, state__in=Ramp.OPEN).exists():
        return None
    known = Watch.objects.filter(promotion=newest).first()
    return known or Watch.objects.create(
        promotion=newest,
        agent=agent,
        claims=newest.claims,
        detector_settings=_detectors(agent.project),
        read_to=max(newest.created_at, timezone.now() - WINDOW),
    )


def _detectors(project: Project) -> dict[str, list[Any]]:
    """By detector whether it is on in the project, and the bucket that it proposes."""
    said = {row.detector: [row.is_on, row.proposes] for row in DetectorSetting.objects.filter(project=project)}
    return {name: said.get(name, [detector.is_on, detector.bucket]) for name, detector in DETECTORS.items()}


def _begin_anew_where_detectors_changed(watch: Watch) -> None:
    """Count from 0 where another detector looks than before, and say so: the numbers would tell of two things."""
    before, present = watch.detector_settings, _detectors(watch.agent.project)
    if present == before:
        return
    watch.detector_settings = present
    if not before:  # it began with a Flywheel that did not keep them
        return
    changed = sorted(name for name in present | before if present.get(name) != before.get(name))
    Actor(watch.promotion.approved_by, through=f"the {watch}").record(
        project=watch.agent.project,
        action="promotions.watch_anew",
        subject=f"{watch.agent} → {watch.promotion.after}",
        reason=f"changed: {', '.join(changed)}",
        sessions=watch.sessions,
    )
    watch.changed_detectors, watch.sums, watch.sessions, watch.began_at = changed, {}, 0, timezone.now()


def _settled_to(watch: Watch) -> datetime:
    """The time before which all that changed is over and read by the detectors: nothing of it is awaited."""
    unread = Trajectory.objects.filter(
        Q(detected_at=None) | Q(detected_at__lt=F("changed_at")),
        project=watch.agent.project_id,
        version=watch.promotion.after_id,
        source=Source.PRODUCTION,
        changed_at__gte=watch.read_to - WINDOW,
        started_at__gte=watch.promotion.created_at,
    )
    oldest = unread.aggregate(at=Min("changed_at"))["at"]
    quiet = timezone.now() - _quiet_of(watch.promotion)
    return quiet if oldest is None else min(oldest, quiet)


def _forgotten_to(watch: Watch) -> datetime:
    """Rows from before then may be gone. A session that was silent then was counted, and does not count again."""
    return min(watch.read_to - WINDOW, timezone.now() - KEEP)


def _read(watch: Watch) -> list[Session]:
    silence = _quiet_of(watch.promotion)
    asked: dict[str, Any] = {
        "project": watch.agent.project_id,
        "version": watch.promotion.after_id,
        "source": Source.PRODUCTION,
        "began": watch.promotion.created_at,
        "since": watch.read_to - WINDOW,
        "silence": silence,
        "quiet": timezone.now() - silence,
        "forgotten": _forgotten_to(watch),
        "watch": watch.pk,
        "most": SESSIONS,
        "each": ramp_units.TRAJECTORIES,
    }
    with connection.cursor() as cursor:
        cursor.execute(_NAMES, asked)
        names = [name for (name,) in cursor]
        if not names:
            return []
        cursor.execute(_TRAJECTORIES, asked | {"names": names})
        rows: dict[str, list[Read]] = defaultdict(list)
        for name, *row in cursor:
            rows[name].append(Read(*row))
    read = [row for some in rows.values() for row in some]
    calls, found = calls_of(watch.agent.name, read), buckets_of(watch.agent.project_id, read)
    own = _own_rows(watch, rows, calls)
    signals = list(watch.claims)
    harms = [signal for signal in signals if not signal.startswith(BUCKET)]
    return [
        Session(
            name, parts_of(signals, {}, rows[name], calls, found), parts_of(harms, {}, own.get(name, ()), calls, found)
        )
        for name in names
    ]


def _own_rows(
    watch: Watch, rows: Mapping[str, Sequence[Read]], calls: Mapping[int, Calls]
) -> Mapping[str, Sequence[Read]]:
    """Those that the version is known to have answered: through the gateway it alone, or as a token of their session
    shows."""
    version = watch.promotion.after
    own = [ramp_units.answerer_of(watch.agent, version)]
    splits = Split.objects.filter(Q(candidate=version) | Q(live=version), agent=watch.agent)
    arms: list[tuple[Split, Arm]] = [
        (split, "candidate" if split.candidate_id == version.pk else "live") for split in splits
    ]

    def is_own(name: str, row: Read) -> bool:
        if row.pk in calls:
            return calls[row.pk].answered_by == own
        return any(ramp_units.is_given(row, split, SplitUnit.Kind.SESSION, name, arm) for split, arm in arms)

    return {name: [row for row in some if is_own(name, row)] for name, some in rows.items()}


def _quiet_of(promotion: Promotion) -> timedelta:
    return timedelta(seconds=promotion.ramp.rules.quiet_s) if hasattr(promotion, "ramp") else QUIET


def _take_in(watch: Watch, found: Sequence[Session]) -> list[str]:
    """The signals whose claims break in these sessions."""
    limit, broken = bound(len(watch.claims)), []
    made = []
    for session in found:
        watch.sessions += 1
        evidence = {}
        for signal in watch.claims:
            if signal not in watch.broken and (part := session.parts.get(signal)) is not None:
                evidence[signal] = _bet(watch, signal, signal, part)
                if evidence[signal] >= limit:
                    watch.broken[signal] = _breach(watch, evidence[signal])
                    broken.append(signal)
            # Also once reported sessions broke it, lest whoever sends such keeps known ones from doing so.
            is_open = not watch.broken.get(signal, {}).get("known")
            if is_open and (part := session.own_parts.get(signal)) is not None:
                after = _bet(watch, signal, KNOWN + signal, part)
                if after >= limit:
                    watch.broken[signal] = _breach(watch, after) | {"known": True}
        made.append(
            WatchedSession(
                watch=watch, name=session.name, number=watch.sessions, parts=session.parts, evidence=evidence
            )
        )
    WatchedSession.objects.bulk_create(made, ignore_conflicts=True)
    return broken


def _bet(watch: Watch, signal: str, key: str, part: float) -> float:
    """Add a session's part to the sum under this key; returns the evidence against the signal's claim after it."""
    before = [tuple(watch.sums[key])] if key in watch.sums else []
    _, after = ClaimWatch(watch.claims[signal], *before).follow([part])
    watch.sums[key] = list(after.sums)
    return after.evidence


def _breach(watch: Watch, evidence: float) -> dict[str, Any]:
    return {"session": watch.sessions, "evidence": evidence, "at": timezone.now().isoformat(), "did": ""}


def _forget(watch: Watch, count: int) -> None:
    """Delete old sessions now and then, but none that could be read again."""
    if watch.sessions // SESSIONS != (watch.sessions - count) // SESSIONS:
        old = watch.rows.filter(at__lt=_forgotten_to(watch))
        old.filter(Q(number__lte=watch.sessions - KEPT) | Q(at__lt=watch.began_at)).delete()


def _reopen(watch: Watch, signal: str) -> None:
    """Keep what was seen, and open the bucket."""
    key = signal.removeprefix(BUCKET)
    rows = list(watch.rows.filter(at__gte=watch.began_at).order_by("-id")[:2000])
    since = next((place for place, row in enumerate(rows) if row.evidence.get(signal, 0.0) < 1.0), len(rows))
    grown = rows[: max(1, since)]
    sessions = [row.name for row in rows if row.parts.get(signal)]
    in_session = Q(session_id__in=sessions) | Q(session_id="", trace_id__in=sessions)
    its = Trajectory.objects.filter(in_session, version=watch.promotion.after_id)
    kinds = kinds_of(watch.agent.project_id, key)
    said = Q(proposals__bucket__in=kinds, proposals__own_score__gte=SURE)
    showing = its.filter(said | Q(label_bucket__in=kinds)).order_by("-started_at").distinct()
    path = [[row.number, round(row.evidence[signal], 3)] for row in reversed(rows) if signal in row.evidence]
    step = max(1, len(path) // SHOWN)
    recurrence = Recurrence.objects.create(
        project=watch.agent.project,
        bucket=key,
        version=watch.promotion.after,
        claim=watch.claims[signal],
        sessions=watch.sessions,
        failed=fmean(float(row.parts.get(signal) or 0.0) for row in grown),
        path=[*path[::-1][::step][::-1], [BOUND, bound(len(watch.claims))]],
        trajectories=list(dict.fromkeys(showing.values_list("pk", flat=True)[:SHOWN])),
    )
    bucket_lifecycle.reopen_by_watch(recurrence)
    intake.put_first(recurrence)
    project = watch.agent.project
    notify(
        project=project,
        event=NoticeEvent.RECURRENCE,
        subject=f"bucket {key}",
        title=f"{name_of(key, every(project)).capitalize()} is back with {recurrence.version}",
        text=f"Claimed in at most {percent(recurrence.claim)} of the sessions, found in {percent(recurrence.failed)} "
        "of the last ones.",
        url=reverse("failures:bucket", args=[project.slug, key]),
    )
    watch.broken[signal]["did"] = "reopened"
    watch.save(update_fields=["broken"])


def _bring_back(watch: Watch, signal: str) -> None:
    """Make the version before live again where the policy says so and what is known to be the version's answer broke
    the claim; else it is for a person to do."""
    promotion = watch.promotion
    newest = watch.agent.project.policies.order_by("-version").first()
    may = decision.Policy.from_dict(newest.rules if newest else {}).watch_rolls_back
    did, why = "proposed", ""
    if may and promotion.before is not None and not watch.broken[signal].get("known"):
        did, why = f"proposed: {REPORTED}", f", since {REPORTED}, which does not show that it answered them"
    elif may and promotion.before is not None:
        words = (
            f"{signal} in more than {percent(watch.claims[signal])} of the sessions, after {watch.sessions:,} of them"
        )
        actor = Actor(promotion.approved_by, through=f"the {watch}")
        try:
            live_version.roll_back(
                agent=watch.agent, to=promotion.before, actor=actor, generation=promotion.generation, reason=words
            )
            did = "rolled back"
        except Refused as refused:
            did = f"not rolled back: {refused}"
    watch.broken[signal]["did"] = did
    project, version = watch.agent.project, promotion.after
    with transaction.atomic():  # told once
        Watch.objects.filter(pk=watch.pk).update(broken=watch.broken)
        notify(
            project=project,
            event=NoticeEvent.CLAIM_BROKEN,
            subject=str(watch),
            title=f"{version} shows more {SIGNALS[signal].label} than it claimed",
            text=f"Claimed in at most {percent(watch.claims[signal])} of the sessions; "
            f"broken after {watch.sessions:,}. "
            + (
                f"{promotion.before} is live again."
                if did == "rolled back"
                else f"Nothing was rolled back{why}: decide."
            ),
            url=reverse("promotions:index", args=[project.slug]),
        )
