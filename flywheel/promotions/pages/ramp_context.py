"""Contexts of the pages of ramps."""

from typing import Any, Final
from urllib.parse import urlencode

from django.db.models import Max, QuerySet
from django.urls import reverse

from flywheel.accounts.models import Project
from flywheel.agents.models import Shadow, ShadowCopy, SplitUnit
from flywheel.core.evidence.ramp.ramp_plan import FINISHES, THENS
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import ramp_evidence, ramp_units, ramp_words, self_tests, shadow_comparing
from flywheel.promotions.ramps.ramp_evidence import Evidence
from flywheel.trajectories.ingest.gateway import routing
from flywheel.trajectories.search import grammar

LOG_SHOWN: Final = 100
TESTS_SHOWN: Final = 5
LOWEST: Final = 1e-4
"""A wealth of less than this part of its bound is drawn at the lower edge."""


def ramps_of(project: Project) -> QuerySet[Ramp]:
    """The project's ramps, with all that lists and pages show."""
    return Ramp.objects.filter(agent__project=project).select_related(
        "agent__project",
        "candidate__version__agent",
        "candidate__baseline__agent",
        "split",
        "after",
        "approved_by",
        "promotion",
    )


def open_ramps(project: Project) -> list[Ramp]:
    return list(ramps_of(project).filter(state__in=Ramp.OPEN))


def fingerprint(ramp: Ramp) -> str:
    """Change with all that the page shows, but for sessions that are neither new nor final."""
    newest = ramp.split.units.order_by("-pk").values_list("pk", flat=True).first() or 0
    final = ramp.split.units.aggregate(last=Max("number"))["last"] or 0
    tested = ramp.self_tests.values_list("pk", flat=True).first() or 0
    shadow = Shadow.objects.filter(split=ramp.split_id).values_list("copies", "skipped").first()
    compared = (
        ShadowCopy.objects.filter(split=ramp.split_id).exclude(state=ShadowCopy.State.SENT).count() if shadow else 0
    )
    long = ramp_evidence.going_on(ramp.split)
    return f"{ramp.generation}-{newest}-{final}-{len(ramp.finding)}-{tested}-{shadow}-{compared}-{long}"


def ramp_context(ramp: Ramp, wanted: str = "") -> dict[str, Any]:
    """All that moves on a ramp's page. `wanted` names the signal whose sessions are listed; else it is the one nearest
    to its bound."""
    print_ = fingerprint(ramp)
    numbers = ramp_evidence.evidence(ramp)
    keys = [row.key for row in numbers.signals]
    signal = wanted if wanted in keys else keys[0]
    plan = ramp.rules
    return {
        "ramp": ramp,
        "fingerprint": print_,
        "numbers": numbers,
        "arms": [("live", ramp.candidate.baseline, numbers.live), ("cand", ramp.candidate.version, numbers.candidate)],
        "signal": next(row for row in numbers.signals if row.key == signal),
        "wanted": signal if wanted in keys else "",
        "moved": [
            {"row": row, "address": address_of(ramp, row.unit, row.trace_id)}
            for row in ramp_evidence.moved_most(ramp, signal)
        ],
        "crowded": [
            {"unit": unit, "address": address_of(ramp, unit, "")} for unit in ramp_evidence.crowded(ramp.split)
        ],
        "crowded_from": ramp_evidence.CROWDED,
        "goes_on_minutes": ramp_units.GOES_ON * plan.quiet_s / 60,
        "mixed": sorted(numbers.mixed.items(), key=lambda item: -item[1]),
        "difference": as_estimate(numbers),
        "most_used": ramp_evidence.MOST_USED,
        "chart": wealth_chart(ramp, numbers),
        "problem": routing.problem_of(ramp.split) if ramp.is_open else "",
        "next": ramp_words.next_words(ramp, numbers),
        "changes": list(ramp.changes.select_related("by")[:LOG_SHOWN]),
        "self_tests": list(ramp.self_tests.all()[:TESTS_SHOWN]),
        "test_every": self_tests.EVERY.seconds // 60,
        "plan": plan,
        "following": next(iter(plan.stages[ramp.stage + 1 :]), None),
        "place": ramp.place,
        "shadow": shadow_comparing.numbers(ramp) if plan.shadow else None,
        "then": THENS[plan.shadow.then] if plan.shadow else "",
        "finish": FINISHES[plan.finish],
        "margins": ramp_evidence.margins_of(ramp),
        "limits": [
            (ramp_evidence.label_of(ramp, key), f"{limit:g}", ramp_words.UNITS[key])
            for key, limit in plan.limits.items()
        ],
        "lineage": lineage(ramp),
    }


def address_of(ramp: Ramp, unit: SplitUnit, trace_id: str) -> str:
    """Where the unit's trajectories are: those of its session, else the stored one; empty where there is none."""
    slug = ramp.agent.project.slug
    if unit.kind == SplitUnit.Kind.SESSION:
        asked = urlencode({"q": grammar.term("session", unit.name)})
        return f"{reverse('trajectories:index', args=[slug])}?{asked}"
    return reverse("trajectories:detail", args=[slug, trace_id]) if trace_id else ""


def as_estimate(numbers: Evidence) -> dict[str, Any] | None:
    """The difference as templates show estimates; None before anything was judged."""
    found = numbers.difference
    if found is None:
        return None
    return {
        "mean": found.mean,
        "low": found.low,
        "high": found.high,
        "n": numbers.used,
        "method": "holds however often you look",
        "cause": "one arm has no judged session yet",
    }


def wealth_chart(ramp: Ramp, numbers: Evidence) -> dict[str, Any]:
    """The wealth of each signal over the final sessions, as a part of its bound."""
    path = ramp_evidence.wealth_path(ramp.split)
    at = [number for number, _ in path]
    return {
        "kind": "line",
        "title": "Evidence against the candidate",
        "key": f"ramp-{ramp.pk}",
        "note": "wealth of each signal as a part of its bound; at 1 the candidate is taken back",
        "x": {"title": "final sessions of both arms"},
        "y": {"title": "part of the bound", "log": True, "range": [LOWEST, 3 * max([1.0, *_parts(path, numbers)])]},
        "baseline": 1,
        "baseline_label": "taken back",
        "series": [
            {
                "name": row.label,
                "role": "plain",
                "x": at,
                "y": [max(LOWEST, float(wealth.get(row.key, 1.0)) * row.alpha) for _, wealth in path],
            }
            for row in numbers.signals
        ],
        "empty": "No session is final yet",
    }


def _parts(path: Any, numbers: Evidence) -> list[float]:
    return [float(wealth.get(row.key, 1.0)) * row.alpha for _, wealth in path for row in numbers.signals]


def lineage(ramp: Ramp) -> list[dict[str, Any]]:
    """From the agent to what came of it, each a link."""
    slug, agent, version = ramp.agent.project.slug, ramp.agent.name, ramp.candidate.version
    chain: list[tuple[Any, ...]] = [
        (agent, "agents:agent", agent),
        (f"version {version.number}", "agents:version", agent, version.number),
        (str(ramp.candidate), "promotions:candidate", ramp.candidate_id),
    ]
    if ramp.after_id:
        chain.append((str(ramp.after), "promotions:ramp", ramp.after_id))
    chain.append((str(ramp), "promotions:ramp", ramp.pk))
    return [
        {"label": label, "url": reverse(page, args=[slug, *of]), "current": label == str(ramp)}
        for label, page, *of in chain
    ]


def earlier_ramp(row: Candidate, last: Ramp | None) -> dict[str, Any] | None:
    """The last ramp of a candidate's version with its numbers, and why the version is not live, where the ramp is over;
    else None."""
    if last is None or last.is_open or row.version_id == row.agent.live_id:
        return None
    ramp = ramps_of(row.project).get(pk=last.pk)
    numbers = ramp_evidence.evidence(ramp)
    return {"ramp": ramp, **_end_of(ramp), "numbers": numbers, "difference": as_estimate(numbers)}


def _end_of(ramp: Ramp) -> dict[str, Any]:
    """When the version of a ramp ceased to answer, by whom and why: after one that finished, by a move of the live
    version."""
    moves = ramp.agent.promotions.select_related("approved_by", "late_reason")
    if ramp.state == Ramp.State.FINISHED and ramp.promotion is not None:
        move = moves.filter(generation__gt=ramp.promotion.generation).order_by("generation").first()
        if move is not None:
            return {"at": move.created_at, "by": move.approved_by, "reason": move.why, "move": move}
    change = ramp.changes.select_related("by").first()
    assert change is not None
    return {"at": change.at, "by": change.by, "reason": change.reason, "move": None}
