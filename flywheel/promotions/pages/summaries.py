"""Contexts of this room's pages."""

from typing import Any

from django.urls import reverse

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent
from flywheel.core.evidence.gate.decision import Policy
from flywheel.environments.ledger import openings
from flywheel.evals.pages.comparison_context import comparison_context
from flywheel.promotions import sealed_comparison, suite_standings
from flywheel.promotions.candidacy import never_events
from flywheel.promotions.claims.promotion_claims import claim_words, shown_claims, signal_name
from flywheel.promotions.models import Candidate, Promotion, Watch
from flywheel.promotions.pages.headline import headline
from flywheel.training.models import FixTrial

DEFAULT_RULES: dict[str, Any] = Policy().to_dict()
"""What a project decides by before anybody has written a policy down."""


def live_agents(project: Project) -> list[dict[str, Any]]:
    """Every agent, since when it is live as it is, and the versions that it could be rolled back to, newest first."""
    agents = list(Agent.objects.filter(project=project).select_related("live__agent").order_by("name"))
    moves = list(
        Promotion.objects.filter(agent__in=agents)
        .select_related("after__agent", "approved_by", "late_reason")
        .order_by("-generation")
    )
    watches = {row.agent_id: row for row in Watch.objects.filter(agent__in=agents, state=Watch.State.RUNNING)}
    shown = []
    for agent in agents:
        mine = [move for move in moves if move.agent_id == agent.pk]
        earlier = {move.after_id: move.after for move in mine if move.after_id != agent.live_id}
        watch = _watched(project, watches.get(agent.pk))
        shown.append(
            {"agent": agent, "since": mine[0] if mine else None, "earlier": list(earlier.values()), "watch": watch}
        )
    return shown


def _watched(project: Project, watch: Watch | None) -> dict[str, Any] | None:
    """The claims of what is live in words, and those that broke."""
    if watch is None:
        return None
    return {
        "sessions": watch.sessions,
        "began_at": watch.began_at,
        "changed": watch.changed_detectors,
        "claims": claim_words(project, watch.claims),
        "broken": [
            f"{signal_name(project, signal)}, {found['did'] or 'found'}" for signal, found in watch.broken.items()
        ],
    }


def promotion_log(project: Project, limit: int) -> list[Promotion]:
    """The latest moves of the project's agents, newest first."""
    rows = Promotion.objects.filter(agent__project=project).select_related(
        "agent", "before__agent", "after__agent", "approved_by", "proposed_by", "candidate", "late_reason__by"
    )
    return list(rows.order_by("-id")[:limit])


def candidate_context(row: Candidate, project: Project) -> dict[str, Any]:
    """The evidence of a candidate, from its stored report."""
    decision = row.report["decision"]
    comparison = row.report["comparison"]
    standings, final = _standings(row), sealed_comparison.final(row)
    said = headline(row, standings["stands"], final)
    return {
        **comparison_context(row.version_eval, row.baseline_eval, comparison),
        "lineage": lineage(row, project),
        "decision": decision,
        "checks": decision["checks"],
        "success": comparison["differences"]["success"],
        "baseline_success": comparison["baseline"]["success"],
        "candidate_success": comparison["candidate"]["success"],
        "familiarity": [
            (name, row.report["familiarity"]["baseline"].get(name), estimate)
            for name, estimate in row.report["familiarity"]["candidate"].items()
        ],
        "learnt": row.report.get("contamination", {"datasets": [], "flagged": 0, "without": None}),
        "rewards": row.report.get("rewards", []),
        "openings": openings(row.version_eval.task_set),
        "never_events": never_events(row),
        "claims": claim_words(project, shown_claims(row, standings["stands"])),
        **standings,
        "final": final,
        "headline": said,
        "is_against": said.tone != "ok",
        "is_stale": row.state not in (Candidate.State.PROMOTED, Candidate.State.REJECTED, Candidate.State.VOID)
        and row.agent.live_id != row.baseline_id,
    }


def _standings(row: Candidate) -> dict[str, Any]:
    """Return a candidate's standing at its agent's suites: now while it waits, as decided where it was promoted."""
    promotion = row.promotions.first() if row.state == Candidate.State.PROMOTED else None
    stands = suite_standings.standings_of(row) if promotion is None else []
    kept = [{**told, "label": suite_standings.STATES[told["state"]]} for told in promotion.suites] if promotion else []
    return {
        **suite_standings.context(
            stands, row.version_eval_id, row.baseline_eval_id, is_open=row.state == Candidate.State.WAITING
        ),
        "kept": kept,
    }


def lineage(row: Candidate, project: Project) -> list[dict[str, Any]]:
    """From the task set to the promotion, each a link."""
    task_set = row.version_eval.task_set
    chain: list[tuple[Any, ...]] = [
        (f"set {task_set} (held-out)", "environments:task_set", task_set.name, task_set.version),
        (f"version {row.version.number}", "agents:version", row.agent.name, row.version.number),
        (f"eval {row.version_eval_id}", "evals:run", row.version_eval_id),
        (str(row), "promotions:candidate", row.pk),
    ]
    if row.run_id:
        chain.insert(1, (f"run {row.run}", "training:run", row.run_id))
    elif trial := FixTrial.objects.filter(evaluation=row.version_eval, baseline=row.baseline_eval).first():
        chain.insert(1, (str(trial), "training:fix_trial", trial.pk))
    return [
        {"label": label, "url": reverse(page, args=[project.slug, *of]), "current": page == "promotions:candidate"}
        for label, page, *of in chain
    ]
