"""Searches for a prompt with a model's help, for programs: start one, read every proposal, try the best."""

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import JobOut, ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.training.fixes import draft_search
from flywheel.training.fixes.draft_search import ProposalResult, SearchRequest
from flywheel.training.models import PromptAttempt, PromptSearch

router = Router(tags=["training"])


class ProposerIn(Body):
    base_url: str
    """Address of an OpenAI-compatible server."""
    model: str
    """Name of the model on the server."""
    api_key_env: str = ""
    """Name of the key, never the key itself."""


class SearchIn(Body):
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same search."""
    bucket: str
    """Key of the category to fix."""
    version: RefIn
    """`agent@number` whose prompt is improved."""
    task_set: RefIn
    """`name@version`; only its train split is used."""
    endpoint: ProposerIn
    """The model that proposes prompts. It reads training tasks, attempts and verdicts."""
    proposals: int = 10
    """Maximum number of proposals."""
    tasks: int = 30
    """Maximum number of training tasks to attempt."""
    attempts: int | None = None
    """Maximum number of attempts, including the trial afterwards; if omitted, as many as the proposals may need."""
    samples: int = 4
    """Attempts per task in the trial afterwards."""
    seed: int = 1
    """Seed of the search and its attempts."""


class ProposalsIn(Body):
    proposals: list[int]
    """`place` of each proposal to turn into a draft."""


class SearchOut(JobOut):
    bucket: str
    version: Ref = Field(alias="parent")
    task_set: Ref
    endpoint: dict[str, Any]
    seed: int
    most_attempts: int
    most_proposals: int
    samples: int
    trial: int | None = Field(alias="trial_id")
    """Id of the trial of its best proposals; null until it is started."""


class ScoreOut(Schema):
    task: Ref
    score: float | None
    """Null if the attempt is unscored; it is then in no mean."""
    reason: str


class PromptProposalOut(Schema):
    place: int
    """0 for the version's own prompt."""
    text: str
    parent: int | None
    """`place` of the proposal that it was made from."""
    state: str
    """`open`: still running. `dropped`: no better on its first tasks. `kept`: ran on all tasks. `refused`: not used."""
    problem: str
    mean: float | None
    """Mean over scored attempts; one attempt per task, so there is no interval."""
    n: int
    """Number of scored attempts."""
    unscored: int
    scores: list[ScoreOut]


@router.get("/prompt-searches", response=page_of(SearchOut, "PromptSearchPage"), auth=Key(Scope.READ))
def list_prompt_searches(request: HttpRequest, query: Query[ListQuery]) -> Any:
    """List prompt searches, newest first."""
    return paginate(draft_search.searches().filter(project=keyed(request).project), query)


@router.post("/prompt-searches", response={200: SearchOut, 202: SearchOut}, auth=Key(Scope.BUILD))
def search_prompts(request: HttpRequest, body: SearchIn) -> Status[Any]:
    """Have a model propose system prompts, and try each on training tasks. Repeating a key returns the existing
    search with 200."""
    wanted = SearchRequest(
        key=body.key or uuid.uuid4(),
        bucket=body.bucket,
        parent=version_of(request, body.version),
        task_set=task_set_of(request, body.task_set),
        endpoint=body.endpoint.dict(),
        proposals=body.proposals,
        tasks=body.tasks,
        attempts=body.attempts,
        samples=body.samples,
        seed=body.seed,
    )
    search, is_new = draft_search.submit(wanted, keyed(request).actor)
    return Status(202 if is_new else 200, search)


@router.get("/prompt-searches/{search_id}", response=SearchOut, auth=Key(Scope.READ))
def get_prompt_search(request: HttpRequest, search_id: int) -> PromptSearch:
    """Return one prompt search with its progress."""
    return one(draft_search.searches().filter(project=keyed(request).project), pk=search_id)


@router.get("/prompt-searches/{search_id}/proposals", response=page_of(PromptProposalOut), auth=Key(Scope.READ))
def list_prompt_proposals(request: HttpRequest, search_id: int, query: Query[ListQuery]) -> dict[str, Any]:
    """List all proposals with their scores by task, newest first. The last one is the version's own prompt."""
    search = get_prompt_search(request, search_id)
    found = {each.proposal.pk: each for each in draft_search.results_of(search).proposals}
    page = paginate(search.proposals.all(), query)
    attempts = PromptAttempt.objects.filter(proposal__in=page["items"]).defer("transcript").select_related("task")
    scores: dict[int, list[PromptAttempt]] = {row.pk: [] for row in page["items"]}
    for attempt in attempts.order_by("task__number"):
        scores[attempt.proposal_id].append(attempt)
    return page | {"items": [_fields_of(found[row.pk], scores[row.pk]) for row in page["items"]]}


@router.post("/prompt-searches/{search_id}/try", response=SearchOut, auth=Key(Scope.BUILD))
def try_prompt_proposals(request: HttpRequest, search_id: int, body: ProposalsIn) -> PromptSearch:
    """Try proposals on all training tasks, as drafts of a fix trial. 409 until the search has finished."""
    draft_search.try_proposals(get_prompt_search(request, search_id), body.proposals, keyed(request).actor)
    return get_prompt_search(request, search_id)


@router.post("/prompt-searches/{search_id}/cancel", response=SearchOut, auth=Key(Scope.BUILD))
def cancel_prompt_search(request: HttpRequest, search_id: int) -> PromptSearch:
    """Cancel the search; attempts and proposals so far are kept. 409 if it has finished."""
    return get_prompt_search(request, search_id).cancel(keyed(request).actor)


@router.post("/prompt-searches/{search_id}/resume", response=SearchOut, auth=Key(Scope.BUILD))
def resume_prompt_search(request: HttpRequest, search_id: int) -> PromptSearch:
    """Resume the search from what is stored; nothing runs twice. 409 unless it has failed or was cancelled, or if it is
    void or its best proposals were tried."""
    return get_prompt_search(request, search_id).resume(keyed(request).actor)


def _fields_of(result: ProposalResult, scores: list[PromptAttempt]) -> dict[str, Any]:
    row = result.proposal
    return {
        "place": row.place,
        "text": row.text,
        "parent": row.parent.place if row.parent else None,
        "state": row.state,
        "problem": row.problem,
        "mean": result.mean,
        "n": result.n,
        "unscored": result.unscored,
        "scores": scores,
    }
