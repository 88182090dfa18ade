"""Releases by steps, for programs: approve one, read its numbers, move it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, KeyRequest, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent
from flywheel.core.errors import FieldError
from flywheel.core.evidence.ramp.ramp_plan import Holdback, Plan, Shadow
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import Refused
from flywheel.edge.schemas import Body, Schema
from flywheel.promotions.api.promotions import PromotionOut
from flywheel.promotions.models import Candidate, Promotion, Ramp, RampChange, SelfTest
from flywheel.promotions.ramps import ramp_evidence, ramp_moves, ramp_words
from flywheel.promotions.ramps.ramp_proposals import live_traffic, proposed_plan, reach_of

router = Router(tags=["promotions"])
CHANGES = 100
SELF_TESTS = 20
_DEFAULT, _SHADOW, _HOLDBACK = Plan(), Shadow(), Holdback()


class StageIn(Body):
    share: int = Field(strict=True)
    """Sessions of 10,000 that the candidate answers, from 1 to 9999, more than in the stage before: 500 is 5%."""
    sessions: int = 100
    """The least final sessions at this share before the next stage."""
    minutes: float = 60.0
    """The least minutes that the stage lasts."""


class ShadowIn(Body):
    sessions: int = _SHADOW.sessions
    """Compared sessions after which it is over."""
    minutes: float = _SHADOW.minutes
    """Minutes after which it is over at the latest."""
    calls: int = _SHADOW.calls
    """The budget: the most copies of calls. When it is used up, the shadow is over."""
    tokens: int | None = None
    """The most tokens of all copies; null for no limit. Copies under way may pass it."""
    dollars: float | None = None
    """The most dollars of all copies; null for no limit."""
    then: str = _SHADOW.then
    """What follows: `stages` (the first stage begins) or `person` (a person decides)."""


class HoldbackIn(Body):
    share: int = Field(_HOLDBACK.share, strict=True)
    """Sessions of 10,000 that stay with the version before, from 1 to 1000."""
    sessions: int = _HOLDBACK.sessions
    """The least final sessions of both versions before it is over."""
    days: float = _HOLDBACK.days
    """The least days that it lasts."""


class PlanIn(Body):
    stages: list[StageIn] = Field(default_factory=lambda: [StageIn(share=stage.share) for stage in _DEFAULT.stages])
    """From 1 to 10, with rising shares. All sessions come when the ramp finishes."""
    finish: str = _DEFAULT.finish
    """When it goes live for all sessions: `proof` (it is shown not to be worse by the margins), `person`
    (somebody finishes it), or `nothing_found` (after the last stage, if nothing was found)."""
    margin: float = _DEFAULT.margin
    """For the proof, by how much more often sessions may fail: 0.05 is five points."""
    margins: dict[str, float] = Field(default_factory=dict)
    """The same of other signals that are judged, such as `unsafe`, if the proof is to cover them too."""
    alphas: dict[str, float] = Field(default_factory=lambda: dict(_DEFAULT.alphas))
    """By signal its part of the chance that a version that is no worse is taken back, together at most 0.05: `failed`
    (required), `unsafe`, `errors`, `invalid`, `slow`, `dear`, and `bucket:` with a bucket's key."""
    limits: dict[str, float] = Field(default_factory=dict)
    """Of `slow` the seconds per model call, of `dear` the dollars per trajectory, above which a session counts. Without
    its limit such a signal is not judged."""
    quiet_s: float = _DEFAULT.quiet_s
    """Seconds without a call after which a session is over."""
    wait_s: float = _DEFAULT.wait_s
    """Seconds that the outcome of a session is waited for; then it counts as missing."""
    shadow: ShadowIn | None = None
    """Before the first stage, copies of the live version's calls go to the candidate, and nobody gets its answers. Null
    for none."""
    holdback: HoldbackIn | None = None
    """After it has gone live, a share of the sessions stays with the version before, and the test goes on. Null for
    none."""


class BeginIn(Body):
    reason: str
    """Recorded permanently with the ramp."""
    generation: int
    """The `generation` that you saw on the candidate."""
    plan: PlanIn | None = None
    """Left out, it is the proposed plan, as `ramp-plan` returns it."""
    override: bool = False
    """Approve against the gate. The ramp and its promotion are marked as such."""
    again: int | None = None
    """Id of the version's last ramp, required if it had one."""


class MoveIn(Body):
    reason: str
    """Recorded permanently with the change."""
    generation: int
    """The `generation` that you saw on the ramp."""


class StageOut(Schema):
    share: int
    """Sessions of 10,000 that the candidate answers."""
    sessions: int
    minutes: float


class ShadowPlanOut(Schema):
    sessions: int
    minutes: float
    calls: int
    tokens: int | None
    dollars: float | None
    then: str


class HoldbackOut(Schema):
    share: int
    """Sessions of 10,000 that stay with the version before."""
    sessions: int
    days: float


class PlanOut(Schema):
    stages: list[StageOut]
    finish: str
    margin: float
    margins: dict[str, float] = Field(default_factory=dict)
    alphas: dict[str, float]
    limits: dict[str, float]
    quiet_s: float
    wait_s: float
    shadow: ShadowPlanOut | None = None
    """Null where there is none."""
    holdback: HoldbackOut | None = None
    """Null where there is none."""


class ReachOut(Schema):
    stage: int
    """Counted from 1."""
    least_harm: float | None
    """Rise of the failure rate that the stage alone would catch in 80% of ramps; null if it is too short for any."""


class ProposedPlanOut(Schema):
    plan: PlanOut
    judged: int
    """Judged trajectories of the live version in the last 14 days."""
    failure_rate: float | None
    """Their share that failed; null if none was judged."""
    reach: list[ReachOut]


class RampOut(Schema):
    id: int
    agent: Ref
    candidate_id: int
    version: Ref = Field(alias="candidate.version")
    """The version that is released."""
    baseline: Ref = Field(alias="candidate.baseline")
    """The version that is live beside it."""
    state: str
    """`waiting`, `shadow`, `running`, `holding`, `finished`, `taken_back` or `stopped`."""
    stage: int
    """Counted from 1; 0 in the shadow, and one more than there are stages in the holdback."""
    share: int = Field(alias="split.share")
    """Sessions of 10,000 that the candidate answers now."""
    generation: int
    """Send it back with a move."""
    finding: str
    """Why it is held or was taken back; empty otherwise."""
    plan: PlanOut
    reason: str
    approved_by: Ref
    override: bool
    """Whether it was approved against the gate."""
    after_id: int | None
    """Id of the earlier ramp of this version that the approval named."""
    promotion_id: int | None
    """Id of the promotion with which it went live; with a holdback it goes on after that."""
    created_at: datetime

    @staticmethod
    def resolve_stage(row: Ramp) -> int:
        return row.stage + 1

    @staticmethod
    def resolve_finding(row: Ramp) -> str:
        return str(row.finding.get("words", ""))


class OverrideOut(Schema):
    name: str
    """What calls said otherwise than the version, such as `temperature`, `system` or `tools`."""
    sessions: int
    calls: int
    query: str
    """Lists their trajectories since the ramp began: the `q` of `/trajectories`."""


class ArmOut(Schema):
    met: int
    """Sessions that met this arm."""
    final: int
    """Those that are judged."""
    awaited: int
    """Those that are not over, or whose outcome is not known yet."""
    mixed: int
    """Those that are judged in neither arm."""
    missing: int
    """Final sessions whose outcome nobody reported."""
    assigned: int
    """Sessions whose agent asked for its arm, and calls its model itself."""
    overriding: int
    """Final sessions with calls that said something otherwise than the version: they compare less than they seem to."""
    overriding_calls: int
    overrides: list[OverrideOut]
    """What they said otherwise, the most frequent first."""
    failures: float
    """Sessions that failed; of a session that failed in part, the part."""
    failure_rate: float | None
    """Null if no session was judged."""


class SignalOut(Schema):
    key: str
    label: str
    alpha: float
    """Its part of the chance of error."""
    bound: float
    """The wealth at which the candidate is taken back; for `missing`, at which the ramp is held."""
    wealth: float
    live: float | None
    """Share of the live version's sessions that went wrong by it."""
    candidate: float | None
    """Share of the candidate's sessions."""


class RampDifferenceOut(Schema):
    low: float
    """Lower end of the 95% interval, which holds however often you look."""
    mean: float | None
    """By how much more often the candidate's sessions fail; null if an arm has no judged session."""
    high: float
    live: int
    """Judged sessions of the live version that it rests on."""
    candidate: int


class RampChangeOut(Schema):
    generation: int
    state: str
    stage: int
    """Counted from 1; 0 in the shadow."""
    share: int
    """Sessions of 10,000 after it."""
    by: Ref | None
    """Null if the judge made it."""
    reason: str
    at: datetime

    @staticmethod
    def resolve_stage(row: RampChange) -> int:
        return row.stage + 1


class WrongAnswerOut(Schema):
    question: str
    own: str
    """What was expected: the answer of the version's own weights, or the one that the server gave alone."""
    server: str


class SelfTestArmOut(Schema):
    arm: str
    """`live` or `candidate`."""
    version: str
    verdict: str
    """`passed`, `failed` or `not_tested`."""
    words: str
    """What was found, or why it was not tested."""
    evidence: list[WrongAnswerOut]


class RampSelfTestOut(Schema):
    """Whether the servers of both versions answer with the right weights."""

    at: datetime
    stage: int
    """In which it was made, counted from 1."""
    verdict: str
    """`failed` if an arm failed, which holds the ramp; `not_tested` if an arm could not be tested; else `passed`."""
    arms: list[SelfTestArmOut]

    @staticmethod
    def resolve_stage(row: SelfTest) -> int:
        return row.stage + 1


class RampNumbersOut(Schema):
    next: str
    """What happens next, in words."""
    live: ArmOut
    candidate: ArmOut
    in_stage: int
    """Final sessions at the present share."""
    mixed: dict[str, int]
    """Sessions that are judged in neither arm, by reason."""
    signals: list[SignalOut]
    """The one nearest to its bound first."""
    difference: RampDifferenceOut | None
    """Null if no session was judged."""
    used: int
    """Judged sessions that difference and proof rest on, from the first one on."""
    proof: float
    """Wealth against the candidate being worse by the margin, of several the least. At 20 it is shown not to be."""
    doubts: list[str]
    """Why no comparison is valid; empty otherwise."""
    accepted: list[str]
    """The doubts with which somebody let it go on."""


class RampWithNumbers(RampOut):
    numbers: RampNumbersOut
    changes: list[RampChangeOut]
    """Newest first, at most 100."""
    self_tests: list[RampSelfTestOut]
    """Newest first, at most 20."""

    @staticmethod
    def resolve_self_tests(row: Ramp) -> list[SelfTest]:
        return list(row.self_tests.all()[:SELF_TESTS])

    @staticmethod
    def resolve_numbers(row: Ramp) -> dict[str, Any]:
        found = ramp_evidence.evidence(row)
        return {**{name: getattr(found, name) for name in _NUMBERS}, "next": ramp_words.next_words(row, found)}

    @staticmethod
    def resolve_changes(row: Ramp) -> list[RampChange]:
        return list(row.changes.select_related("by")[:CHANGES])


_NUMBERS = [name for name in RampNumbersOut.model_fields if name != "next"]


@router.get("/candidates/{pk}/ramp-plan", response=ProposedPlanOut, auth=Key(Scope.READ))
def propose_ramp_plan(request: HttpRequest, pk: int) -> Any:
    """Return the plan that the candidate's page proposes, and what each stage would catch."""
    row = _candidate(keyed(request), pk)
    traffic = live_traffic(row.baseline)
    plan = proposed_plan(row, traffic)
    return {
        "plan": plan.to_json(),
        "judged": traffic.judged,
        "failure_rate": traffic.rate,
        "reach": [
            {"stage": number, "least_harm": reach_of(stage, plan, traffic.rate_taken)}
            for number, stage in enumerate(plan.stages, 1)
        ],
    }


@router.post("/candidates/{pk}/ramp", response=RampWithNumbers, auth=Key(Scope.APPROVE))
def begin_ramp(request: HttpRequest, pk: int, body: BeginIn) -> Any:
    """Approve the candidate by steps. 409 if the live version changed since `generation`, 422 if the plan or the
    approval is refused."""
    asked = keyed(request)
    row = _candidate(asked, pk)
    with _at_plan():
        plan = Plan.from_json(body.plan.dict()) if body.plan else proposed_plan(row)
    ramp = ramp_moves.begin(candidate=row, plan=plan, actor=asked.actor, **body.dict(exclude={"plan"}))
    return _ramp(asked, ramp.pk)


@router.get("/agents/{name}/ramps", response=page_of(RampOut), auth=Key(Scope.READ))
def list_agent_ramps(request: HttpRequest, name: str, query: Query[ListQuery]) -> Any:
    """List an agent's ramps, newest first, without their numbers."""
    asked = keyed(request)
    agent = get_object_or_404(Agent, project=asked.project, name=name)
    return paginate(_ramps(asked).filter(agent=agent), query)


@router.get("/ramps/{pk}", response=RampWithNumbers, auth=Key(Scope.READ))
def get_ramp(request: HttpRequest, pk: int) -> Any:
    """Return one ramp with its numbers as they are now, and its changes."""
    return _ramp(keyed(request), pk)


@router.post("/ramps/{pk}/hold", response=RampWithNumbers, auth=Key(Scope.APPROVE))
def hold_ramp(request: HttpRequest, pk: int, body: MoveIn) -> Any:
    """Stay at the present stage until somebody lets it go on. As for all moves: 409 if the ramp changed since
    `generation`, 422 if its state does not allow it."""
    return _moved(request, pk, body, ramp_moves.hold)


@router.post("/ramps/{pk}/go-on", response=RampWithNumbers, auth=Key(Scope.APPROVE))
def go_on_with_ramp(request: HttpRequest, pk: int, body: MoveIn) -> Any:
    """Go on at the stage at which it was held. Doubts that held it are accepted."""
    return _moved(request, pk, body, ramp_moves.go_on)


@router.post("/ramps/{pk}/advance", response=RampWithNumbers, auth=Key(Scope.APPROVE))
def advance_ramp(request: HttpRequest, pk: int, body: MoveIn) -> Any:
    """Go to the next stage now, before the plan would."""
    return _moved(request, pk, body, ramp_moves.advance)


@router.post("/ramps/{pk}/stop", response=RampWithNumbers, auth=Key(Scope.APPROVE))
def stop_ramp(request: HttpRequest, pk: int, body: MoveIn) -> Any:
    """End the ramp for a reason other than harm. All sessions go to the live version."""
    return _moved(request, pk, body, ramp_moves.stop)


@router.post("/ramps/{pk}/take-back", response=RampWithNumbers, auth=Key(Scope.APPROVE))
def take_ramp_back(request: HttpRequest, pk: int, body: MoveIn) -> Any:
    """End the ramp because the candidate does harm. All sessions go to the live version."""
    return _moved(request, pk, body, ramp_moves.take_back)


@router.post("/ramps/{pk}/finish", response=PromotionOut, auth=Key(Scope.APPROVE))
def finish_ramp(request: HttpRequest, pk: int, body: MoveIn) -> Promotion:
    """Make the candidate live for all sessions, with all checks of a promotion."""
    asked = keyed(request)
    return ramp_moves.finish(ramp=_ramp(asked, pk), actor=asked.actor, **body.dict())


def _moved(request: HttpRequest, pk: int, body: MoveIn, verb: Callable[..., Ramp]) -> Ramp:
    asked = keyed(request)
    verb(ramp=_ramp(asked, pk), actor=asked.actor, **body.dict())
    return _ramp(asked, pk)


@contextmanager
def _at_plan() -> Iterator[None]:
    """Refuse what is wrong with a plan as a problem of the body's `plan`."""
    try:
        yield
    except FieldError as error:
        raise Refused(error.problem, field=f"plan.{error.field}") from None


def _candidate(request: KeyRequest, pk: int) -> Candidate:
    rows = Candidate.objects.filter(project=request.project).select_related(
        "agent", "version__agent", "baseline__agent"
    )
    return get_object_or_404(rows, pk=pk)


def _ramp(request: KeyRequest, pk: int) -> Ramp:
    return get_object_or_404(_ramps(request), pk=pk)


def _ramps(request: KeyRequest) -> QuerySet[Ramp]:
    return Ramp.objects.filter(agent__project=request.project).select_related(
        "agent__project", "candidate__version__agent", "candidate__baseline__agent", "split", "approved_by"
    )
