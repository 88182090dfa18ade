"""Candidates and promotions for programs: what a click does, a script can do."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from flywheel.accounts.access import Key, KeyRequest, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent, Version
from flywheel.edge.paging import BadCursor, keyset
from flywheel.edge.schemas import Body
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.rollout_looks import note_look
from flywheel.promotions.api.suites import ToldOut
from flywheel.promotions.candidacy import CannotPropose, propose
from flywheel.promotions.lineage import Lineage, lineage_of
from flywheel.promotions.live_version import CannotPromote, MovedMeanwhile, promote, reject, roll_back
from flywheel.promotions.models import Candidate, Promotion
from flywheel.promotions.sealed_comparison import CannotOpen, final, open_sealed
from flywheel.trajectories.models import Trajectory

router = Router(tags=["promotions"])


class ListQuery(Schema):
    limit: int = Field(50, ge=1, le=200)
    cursor: str = ""


class CandidateOut(Schema):
    id: int
    agent: str
    version: str
    baseline: str
    verdict: str
    state: str
    words: str
    """The gate's verdict in a sentence."""
    policy: int
    generation: int
    """The agent's generation now; send it back with a decision."""
    proposed_by: str
    created_at: datetime

    @staticmethod
    def resolve_agent(row: Candidate) -> str:
        return row.agent.name

    @staticmethod
    def resolve_version(row: Candidate) -> str:
        return str(row.version)

    @staticmethod
    def resolve_baseline(row: Candidate) -> str:
        return str(row.baseline)

    @staticmethod
    def resolve_words(row: Candidate) -> str:
        return str(row.report["decision"]["words"])

    @staticmethod
    def resolve_policy(row: Candidate) -> int:
        return row.policy.version

    @staticmethod
    def resolve_generation(row: Candidate) -> int:
        return row.agent.generation

    @staticmethod
    def resolve_proposed_by(row: Candidate) -> str:
        return row.proposed_by.username


class FinalOut(Schema):
    """A candidate at the sealed part of its set."""

    state: str
    """`unopened`, `unfinished`, `failed`, `void`, `eligible` (confirmed), `not_shown`, `regressed` or `invalid`."""
    label: str
    words: str
    tasks: int
    sources: int
    opening: int
    """Which opening of the sealed part this is, or would be."""
    alpha: float
    """The chance of error that it spends."""
    held_out: dict[str, Any]
    """The difference of success by which it was chosen."""
    gain: dict[str, Any] | None
    """The same of the sealed tasks; null until both versions were asked."""
    version_eval: int | None
    baseline_eval: int | None


class CandidateWithReport(CandidateOut):
    report: dict[str, Any]
    report_digest: str
    sealed: FinalOut | None
    """Null where its set has no sealed part."""

    @staticmethod
    def resolve_sealed(row: Candidate) -> dict[str, Any] | None:
        return final(row)


class CandidatePage(Schema):
    items: list[CandidateOut]
    next: str | None


class ProposeIn(Body):
    candidate_eval: int
    baseline_eval: int


class DecisionIn(Body):
    reason: str
    generation: int
    override: bool = False


class RejectIn(Body):
    reason: str


class RollBackIn(Body):
    version: int
    """Number of a version that was live before."""
    reason: str
    generation: int


class PromotionOut(Schema):
    id: int
    agent: str
    kind: str
    generation: int
    before: str | None
    after: str
    candidate_id: int | None
    proposed_by: str | None
    approved_by: str
    against_the_gate: bool
    suites: list[ToldOut]
    """How it stood at the agent's regression suites then; of a rollback or a first version none was asked."""
    sealed: FinalOut | None
    """How it stood at the sealed part of its set then; null where that has none."""
    reason: str
    unserved: str
    """Of a rollback that was just made: why no server answers with it, empty where one does."""
    created_at: datetime

    @staticmethod
    def resolve_agent(row: Promotion) -> str:
        return row.agent.name

    @staticmethod
    def resolve_before(row: Promotion) -> str | None:
        return str(row.before) if row.before else None

    @staticmethod
    def resolve_after(row: Promotion) -> str:
        return str(row.after)

    @staticmethod
    def resolve_proposed_by(row: Promotion) -> str | None:
        return row.proposed_by.username if row.proposed_by else None

    @staticmethod
    def resolve_approved_by(row: Promotion) -> str:
        return row.approved_by.username

    @staticmethod
    def resolve_sealed(row: Promotion) -> dict[str, Any] | None:
        return row.sealed or None


class PromotionPage(Schema):
    items: list[PromotionOut]
    next: str | None


@router.get("/candidates", response=CandidatePage, auth=Key(Scope.READ), operation_id="list_candidates")
def list_candidates(request: HttpRequest, page: Query[ListQuery]) -> Any:
    return _page(_candidates(keyed(request)), page)


@router.post("/candidates", response=CandidateWithReport, auth=Key(Scope.TRAIN), operation_id="propose_candidate")
def propose_candidate(request: HttpRequest, body: ProposeIn) -> Any:
    """Put a version forward: two finished evals of one task set, the candidate's and the baseline's."""
    asked = keyed(request)
    runs = EvalRun.objects.filter(project=asked.project)
    try:
        row = propose(
            version_eval=get_object_or_404(runs, pk=body.candidate_eval),
            baseline_eval=get_object_or_404(runs, pk=body.baseline_eval),
            actor=asked.actor,
        )
    except CannotPropose as error:
        raise HttpError(422, str(error)) from error
    return _with_report(asked, row.pk)


@router.get("/candidates/{pk}", response=CandidateWithReport, auth=Key(Scope.READ), operation_id="get_candidate")
def get_candidate(request: HttpRequest, pk: int) -> Any:
    return _with_report(keyed(request), pk)


@router.post(
    "/candidates/{pk}/sealed", response=CandidateWithReport, auth=Key(Scope.APPROVE), operation_id="open_sealed"
)
def open_sealed_part(request: HttpRequest, pk: int) -> Any:
    """Have both versions attempt the sealed tasks. Each candidate that asks them leaves less to be shown to the next;
    the same candidate is asked once."""
    asked = keyed(request)
    try:
        open_sealed(candidate=_with_report(asked, pk), actor=asked.actor)
    except CannotOpen as error:
        raise HttpError(422, str(error)) from error
    return _with_report(asked, pk)


@router.post(
    "/candidates/{pk}/approve", response=PromotionOut, auth=Key(Scope.APPROVE), operation_id="approve_candidate"
)
def approve_candidate(request: HttpRequest, pk: int, body: DecisionIn) -> Any:
    """Approve and promote. 409 when the live version moved since `generation`, 422 when the move is refused."""
    asked = keyed(request)
    row = get_object_or_404(_candidates(asked), pk=pk)
    try:
        return promote(
            candidate=row,
            actor=asked.actor,
            reason=body.reason,
            generation=body.generation,
            override=body.override,
        )
    except CannotPromote as error:
        raise HttpError(_status(error), str(error)) from error


@router.post("/candidates/{pk}/reject", response=CandidateOut, auth=Key(Scope.APPROVE), operation_id="reject_candidate")
def reject_candidate(request: HttpRequest, pk: int, body: RejectIn) -> Any:
    asked = keyed(request)
    row = get_object_or_404(_candidates(asked), pk=pk)
    try:
        reject(candidate=row, actor=asked.actor, reason=body.reason)
    except CannotPromote as error:
        raise HttpError(_status(error), str(error)) from error
    return _candidates(asked).get(pk=pk)


@router.get("/promotions", response=PromotionPage, auth=Key(Scope.READ), operation_id="list_promotions")
def list_promotions(request: HttpRequest, page: Query[ListQuery]) -> Any:
    rows = Promotion.objects.filter(agent__project=keyed(request).project).select_related(
        "agent", "before__agent", "after__agent", "proposed_by", "approved_by"
    )
    return _page(rows, page)


@router.post("/agents/{name}/roll-back", response=PromotionOut, auth=Key(Scope.APPROVE), operation_id="roll_back")
def roll_back_agent(request: HttpRequest, name: str, body: RollBackIn) -> Any:
    """Make an earlier live version live again. 409 when the live version moved since `generation`. A server that does
    not answer does not stop it: `unserved` says so."""
    asked = keyed(request)
    agent = get_object_or_404(Agent, project=asked.project, name=name)
    to = get_object_or_404(Version.objects.select_related("agent"), agent=agent, number=body.version)
    try:
        return roll_back(
            agent=agent,
            to=to,
            actor=asked.actor,
            reason=body.reason,
            generation=body.generation,
        )
    except CannotPromote as error:
        raise HttpError(_status(error), str(error)) from error


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


def _page(rows: Any, query: ListQuery) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=query.cursor, limit=query.limit)
    except BadCursor as error:
        raise HttpError(422, str(error)) from error
    return {"items": page.items, "next": page.next_cursor or None}


def _status(error: CannotPromote) -> int:
    return 409 if isinstance(error, MovedMeanwhile) else 422


class OriginOut(Schema):
    kind: str
    label: str
    url: str
    """Of its page."""
    detail: str


class LineageOut(Schema):
    came_from: list[OriginOut]
    made_of_it: list[OriginOut]
    """At most 20 of each kind, the newest first."""


@router.get("/trajectories/{trace_id}/lineage", response=LineageOut, auth=Key(Scope.READ), operation_id="get_lineage")
def get_lineage(request: HttpRequest, trace_id: str) -> Lineage:
    """Where a trajectory came from, and what was made of it: queues, tasks, evals, datasets, runs, versions."""
    rows = Trajectory.objects.filter(project=keyed(request).project)
    return lineage_of(get_object_or_404(rows.select_related("project", "version__agent"), trace_id=trace_id))
