"""The wheel at a glance: how production does, what fails, what waits for whom."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q
from django.db.models.functions import TruncDay
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import NoticeEvent, Permission, Project, User
from flywheel.accounts.notices.inbox import inbox
from flywheel.agents.models import Agent
from flywheel.agents.pages.success_chart import marks_of
from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate, proportion
from flywheel.edge.jobs import State
from flywheel.environments.models import Task
from flywheel.evals.models import RewardAudit
from flywheel.promotions.models import Candidate, Promotion, Ramp
from flywheel.promotions.pages.ramp_context import open_ramps
from flywheel.promotions.pages.wheel.wheel_turn import DOERS, wheel_of
from flywheel.promotions.suite_standings import live_results
from flywheel.promotions.turns.turn_bounds import present
from flywheel.training.models import TrainingRun
from flywheel.trajectories.annotations.project_buckets import every
from flywheel.trajectories.models import Label, Outcome, Quarantined, Source, Trajectory

PERIODS = {"1": "day", "7": "7 days", "14": "14 days", "30": "30 days", "90": "90 days"}
CLUSTERED_UP_TO = 20_000
"""Beyond so many trajectories the interval of a version's success is by trajectory, not by session: reading more
sessions would make the page wait, and at that size both are narrow."""

WAITING: dict[str, tuple[str, str, str, Permission | None]] = {
    "comments": ("unread mention", "unread mentions", "notices:index", None),
    "proposals": ("proposal to review", "proposals to review", "failures:queue", Permission.REVIEW),
    "failures": (
        "failure not yet turned into a test",
        "failures not yet turned into tests",
        "environments:index",
        Permission.BUILD,
    ),
    "tasks": (
        "task with a failed proof",
        "tasks with a failed proof",
        "environments:index",
        Permission.BUILD,
    ),
    "audits": ("reward audit to finish", "reward audits to finish", "evals:reward_audits", Permission.REVIEW),
    "quarantine": (
        "span or line in quarantine",
        "spans and lines in quarantine",
        "trajectories:quarantine",
        Permission.BUILD,
    ),
    "runs": ("training run that failed", "training runs that failed", "training:index", Permission.TRAIN),
    "ramps": ("ramp on hold", "ramps on hold", "promotions:ramps", Permission.APPROVE),
    "candidates": ("candidate to decide", "candidates to decide", "promotions:index", Permission.APPROVE),
}
"""One of what waits, several, the page where it is decided, and who may; None is whoever looks."""

UNREAD_MENTIONS = f"?unread=1&event={NoticeEvent.MENTION}"


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    days = request.GET.get("days", "14")
    days = days if days in PERIODS else "14"
    since = timezone.now() - timedelta(days=int(days))
    came = Trajectory.objects.filter(project=request.project, started_at__gte=since)
    produced = came.exclude(source__in=Source.ATTEMPTS)
    counts = waiting_counts(request.project, request.actor.user)
    context: dict[str, Any] = {
        "days": days,
        "periods": PERIODS,
        "is_empty": not Trajectory.objects.filter(project=request.project).exists(),
        "live": live(request.project, since),
        "success_chart": success_chart(request.project, produced),
        "buckets": buckets(request.project, produced),
        "waiting": waiting(request.project, request.permissions, counts),
    }
    turn = present(context["live"][0]["agent"]) if context["live"] else None
    context["stages"], context["act"] = wheel_of(request.project, turn, request.permissions, counts)
    context["turn"] = turn
    return render(request, "overview/index.html", context)


def live(project: Project, since: datetime) -> list[dict[str, Any]]:
    """Every agent, live ones first, and how its live version does in production; None where none was reported."""
    found = []
    agents = Agent.objects.filter(project=project).select_related("live__agent").order_by("name")
    results = live_results(agents)
    ramps = {ramp.agent_id: ramp for ramp in open_ramps(project)}
    for agent in sorted(agents, key=lambda each: each.live is None):
        move = agent.promotions.order_by("-generation").first()
        rows = Trajectory.objects.filter(project=project, version=agent.live, started_at__gte=since)
        success = success_of(rows.exclude(source__in=Source.ATTEMPTS)) if agent.live else None
        found.append(
            {
                "agent": agent,
                "since": move,
                "success": success,
                "suites": results[agent.pk],
                "ramp": ramps.get(agent.pk),
            }
        )
    return found


def success_of(rows: Any) -> Estimate:
    """Share of trajectories with outcome success among those with an outcome, clustered by session."""
    outcomes = list(rows.exclude(outcome=None).values_list("outcome", "session_id", "trace_id")[: CLUSTERED_UP_TO + 1])
    if len(outcomes) <= CLUSTERED_UP_TO:
        return clustered_rate(
            [float(outcome == Outcome.SUCCESS) for outcome, _, _ in outcomes],
            [session or trace for _, session, trace in outcomes],
        )
    counts = rows.aggregate(n=Count("pk", filter=~Q(outcome=None)), good=Count("pk", filter=Q(outcome=Outcome.SUCCESS)))
    return proportion(counts["good"], counts["n"])


def success_chart(project: Project, produced: Any) -> dict[str, Any]:
    """Success by day, one line a version, with a mark where another version went live."""
    days = (
        produced.exclude(outcome=None)
        .annotate(day=TruncDay("started_at"))
        .values("day", "version__agent__name", "version__number")
        .annotate(n=Count("pk"), good=Count("pk", filter=Q(outcome=Outcome.SUCCESS)))
        .order_by("version__agent__name", "version__number", "day")
    )
    lines: dict[str, dict[str, Any]] = {}
    live_now = set(Agent.objects.filter(project=project, live__isnull=False).values_list("name", "live__number"))
    for row in days:
        key = (row["version__agent__name"], row["version__number"])
        name = f"{key[0]}@{key[1]}" if key[1] else "unknown version"
        role = "candidate" if key in live_now else "baseline"
        line = lines.setdefault(name, {"name": name, "role": role, "x": [], "y": [], "low": [], "high": []})
        share = proportion(row["good"], row["n"])
        line["x"].append(row["day"].date().isoformat())
        for part, value in (("y", share.mean), ("low", share.low), ("high", share.high)):
            line[part].append(None if value is None else round(100 * value, 2))
    moves = Promotion.objects.filter(agent__project=project).exclude(kind=Promotion.Kind.FIRST)
    moves = moves.select_related("after").order_by("pk")
    return {
        "kind": "line",
        "key": "success",
        "title": "Success in production by day",
        "x": {"title": "day"},
        "y": {"title": "success", "unit": "%"},
        "series": list(lines.values())[-6:],
        "marks": marks_of(moves),
        "note": "trajectories whose outcome was reported; the band is their 95% Wilson interval",
    }


def buckets(project: Project, produced: Any) -> list[dict[str, Any]]:
    """Failures by category, of those that nobody closed: confirmed by people, and proposed and still waiting."""
    confirmed = _by(produced.filter(label=Label.FAILURE), "label_bucket")
    proposed = _by(produced.filter(label="", proposed_bucket__gt=""), "proposed_bucket")
    total = produced.count()
    trend = _trend(produced)
    known = every(project)
    closed = {row.bucket for row in project.bucket_lives.all() if row.is_closed}
    rows: list[dict[str, Any]] = [
        {
            "key": key,
            "label": known[key].label if key in known else key,
            "confirmed": confirmed.get(key, 0),
            "proposed": proposed.get(key, 0),
            "share": (confirmed.get(key, 0) + proposed.get(key, 0)) / total if total else None,
            "trend": trend.get(key, []),
        }
        for key in (confirmed.keys() | proposed.keys()) - closed
    ]
    most = max((row["confirmed"] + row["proposed"] for row in rows), default=0)
    return sorted(({**row, "most": most} for row in rows), key=lambda row: -(row["confirmed"] + row["proposed"]))


def waiting_counts(project: Project, user: User) -> dict[str, int]:
    """Count what waits, by the keys of ``WAITING``."""
    produced = Trajectory.objects.filter(project=project).exclude(source__in=Source.ATTEMPTS)
    return {
        "comments": inbox(project, user).filter(read_at=None, notice__event=NoticeEvent.MENTION).count(),
        "proposals": produced.filter(label="", proposed_bucket__gt="").count(),
        "failures": produced.filter(label=Label.FAILURE, tasks=None, failures__current=True).count(),
        "tasks": Task.objects.filter(project=project, is_proved=False, retired_at=None).count(),
        "audits": RewardAudit.objects.filter(project=project, finished_at=None).count(),
        "quarantine": Quarantined.objects.filter(project=project, state=Quarantined.State.OPEN).count(),
        "runs": TrainingRun.objects.filter(project=project, state=State.FAILED).count(),
        "ramps": Ramp.objects.filter(agent__project=project, state=Ramp.State.HOLDING).count(),
        "candidates": Candidate.objects.filter(project=project, state=Candidate.State.WAITING).count(),
    }


def waiting(project: Project, permissions: Iterable[str], counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """List the work that waits, and for whom; nothing that waits for nobody."""
    items = []
    for name, (one, many, page, permission) in WAITING.items():
        if count := counts[name]:
            is_yours = permission is None or permission in permissions
            url = reverse(page, args=[project.slug]) + (UNREAD_MENTIONS if page == "notices:index" else "")
            what, who = one if count == 1 else many, DOERS[permission] if permission else "you"
            items.append({"count": count, "what": what, "who": who, "url": url, "is_yours": is_yours})
    return sorted(items, key=lambda item: not item["is_yours"])


def _by(rows: Any, field: str) -> dict[str, int]:
    return dict(rows.values_list(field).annotate(n=Count("pk")))


def _trend(produced: Any) -> dict[str, list[int]]:
    """Failures a day by bucket, the confirmed one where there is one, else the proposed."""
    counts: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    days = set()
    for field, rows in (
        ("label_bucket", produced.filter(label=Label.FAILURE)),
        ("proposed_bucket", produced.filter(label="", proposed_bucket__gt="")),
    ):
        by_day = rows.annotate(day=TruncDay("started_at")).values_list(field, "day").annotate(n=Count("pk"))
        for bucket, day, n in by_day:
            days.add(day)
            counts[bucket][day] += n
    return {bucket: [found[day] for day in sorted(days)] for bucket, found in counts.items()}
