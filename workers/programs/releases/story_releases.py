"""The story after an approval: a version is let out by steps to customers who call it through the gateway.

Nothing here moves an arm, counts a session or ends a ramp: customers come, and the judge and the watch, which run in
beat, see how it goes. What is told of it afterwards is read from their rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

import urllib3

from flywheel.accounts.models import ApiKey, Project
from flywheel.accounts.project_settings import api_keys
from flywheel.agents.models import Agent, SplitUnit, Version
from flywheel.agents.registration import make_version
from flywheel.agents.version_content import VersionContent
from flywheel.agents.weights import served_weights
from flywheel.core.evidence.ramp.ramp_plan import WHOLE, Plan, Stage, with_buckets
from flywheel.evals.models import EvalRun
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.models import Recurrence
from flywheel.promotions.candidacy import propose
from flywheel.promotions.claims.promotion_claims import better_buckets
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import ramp_evidence, ramp_moves
from flywheel.promotions.turns import stations, turn_bounds
from workers.programs import story_playback
from workers.programs.story_playback import SEED, approver, oracle, wait_until
from workers.reference import story
from workers.reference.gateway_customers import Application, come

PLAN: Final = Plan(stages=(Stage(2500, 20, 0), Stage(5000, 60, 0)), quiet_s=2, wait_s=120)
"""Short, since its customers come all at once: a team's would last for hours."""
MOST: Final = 600
"""Customers who come while something is waited for, at most."""
AHEAD: Final = 64
"""Sessions that wait for the judge, or trajectories for the detectors, from which on nobody else comes."""
LATE_S: Final = 60.0
"""How long after the last of them the judge may still come to an end."""
Sessions = Iterator[Sequence[story.Request]]


def customers_from(first: int) -> Sessions:
    """The requests of one customer after the other, for ever."""
    for number in count(first):
        yield story.newcomer(number, SEED)


@contextmanager
def application(project: Project, endpoint: str, *, tools: Sequence[dict[str, Any]] = ()) -> Iterator[Application]:
    """The customers' application, with a key of its own that is revoked afterwards."""
    actor = oracle(project)
    key, text = ApiKey.make(project, "the story's application", ["gateway", "ingest"], actor.user)
    try:
        yield Application(endpoint, text, tools=tools)
    finally:
        api_keys.revoke(key=key, actor=actor)  # what it has sent names it


def plan_for(candidate: Candidate, plan: Plan = PLAN) -> Plan:
    """The plan with a signal for each category that the comparison calls better."""
    better = better_buckets(candidate)
    return with_buckets(plan, better) if better else plan


def begin(candidate: Candidate, reason: str, plan: Plan | None = None, *, override: bool = False) -> Ramp:
    """Have the approver let it out by steps."""
    candidate.agent.refresh_from_db()
    for version in (candidate.baseline, candidate.version):
        load(version)
    return ramp_moves.begin(
        candidate=candidate,
        plan=plan or plan_for(candidate),
        actor=approver(candidate.project),
        reason=reason,
        generation=candidate.agent.generation,
        override=override,
    )


def load(version: Version) -> None:
    """Have weights that are served here loaded before customers ask them, as one does before a release: on a busy
    machine those who ask first would get errors meanwhile, which count against the version."""
    at = served_weights.server_of(version)
    if at is None:
        return
    asked = {"model": served_weights.name_of(version), "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    headers = {"Authorization": f"Bearer {at.token}"}

    def answers() -> bool:
        reply = urllib3.request("POST", f"{at.url}/v1/chat/completions", json=asked, headers=headers, timeout=60)
        return reply.status == 200

    wait_until(answers, 120, f"the weights of {version} are loaded")


def follow(ramp: Ramp, customers: Application, sessions: Sessions, most: int = MOST) -> Ramp:
    """Let customers come once the judge is there, until the ramp is over; returns it as it is then. Where that takes
    more than so many of them, the approver stops it."""
    wait_until(lambda: _now(ramp).state != Ramp.State.WAITING, 300, f"the judge has seen {ramp}")
    awaited = SplitUnit.objects.filter(split=ramp.split_id, frozen_at=None)
    come(
        customers,
        islice(sessions, most),
        is_over=lambda: not _now(ramp).is_open,
        is_ahead=lambda: awaited.count() >= AHEAD,
    )
    try:
        wait_until(lambda: not _now(ramp).is_open, LATE_S, f"{ramp} is over")
    except story_playback.StoryFailed:
        row = _now(ramp)
        reason = f"nothing was shown in {most} customers' sessions"
        ramp_moves.stop(ramp=row, actor=approver(row.agent.project), reason=reason, generation=row.generation)
    return _now(ramp)


def result_of(ramp: Ramp) -> dict[str, Any]:
    """The result of a ramp, from its rows. A wealth of w is a p-value of 1/w that holds whenever it is looked at."""
    found = ramp_evidence.evidence(ramp)
    changes = list(ramp.changes.order_by("id"))
    nearest = found.signals[0]
    difference = found.difference
    return {
        "version": str(ramp.candidate.version),
        "state": ramp.state,
        "shares": [change.share / WHOLE for change in changes],
        "sessions": {"live": found.live.final, "candidate": found.candidate.final},
        "failed": {"live": found.live.failure_rate, "candidate": found.candidate.failure_rate},
        "difference": None
        if difference is None
        else {"mean": difference.mean, "low": difference.low, "high": difference.high},
        "not_worse_by": {"margin": ramp.rules.margin, "wealth": found.proof, "p": _p(found.proof)},
        "nearest_signal": {
            "name": nearest.key,
            "wealth": nearest.wealth,
            "bound": nearest.bound,
            "p": _p(nearest.wealth),
        },
        "because": changes[-1].reason if changes else "",
        "seconds": round((changes[-1].at - ramp.created_at).total_seconds(), 1) if changes else None,
    }


# The worse version ----------------------------------------------------------------------------------------------------


def at_temperature(parent: Version, temperature: float, note: str) -> Version:
    """A version that differs in its sampling alone."""
    return _like(parent, note, sampling={**parent.sampling, "temperature": temperature})


def behind(parent: Version, base_url: str, model: str, note: str = "the same weights, on a server") -> Version:
    """A version that is asked at another server."""
    endpoint = {"kind": "openai", "base_url": base_url, "model": model}
    return _like(parent, note, endpoint=endpoint, weights=None, adapter=None)


def _like(parent: Version, note: str, **changes: Any) -> Version:
    content = replace(VersionContent.of(parent), **changes)
    actor = oracle(parent.agent.project)
    return make_version(agent=parent.agent, actor=actor, content=content, parent=parent, note=note)[0]


def put_forward(version: Version, baseline: EvalRun, samples: int = 1) -> Candidate:
    """The version as a candidate against this eval of what is live, once its suites have run too."""
    evaluated = story_playback.evaluate(version, baseline.task_set, samples)
    candidate = propose(version_eval=evaluated, baseline_eval=baseline, actor=oracle(baseline.project))
    story_playback.stands(candidate)
    return candidate


# The world changes ----------------------------------------------------------------------------------------------------


def recurs(agent: Agent, customers: Application, sessions: Sessions, most: int = MOST) -> Recurrence | None:
    """Let customers come until the watch of what is live opens a bucket again; None where so many do not show it."""
    agent.refresh_from_db()  # the ramps that were followed have moved what is live
    rows = Recurrence.objects.filter(project=agent.project, version=agent.live).select_related("version__agent")
    before = rows.count()
    unread = agent.project.trajectories.filter(version=agent.live).filter(story_playback.UNREAD)
    come(
        customers,
        islice(sessions, most),
        is_over=lambda: rows.count() > before,
        is_ahead=lambda: unread.count() >= AHEAD,
    )
    try:
        wait_until(lambda: rows.count() > before, LATE_S, "a bucket comes back")
    except story_playback.StoryFailed:
        return None
    return rows.order_by("pk")[before]


def came_back(found: Recurrence) -> dict[str, Any]:
    """The watch's findings, the bucket's state now, and whether it stands in the draft of the agent's next turn."""
    life = bucket_lifecycle.of(found.project, found.bucket)
    *path, (_, bound) = found.path
    return {
        "bucket": found.bucket,
        "version": str(found.version),
        "state": str(life.state),
        "answer": found.get_answer_display(),
        "claim": found.claim,
        "found": found.failed,
        "sessions": found.sessions,
        "evidence": path[-1][1] if path else None,
        "bound": bound,
        "trajectories": len(found.trajectories),
        "in_next_turn": stations.came_back(turn_bounds.present(found.version.agent)).filter(pk=found.pk).exists(),
    }


def _now(ramp: Ramp) -> Ramp:
    rows = Ramp.objects.select_related("agent__project", "candidate__version__agent", "split")
    return rows.get(pk=ramp.pk)


def _p(wealth: float) -> float:
    return min(1.0, 1 / wealth) if wealth > 0 else 1.0
