"""Shadows of ramps, for programs: the numbers, the calls at which the two versions differ, and people's verdicts."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, KeyRequest, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import ShadowCopy
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import Missing
from flywheel.edge.schemas import Body, Schema
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import shadow_comparing

router = Router(tags=["promotions"])


class VerdictIn(Body):
    verdict: str
    """Which answer is better: `candidate`, `live`, `both` (both are fine) or `wrong` (the candidate's is wrong)."""
    note: str = ""


class PairedDifferenceOut(Schema):
    low: float
    """Lower end of the 95% interval, which holds however often you look."""
    mean: float | None
    """Candidate less live, of the sessions' means; null without a session."""
    high: float
    n: int
    """Sessions."""


class FaultOut(Schema):
    key: str
    """`unsafe`, `invalid` or `error`."""
    label: str
    live: float | None
    """Mean share of the calls of a session."""
    candidate: float | None
    difference: PairedDifferenceOut
    wealth: float
    """Evidence that the candidate has more of it."""
    bound: float
    """The wealth at which it holds the ramp."""


class ShadowEstimateOut(Schema):
    mean: float | None
    low: float | None
    """Ends of the 95% interval; null where there is none."""
    high: float | None
    n: int
    """Sessions."""


class ShadowNumbersOut(Schema):
    is_on: bool
    """Whether copies are made now."""
    sessions: int
    """Sessions that are over and have a compared call."""
    compared: int
    """Calls."""
    waiting: int
    """Copies whose answer is on its way."""
    lost: int
    """Copies of which an answer was never stored, for example since a process ended."""
    skipped: int
    """Calls that were not copied: because of load, or since the server itself would have carried something out."""
    differ: int
    """Calls at which the two differ."""
    copies: int
    """Sent so far, of the budget."""
    tokens_used: int
    dollars_used: float
    faults: list[FaultOut]
    same_tools: ShadowEstimateOut | None
    """Mean share of a session's calls at which both call the same tools; null before any is compared."""
    same_arguments: ShadowEstimateOut | None
    """The same of arguments, where both call the same tools."""
    tokens: ShadowEstimateOut | None
    """How many times as many tokens the candidate takes."""
    time: ShadowEstimateOut | None
    """How many times as long the candidate takes."""
    verdicts: dict[str, int]
    """Of people, by their newest word on each call."""


class AnswerOut(Schema):
    tools: list[str]
    """Names of the tools that it calls."""
    invalid: bool
    unsafe: bool
    error: bool
    """Whether its server failed."""
    tokens: int | None
    ms: float | None


class ShadowVerdictOut(Schema):
    verdict: str
    note: str
    by: Ref
    at: datetime


class ShadowCallOut(Schema):
    id: int
    at: datetime
    session: str = Field(alias="name")
    """Name of the session, trace or conversation."""
    trace_id: str
    """Of the live version's call."""
    copy_trace_id: str
    """Trajectory with the candidate's answer; its source is `shadow`."""
    same_tools: bool
    same_arguments: bool | None
    """Null where the tools differ, or neither calls one."""
    live: AnswerOut
    candidate: AnswerOut
    verdict: ShadowVerdictOut | None
    """The newest; null where nobody has said anything."""

    @staticmethod
    def resolve_same_tools(row: ShadowCopy) -> bool:
        return bool(row.pair["same_tools"])

    @staticmethod
    def resolve_same_arguments(row: ShadowCopy) -> bool | None:
        found: bool | None = row.pair["same_arguments"]
        return found

    @staticmethod
    def resolve_live(row: ShadowCopy) -> Any:
        return row.pair["live"]

    @staticmethod
    def resolve_candidate(row: ShadowCopy) -> Any:
        return row.pair["candidate"]

    @staticmethod
    def resolve_verdict(row: ShadowCopy) -> Any:
        return next(iter(row.verdicts.all()), None)


@router.get("/ramps/{pk}/shadow", response=ShadowNumbersOut, auth=Key(Scope.READ))
def get_shadow(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Return how the candidate answers copies of the live version's calls. 404 where the plan has no shadow."""
    found = shadow_comparing.numbers(_ramp(keyed(request), pk))
    return {
        **{name: getattr(found, name) for name in _OF_NUMBERS},
        **{name: getattr(found.shadow, name) for name in _OF_SHADOW},
        "faults": [shadow_comparing.as_json(row) for row in found.faults],
    }


@router.get("/ramps/{pk}/shadow/calls", response=page_of(ShadowCallOut), auth=Key(Scope.READ))
def list_shadow_calls(request: HttpRequest, pk: int, query: Query[ListQuery]) -> Any:
    """Calls at which the two versions differ, newest first."""
    rows = shadow_comparing.disagreements(_ramp(keyed(request), pk).split).prefetch_related("verdicts__by")
    return paginate(rows, query)


@router.post("/ramps/{pk}/shadow/calls/{call}/verdict", response=ShadowCallOut, auth=Key(Scope.REVIEW))
def say_shadow_verdict(request: HttpRequest, pk: int, call: int, body: VerdictIn) -> ShadowCopy:
    """Say which of the two answers is better. An earlier verdict is kept, and no longer counts."""
    asked = keyed(request)
    rows = ShadowCopy.objects.filter(split=_ramp(asked, pk).split_id, state=ShadowCopy.State.COMPARED)
    copy = get_object_or_404(rows, pk=call)
    shadow_comparing.say_verdict(copy=copy, actor=asked.actor, project=asked.project, **body.dict())
    return copy


_OF_NUMBERS = (
    *("sessions", "compared", "waiting", "lost", "differ", "verdicts"),
    *("same_tools", "same_arguments", "tokens", "time"),
)
_OF_SHADOW = ("is_on", "skipped", "copies", "tokens_used", "dollars_used")


def _ramp(request: KeyRequest, pk: int) -> Ramp:
    rows = Ramp.objects.filter(agent__project=request.project).select_related("agent__project", "split__shadow")
    row = get_object_or_404(rows, pk=pk)
    if not row.rules.shadow:
        raise Missing(f"{row} has no shadow")
    return row
