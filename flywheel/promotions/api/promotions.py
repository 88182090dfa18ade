"""Candidates and promotions for programs: what a click does, a script can do."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, KeyRequest, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent, Version
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.schemas import Body, Schema
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.rollout_looks import note_look
from flywheel.promotions import live_version, sealed_comparison
from flywheel.promotions.api.suites import ToldOut
from flywheel.promotions.candidacy import call_harmless, never_events, propose
from flywheel.promotions.claims.promotion_claims import shown_claims
from flywheel.promotions.models import Candidate, Promotion, Watch

router = Router(tags=["promotions"])


class CandidateOut(Schema):
    id: int
    agent: Ref
    version: Ref
    baseline: Ref
    """The version that it is compared with."""
    verdict: str
    """The gate's verdict: `eligible`, `not_shown`, `regressed` or `invalid`."""
    state: str
    """`waiting`, `ramping`, `promoted`, `rejected`, `taken_back`, `stopped` or `void` (another version went live
    meanwhile)."""
    words: str
    """The gate's verdict in a sentence."""
    policy: int = Field(alias="policy.version")
    """Version of the gate policy that judged it."""
    generation: int = Field(alias="agent.generation")
    """The agent's current generation; send it back with a decision."""
    proposed_by: Ref
    created_at: datetime

    @staticmethod
    def resolve_words(row: Candidate) -> str:
        return str(row.report["decision"]["words"])


class FinalOut(Schema):
    """A candidate's result on the sealed part of its set."""

    state: str
    """`unopened`, `unfinished`, `failed`, `void`, `eligible` (confirmed), `not_shown`, `regressed` or `invalid`."""
    label: str
    words: str
    tasks: int
    sources: int
    """Number of sources of these tasks."""
    opening: int
    """Which use of the sealed split this is, or would be; counted from 1."""
    alpha: float
    """Significance level of this comparison."""
    held_out: dict[str, Any]
    """Difference in success on the held-out tasks."""
    gain: dict[str, Any] | None
    """Difference in success on the sealed tasks; null until both versions have run."""
    version_eval: int | None
    """Id of the candidate's eval on the sealed tasks."""
    baseline_eval: int | None
    """Id of the baseline's eval on the sealed tasks."""


class CandidateWithReport(CandidateOut):
    report: dict[str, Any]
    """Everything that the gate judged: each check with its numbers and its verdict."""
    report_digest: str
    """SHA-256 of the report."""
    sealed: FinalOut | None
    """Null if its set has no sealed tasks."""
    claims: dict[str, float]
    """By signal, the share of the sessions that goes wrong at most once it is live: as promoted, or while it can be
    approved, as a promotion would claim now. A ramp measures them anew."""

    @staticmethod
    def resolve_claims(row: Candidate) -> dict[str, float]:
        return shown_claims(row)

    @staticmethod
    def resolve_sealed(row: Candidate) -> dict[str, Any] | None:
        return sealed_comparison.final(row)


class ProposeIn(Body):
    candidate_eval: int
    """Id of the candidate's finished eval."""
    baseline_eval: int
    """Id of the baseline's finished eval on the same task set."""


class DecisionIn(Body):
    reason: str
    """Recorded permanently with the promotion."""
    generation: int
    """The `generation` that you saw on the candidate."""
    override: bool = False
    """Promote against the gate. The promotion is marked as such."""
    again: int | None = None
    """Id of the version's last ramp, required if it had one."""


class HarmlessIn(Body):
    result: int
    """`result` of an entry in the candidate's never events."""
    reason: str
    """Why it did no harm."""


class NeverEventOut(Schema):
    result: int = Field(alias="pk")
    task: Ref
    sample: int
    trajectory: str | None
    """Trace id of the attempt; null if it is not stored."""
    reason: str
    """The verifier's reason."""
    harmless: str | None
    """Why a person marked it as harmless; null if nobody did."""

    @staticmethod
    def resolve_trajectory(row: Result) -> str | None:
        return row.trajectory.trace_id if row.trajectory else None

    @staticmethod
    def resolve_harmless(row: Result) -> str | None:
        return row.harmless.reason if hasattr(row, "harmless") else None


class RejectIn(Body):
    reason: str
    """Recorded permanently with the candidate."""


class RollBackIn(Body):
    version: int
    """Number of a version that was live before."""
    reason: str = ""
    """You can add it later with `give_reason`."""
    generation: int
    """The agent's current `generation`."""


class ReasonIn(Body):
    reason: str


class BrokenClaimOut(Schema):
    signal: str
    """`unsafe`, `errors`, or `bucket:` with a category's key."""
    session: int
    """Number of the watched session after which it broke."""
    evidence: float
    at: datetime
    did: str
    """What followed, in words."""


class WatchOut(Schema):
    """The watch of a promotion's claims on the traffic of its version."""

    state: str
    """`running`, or `over` once another version is live."""
    began_at: datetime
    changed_detectors: list[str]
    """Detectors whose change made it begin anew at `began_at`; empty if it began with the promotion."""
    sessions: int
    """Watched since `began_at`."""
    claims: dict[str, float]
    """By signal the largest share of sessions that the promotion claims, 0 to 1."""
    broken: list[BrokenClaimOut]

    @staticmethod
    def resolve_broken(row: Watch) -> list[dict[str, Any]]:
        return [{"signal": signal, **found} for signal, found in row.broken.items()]


class PromotionOut(Schema):
    id: int
    agent: Ref
    kind: str
    """`first`, `promote` or `rollback`."""
    generation: int
    """The agent's generation after it."""
    before: Ref | None
    """The version that was live before; null for the first one."""
    after: Ref
    """The version that is live after it."""
    candidate_id: int | None
    proposed_by: Ref | None
    approved_by: Ref
    against_the_gate: bool
    """Whether an approver overrode the gate."""
    again_id: int | None
    """The version's earlier ramp that the approval names; null if it had none."""
    suites: list[ToldOut]
    """Results on the agent's regression suites at that time; empty for a rollback or a first version."""
    sealed: FinalOut | None
    """Result on the sealed tasks at that time; null if the set had none."""
    claims: dict[str, float]
    """By signal, such as `unsafe` or `bucket:wrong_tool`, the share of the sessions that goes wrong at most while the
    version is live; empty for a rollback or a first version."""
    watch: WatchOut | None
    """Null while it is not watched: a rollback, a first version, or one with a holdback."""
    reason: str = Field(alias="why")
    """Empty for a rollback without a reason so far."""
    unserved: str
    """For a new rollback, why no server runs the version; empty if one does."""
    created_at: datetime

    @staticmethod
    def resolve_watch(row: Promotion) -> Watch | None:
        return getattr(row, "watch", None)

    @staticmethod
    def resolve_sealed(row: Promotion) -> dict[str, Any] | None:
        return row.sealed or None


@router.get("/candidates", response=page_of(CandidateOut), auth=Key(Scope.READ))
def list_candidates(request: HttpRequest, query: Query[ListQuery]) -> Any:
    """List candidates, newest first, without their reports."""
    return paginate(_candidates(keyed(request)), query)


@router.post("/candidates", response=CandidateWithReport, auth=Key(Scope.TRAIN))
def propose_candidate(request: HttpRequest, body: ProposeIn) -> Any:
    """Create a candidate from two finished evals of one task set, the candidate's and the baseline's."""
    asked = keyed(request)
    runs = EvalRun.objects.filter(project=asked.project)
    row = propose(
        version_eval=get_object_or_404(runs, pk=body.candidate_eval),
        baseline_eval=get_object_or_404(runs, pk=body.baseline_eval),
        actor=asked.actor,
    )
    return _with_report(asked, row.pk)


@router.get("/candidates/{pk}", response=CandidateWithReport, auth=Key(Scope.READ))
def get_candidate(request: HttpRequest, pk: int) -> Any:
    """Return one candidate with its full report. This counts as a look at the rollouts of both evals."""
    return _with_report(keyed(request), pk)


@router.post("/candidates/{pk}/sealed", response=CandidateWithReport, auth=Key(Scope.APPROVE))
def open_sealed(request: HttpRequest, pk: int) -> Any:
    """Run both versions on the sealed tasks. Each candidate that uses them makes the test stricter for the next one;
    the same candidate runs only once."""
    asked = keyed(request)
    sealed_comparison.open_sealed(candidate=_with_report(asked, pk), actor=asked.actor)
    return _with_report(asked, pk)


@router.get("/candidates/{pk}/never-events", response=list[NeverEventOut], auth=Key(Scope.READ))
def list_never_events(request: HttpRequest, pk: int) -> Any:
    """List the candidate's attempts that did something irreversible that nobody requested."""
    return list(never_events(_with_report(keyed(request), pk)))


@router.post("/candidates/{pk}/harmless", response=CandidateWithReport, auth=Key(Scope.APPROVE))
def call_attempt_harmless(request: HttpRequest, pk: int, body: HarmlessIn) -> Any:
    """Mark a never event as harmless; the gate judges the candidate again."""
    asked = keyed(request)
    row = _with_report(asked, pk)
    call_harmless(candidate=row, result=body.result, actor=asked.actor, reason=body.reason)
    return _with_report(asked, pk)


@router.post("/candidates/{pk}/approve", response=PromotionOut, auth=Key(Scope.APPROVE))
def approve_candidate(request: HttpRequest, pk: int, body: DecisionIn) -> Any:
    """Approve and promote the candidate. 409 if the live version changed since `generation`, 422 if the promotion is
    refused."""
    asked = keyed(request)
    row = get_object_or_404(_candidates(asked), pk=pk)
    return live_version.promote(candidate=row, actor=asked.actor, **body.dict())


@router.post("/candidates/{pk}/reject", response=CandidateOut, auth=Key(Scope.APPROVE))
def reject_candidate(request: HttpRequest, pk: int, body: RejectIn) -> Any:
    """Reject the candidate with a reason. 422 if it is no longer pending."""
    asked = keyed(request)
    row = get_object_or_404(_candidates(asked), pk=pk)
    live_version.reject(candidate=row, actor=asked.actor, reason=body.reason)
    return _candidates(asked).get(pk=pk)


@router.get("/promotions", response=page_of(PromotionOut), auth=Key(Scope.READ))
def list_promotions(request: HttpRequest, query: Query[ListQuery]) -> Any:
    """List every move of the live version in all agents, newest first: first versions, promotions and rollbacks."""
    rows = Promotion.objects.filter(agent__project=keyed(request).project).select_related(
        "agent", "before__agent", "after__agent", "proposed_by", "approved_by", "late_reason", "watch"
    )
    return paginate(rows, query)


@router.post("/agents/{name}/roll-back", response=PromotionOut, auth=Key(Scope.APPROVE))
def roll_back(request: HttpRequest, name: str, body: RollBackIn) -> Any:
    """Make an earlier live version live again. 409 if the live version changed since `generation`. A server that
    does not respond does not stop the rollback; `unserved` then gives the reason."""
    asked = keyed(request)
    agent = get_object_or_404(Agent, project=asked.project, name=name)
    to = get_object_or_404(Version.objects.select_related("agent"), agent=agent, number=body.version)
    return live_version.roll_back(agent=agent, to=to, actor=asked.actor, reason=body.reason, generation=body.generation)


@router.post("/agents/{name}/moves/{int:generation}/reason", response=PromotionOut, auth=Key(Scope.APPROVE))
def give_reason(request: HttpRequest, name: str, generation: int, body: ReasonIn) -> Any:
    """Add the reason for a rollback that was made without one. 409 if it already has one."""
    asked = keyed(request)
    rows = Promotion.objects.filter(agent__project=asked.project, agent__name=name)
    promotion = get_object_or_404(rows, generation=generation)
    live_version.give_reason(promotion=promotion, actor=asked.actor, reason=body.reason)
    return rows.select_related("late_reason").get(pk=promotion.pk)


def _with_report(request: KeyRequest, pk: int) -> Candidate:
    """Its report tells how each task went: who reads it looks at both evals."""
    rows = _candidates(request).select_related(
        "version_eval__task_set__environment_version", "version_eval__version", "baseline_eval__task_set"
    )
    row: Candidate = get_object_or_404(rows, pk=pk)
    for run in (row.version_eval, row.baseline_eval):
        note_look(run, request.actor)
    return row


def _candidates(request: KeyRequest) -> Any:
    return Candidate.objects.filter(project=request.project).select_related(
        "agent", "version__agent", "baseline__agent", "policy", "proposed_by"
    )
