"""For programs: audit a reward, and ask where it stands. Verdicts stay hidden until an audit is finished here too."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.references import find_version
from flywheel.core.evidence.reward_audit_rule import LEAST, MOST
from flywheel.edge.answers import ListQuery, Number, Ref, TraceId, cut_page, page_of, paginate
from flywheel.edge.refusals import Missing, Stale, at_field, one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.environments.versions.reward_recipes import find_reward_recipe
from flywheel.evals.models import EvalRun, RewardAudit, RewardAuditItem
from flywheel.evals.reward_audits import audit_lifecycle as verbs
from flywheel.evals.reward_audits.learnable_tasks import Solved, solve_rates
from flywheel.evals.reward_audits.reward_standing import Judged, Standing, standing

router = Router(tags=["reward audits"])


class AuditIn(Body):
    eval: int
    """Id of a finished eval on train tasks."""
    reward: str = ""
    """`name@version` of a reward recipe that judges by parts of its own and has scored the eval (`POST
    /evals/{id}/rescores`); if empty, the verifier is audited."""
    size: int = Field(verbs.SIZE, description=f"Outputs to draw, from {LEAST} to {MOST}; for a renewal from 24.")
    seed: int = 1
    """Seed that draws the outputs."""
    renewal: bool = False
    """A small audit, of at least 24 outputs, for a version that was trained from one whose audit under the same
    verifier is green. It counts within pipelines."""


class AuditOut(Schema):
    id: int
    eval: int = Field(alias="run_id")
    version: Ref = Field(alias="run.version")
    environment_version: Ref = Field(alias="run.task_set.environment_version")
    reward_recipe: Ref | None = Field(alias="recipe")
    """The recipe that is audited; null if the verifier itself is."""
    verifier_digest: str
    """Of the verifier, or of the recipe upon it."""
    seed: int
    outputs: int = Field(alias="size")
    judged: int = Field(alias="said")
    """Outputs judged so far."""
    renews: int | None = Field(alias="renews_id")
    """Id of the audit that it renews as a small one; null for an audit that stands by itself."""
    is_green: bool | None
    """Null until the audit is finished."""
    result: dict[str, Any]
    """Agreement, kappa, false passes and false failures with their intervals, unscored outputs, and `faults`, the
    reasons why the audit is not green. Empty until the audit is finished."""
    created_by: Ref
    created_at: datetime
    finished_by: Ref | None
    finished_at: datetime | None


class AuditItemOut(Schema):
    place: int
    task: Number = Field(alias="result.task")
    trace_id: TraceId | None = Field(alias="result.trajectory")
    """Trace id of the rollout. The rollout contains its verdict: to judge blind, read only its steps."""
    answer: str
    """`pass`, `fail` or `cannot_tell`; empty until it is judged."""
    note: str
    judged_by: Ref | None
    verdict: bool | None
    """Whether the verifier, or the recipe, passed it; null until the audit is finished."""
    score: float | None
    """Null until the audit is finished."""
    parts: dict[str, float | None]
    """Scores of its parts; empty until the audit is finished."""
    reason: str
    """Its reason; empty until the audit is finished."""
    verifier_score: float | None
    """What the verifier itself scored; null until the audit is finished."""

    @staticmethod
    def resolve_verdict(row: RewardAuditItem) -> bool | None:
        return row.verdict.success if row.audit.finished_at else None

    @staticmethod
    def resolve_score(row: RewardAuditItem) -> float | None:
        return row.verdict.score if row.audit.finished_at else None

    @staticmethod
    def resolve_parts(row: RewardAuditItem) -> dict[str, float | None]:
        return dict(row.verdict.parts) if row.audit.finished_at else {}

    @staticmethod
    def resolve_reason(row: RewardAuditItem) -> str:
        return row.verdict.reason if row.audit.finished_at else ""

    @staticmethod
    def resolve_verifier_score(row: RewardAuditItem) -> float | None:
        return row.result.score if row.audit.finished_at else None


class ItemPage(Schema):
    items: list[AuditItemOut]
    next: int | None
    """`after` for the next page; null on the last page."""


class AuditItemQuery(Schema):
    after: int = 0
    """`next` of the previous page; 0 for the first page."""
    limit: int = Field(50, ge=1, le=MOST)
    """Items per page."""


class AnswerIn(Body):
    answer: str
    """`pass`, `fail` or `cannot_tell`."""
    note: str = ""


class OverrideIn(Body):
    reason: str


class RewardOut(Schema):
    state: str
    """`green`, `red`, `overridden`, `begun`, `stale` or `none`."""
    may_launch: bool = Field(alias="allows")
    """Whether a run may learn from this reward."""
    words: str
    audit: int | None
    """Id of the audit that `state` is about."""
    override: dict[str, Any] | None
    """Who overrode the audit, when and why."""

    @staticmethod
    def resolve_audit(row: Standing) -> int | None:
        return row.audit.pk if row.audit else None

    @staticmethod
    def resolve_override(row: Standing) -> dict[str, Any] | None:
        made = row.override
        return {"by": str(made.created_by), "reason": made.reason, "at": made.created_at} if made else None


class SolvedOut(Schema):
    task: int = Field(alias="number")
    passed: int
    scored: int = Field(alias="rate.n")
    unscored: int = Field(alias="rate.unscored")
    rate: float | None = Field(alias="rate.mean")
    low: float | None = Field(alias="rate.low")
    high: float | None = Field(alias="rate.high")
    teaches: bool = Field(alias="is_learnable")
    """Whether 10% to 80% of attempts pass, so that a group of them differs enough to learn from."""

    @staticmethod
    def resolve_passed(row: Solved) -> int:
        return round((row.rate.mean or 0) * row.rate.n)


@router.get("/reward-audits", response=page_of(AuditOut), auth=Key(Scope.READ))
def list_reward_audits(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List reward audits, newest first."""
    return paginate(verbs.rows(keyed(request).project), query)


@router.post("/reward-audits", response={200: AuditOut, 201: AuditOut}, auth=Key(Scope.BUILD))
def begin_reward_audit(request: HttpRequest, body: AuditIn) -> Status[RewardAudit]:
    """Draw outputs of an eval for people to judge: 201 for a new audit, 200 with the existing one if it is not
    finished yet."""
    runs = EvalRun.objects.select_related("project", "version__agent", "task_set__environment_version")
    with at_field("eval"):
        run = one(runs.filter(project=keyed(request).project), pk=body.eval)
    recipe = find_reward_recipe(keyed(request).project, body.reward) if body.reward else None
    audit, made = verbs.begin(
        run=run, actor=keyed(request).actor, recipe=recipe, size=body.size, seed=body.seed, is_renewal=body.renewal
    )
    return Status(201 if made else 200, get_reward_audit(request, audit.pk))


@router.get("/reward-audits/{audit_id}", response=AuditOut, auth=Key(Scope.READ))
def get_reward_audit(request: HttpRequest, audit_id: int) -> RewardAudit:
    """Return one audit with its progress, and its result once it is finished."""
    return one(verbs.rows(keyed(request).project), pk=audit_id)


@router.get("/reward-audits/{audit_id}/items", response=ItemPage, auth=Key(Scope.READ))
def list_audited_outputs(request: HttpRequest, audit_id: int, asked: Query[AuditItemQuery]) -> dict[str, Any]:
    """List the outputs in the order in which people see them, with the verdicts once the audit is finished."""
    rows = _items(get_reward_audit(request, audit_id)).filter(place__gt=asked.after)
    return cut_page(rows, asked.limit, "place")


@router.get("/reward-audits/{audit_id}/tasks", response=list[SolvedOut], auth=Key(Scope.READ))
def list_audited_tasks(request: HttpRequest, audit_id: int) -> list[Solved]:
    """List how often the version solved each task of the eval, least solved first."""
    return solve_rates(get_reward_audit(request, audit_id).run)


@router.post("/reward-audits/{audit_id}/items/{place}", response=AuditItemOut, auth=Key(Scope.REVIEW))
def judge_audited_output(request: HttpRequest, audit_id: int, place: int, body: AnswerIn) -> RewardAuditItem:
    """Record whether one output did what was requested. You can change your own answer until the audit is finished. 409
    if someone else has judged it, or the audit is finished."""
    audit = get_reward_audit(request, audit_id)
    item = _items(audit).filter(place=place).first()
    if item is None:
        raise Missing(f"{audit} has no output {place}")
    if not verbs.judge(item=item, actor=keyed(request).actor, answer=body.answer, note=body.note):
        raise Stale(f"{item} was judged by somebody else, or the audit is finished")
    return _items(audit).get(pk=item.pk)


@router.post("/reward-audits/{audit_id}/undo", response=AuditItemOut, auth=Key(Scope.REVIEW))
def undo_audit_judgement(request: HttpRequest, audit_id: int) -> RewardAuditItem:
    """Take back the latest answer of the key's creator. 409 if there is none, or the audit is finished."""
    audit = get_reward_audit(request, audit_id)
    item = verbs.undo(audit=audit, actor=keyed(request).actor)
    if item is None:
        raise Stale("nothing to undo")
    return _items(audit).get(pk=item.pk)


@router.post("/reward-audits/{audit_id}/finish", response=AuditOut, auth=Key(Scope.REVIEW))
def finish_reward_audit(request: HttpRequest, audit_id: int) -> RewardAudit:
    """Finish the audit: reveal the verdicts and decide whether it is green. It can't be changed afterwards. 409 while
    outputs are not judged."""
    verbs.finish(audit=get_reward_audit(request, audit_id), actor=keyed(request).actor)
    return get_reward_audit(request, audit_id)


class RewardQuery(Schema):
    reward: str = ""
    """`name@version` of a reward recipe; if empty, the verifier itself."""


@router.get("/rewards/{version}/{task_set}", response=RewardOut, auth=Key(Scope.READ))
def get_reward_standing(request: HttpRequest, version: str, task_set: str, asked: Query[RewardQuery]) -> Standing:
    """Return whether a run of `agent@number` on `set@version` may learn from the verifier's verdicts, or from a reward
    recipe, and if not, why."""
    return standing(_judged(request, version, task_set, asked.reward))


@router.post("/rewards/{version}/{task_set}/override", response=RewardOut, auth=Key(Scope.APPROVE))
def override_reward_audit(
    request: HttpRequest, version: str, task_set: str, body: OverrideIn, asked: Query[RewardQuery]
) -> Standing:
    """Allow training although no audit is green. The reason is recorded with every run that uses this override."""
    judged = _judged(request, version, task_set, asked.reward)
    verbs.override(judged=judged, actor=keyed(request).actor, reason=body.reason)
    return standing(judged)


def _judged(request: HttpRequest, version: str, task_set: str, reward: str) -> Judged:
    project = keyed(request).project
    recipe = find_reward_recipe(project, reward) if reward else None
    return Judged.now(find_version(project, version), find_task_set(project, task_set), recipe)


def _items(audit: RewardAudit) -> QuerySet[RewardAuditItem]:
    return audit.items.select_related("audit", "result__task", "result__trajectory", "rescored", "judged_by").order_by(
        "place"
    )
