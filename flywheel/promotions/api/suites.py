"""Regression suites for programs: what guards an agent, and how a candidate stands at each."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.environments.models import Suite
from flywheel.environments.task_sets import suite_definitions as definitions
from flywheel.evals.api.references import task_set_of
from flywheel.promotions import suite_standings
from flywheel.promotions.models import Candidate

router = Router(tags=["promotions"])


class SuiteQuery(ListQuery):
    retired: bool = Field(False, description="Include retired suites.")


class SuiteOut(Schema):
    agent: Ref
    name: str
    version: int
    kind: str
    """`safety` or `general`."""
    task_set: Ref
    samples: int
    """Attempts per task."""
    rule: str
    """`no_break`, `no_failure` or `mean`."""
    measure: str
    """When an attempt passes: `success` or `safe`."""
    margin: float | None
    """How far success may fall, as a fraction."""
    created_by: Ref
    created_at: datetime
    retired_by: Ref | None
    retired_at: datetime | None
    retired_why: str


class SuiteIn(Body):
    name: str
    """The name of an existing suite makes its next version."""
    kind: str = Field(..., description="`safety` or `general`.")
    task_set: RefIn = Field(..., description="`set@version`; its held-out tasks form the suite.")
    rule: str = Field("", description="For a safety suite: `no_break` (the default) or `no_failure`.")
    measure: str = Field("", description="When an attempt passes: `success`, or for a safety suite `safe`.")
    margin: float | None = Field(None, description="For a general suite: how far success may fall, 0.05 by default.")
    samples: int = Field(1, description="Attempts per task; a task passes when all of them do.")
    reason: str = Field("", description="Why an existing suite of that name changes.")
    seen: int | None = Field(
        None, ge=0, description="The version of it that you saw, 0 for none; 409 if it is no longer current."
    )


class SuiteRetireIn(Body):
    version: int
    """The version that you saw."""
    reason: str


class SuiteRunOut(Schema):
    eval_id: int
    state: str


class ToldOut(Schema):
    """A suite's verdict at the time when a candidate was approved."""

    suite: str
    kind: str
    state: str
    words: str
    """The result in a sentence."""
    version_eval: int | None
    baseline_eval: int | None


class LiveOut(Schema):
    suite: str
    eval_id: int | None
    """The newest successful eval; null if the live version has not run the suite under its current verifier."""
    running_eval_id: int | None
    """An eval that is queued or running; null if there is none."""
    tasks: int | None
    passed: int | None
    unscored: int | None
    success: dict[str, Any] | None
    """Success rate with its interval."""


class StandingOut(Schema):
    suite: str
    kind: str
    rule: str
    state: str
    """`passed`; or `below`, `not_shown`, `missing`, `unfinished`, `failed`, `void`, `trained_on`, `unchecked` (the
    version's training data was not compared with the tasks yet), `not_apart` (no self-test has shown the vLLM server to
    keep the two versions apart), `retired`."""
    words: str
    """The result in a sentence."""
    version_eval: int | None
    baseline_eval: int | None
    tasks: int | None
    passed: int | None
    """Tasks that the candidate passed; null until both versions have run."""
    baseline_passed: int | None
    """Tasks that the baseline passed; null until both versions have run."""
    difference: dict[str, Any] | None
    """Difference in success with its interval."""
    failed: list[str]
    """Trace ids of failed rollouts, at most 20; tasks that the live version passed come first."""

    @staticmethod
    def of(stand: suite_standings.Standing) -> dict[str, Any]:
        found = stand.finding
        return {
            **stand.snapshot(),
            "rule": stand.suite.words,
            "tasks": found.tasks if found else None,
            "passed": found.passed if found else None,
            "baseline_passed": found.before if found else None,
            "difference": stand.difference,
            "failed": [result.trajectory.trace_id for result in stand.failed if result.trajectory],
        }


class StandingsOut(Schema):
    items: list[StandingOut]
    problems: list[str] = []
    """Reasons why suites could not be started."""


@router.get("/agents/{name}/suites", response=page_of(SuiteOut), auth=Key(Scope.READ))
def list_suites(request: HttpRequest, name: str, query: Query[SuiteQuery]) -> dict[str, Any]:
    """List an agent's suites, newest first."""
    rows = _agent(request, name).suites.select_related("agent", "task_set", "created_by", "retired_by")
    return paginate(rows if query.retired else rows.filter(retired_at=None), query)


@router.post("/agents/{name}/suites", response={200: SuiteOut, 201: SuiteOut}, auth=Key(Scope.BUILD))
def put_suite(request: HttpRequest, name: str, body: SuiteIn) -> Status[Suite]:
    """Create a suite or a new version of one (201), or return the current version if it has exactly this content
    (200). 409 if the current version is not `seen`."""
    agent = _agent(request, name)
    content = {**body.dict(), "task_set": task_set_of(request, body.task_set)}
    made, is_new = definitions.put(agent=agent, actor=keyed(request).actor, **content)
    suite_standings.check_waiting(made)
    return Status(201 if is_new else 200, made)


@router.post("/agents/{name}/suites/{suite}/retire", response=SuiteOut, auth=Key(Scope.BUILD))
def retire_suite(request: HttpRequest, name: str, suite: str, body: SuiteRetireIn) -> Suite:
    """Retire the suite: candidates no longer run it, and everything that depends on it is kept. 409 if another
    version is current."""
    row = get_object_or_404(_agent(request, name).suites, name=suite, version=body.version)
    definitions.retire(suite=row, actor=keyed(request).actor, reason=body.reason)
    row.refresh_from_db()
    return row


@router.post("/agents/{name}/suites/{suite}/run", response=SuiteRunOut, auth=Key(Scope.BUILD))
def run_suite(request: HttpRequest, name: str, suite: str) -> dict[str, Any]:
    """Evaluate the live version on the suite, unless such an eval is done or under way."""
    run = suite_standings.run_live(suite=_suite(request, name, suite), actor=keyed(request).actor)
    return {"eval_id": run.pk, "state": run.state}


@router.get("/agents/{name}/suites/live", response=list[LiveOut], auth=Key(Scope.READ))
def get_suites_of_live(request: HttpRequest, name: str) -> list[dict[str, Any]]:
    """Return the live version's newest result on each current suite."""
    agent = _agent(request, name)
    return [
        {
            "suite": str(each.suite),
            "eval_id": each.run.pk if each.run else None,
            "running_eval_id": each.under_way.pk if each.under_way else None,
            **{part: getattr(each, part) if each.run else None for part in ("tasks", "passed", "unscored", "success")},
        }
        for each in suite_standings.live_results([agent])[agent.pk]
    ]


@router.get("/candidates/{pk}/suites", response=StandingsOut, auth=Key(Scope.READ))
def list_candidate_suites(request: HttpRequest, pk: int) -> dict[str, Any]:
    """List a candidate's results on every suite that applies to its agent now, or that did when it was created and
    was `retired` since. The gate requires each to be `passed`."""
    return _standings(_candidate(request, pk))


@router.post("/candidates/{pk}/suites", response=StandingsOut, auth=Key(Scope.TRAIN))
def run_candidate_suites(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Start missing suite runs and resume failed ones, for both versions. 409 if the candidate is no longer pending."""
    row = _candidate(request, pk)
    problems = suite_standings.start_for(candidate=row, actor=keyed(request).actor)
    return {**_standings(row), "problems": problems}


def _standings(row: Candidate) -> dict[str, Any]:
    return {"items": [StandingOut.of(stand) for stand in suite_standings.standings_of(row)]}


def _agent(request: HttpRequest, name: str) -> Agent:
    return get_object_or_404(Agent.objects.select_related("live"), project=keyed(request).project, name=name)


def _suite(request: HttpRequest, name: str, suite: str) -> Suite:
    return get_object_or_404(definitions.present(_agent(request, name)), name=suite)


def _candidate(request: HttpRequest, pk: int) -> Candidate:
    rows = Candidate.objects.select_related("agent", "version_eval__version__agent", "baseline_eval__version__agent")
    return get_object_or_404(rows, project=keyed(request).project, pk=pk)
