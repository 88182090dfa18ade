"""Previews of what would be learnt, for programs: rows as tokens with the loss mask, before a run."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Field, Router, Status
from pydantic import BeforeValidator

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import JobOut, Ref
from flywheel.edge.refusals import Missing, one
from flywheel.edge.schemas import Body, RefIn, Schema, made
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.training.api.references import by_algorithm, dataset_by_ref
from flywheel.training.launch import preview_jobs
from flywheel.training.models import TokenPreview

router = Router(tags=["training"])


class TokenPreviewIn(Body):
    base: RefIn
    """`agent@number` whose tokenizer and chat template are used; it must have weights here."""
    dataset: RefIn
    """`name@version`."""
    task_set: RefIn = ""
    """`name@version` whose environment's tools the prompts list; needed only if the dataset comes from elsewhere."""
    algorithm: str = ""
    """If empty or omitted, the first algorithm that learns from rows of this kind."""
    settings: dict[str, Any] = {}
    """Settings of the algorithm, such as `max_length`; its defaults if omitted."""


def _with_algorithm(asked: Any) -> Any:
    """Have the union tell its members apart where the request names no algorithm."""
    return {"algorithm": "", **asked} if isinstance(asked, dict) else asked


if TYPE_CHECKING:
    TypedPreviewIn = TokenPreviewIn
else:
    about = TokenPreviewIn.model_fields["algorithm"].description
    usual = made("Preview_usual", TokenPreviewIn, algorithm=(Literal[""], Field(default="", description=about)))
    TypedPreviewIn = Annotated[by_algorithm(TokenPreviewIn, "Preview", usual), BeforeValidator(_with_algorithm)]


class SpanOut(Schema):
    state: str
    """`read`: only context. `learnt`: counts in the loss. `cut`: beyond the limit, never seen."""
    count: int
    """Number of tokens."""
    tokens: list[tuple[int, str, bool]]
    """`[id, text, special]` of the first tokens; special ones are the tokenizer's own marks."""
    hidden: int
    """Tokens that are not listed, between `tokens` and `last`."""
    last: list[tuple[int, str, bool]]
    """The last tokens of a long span."""


class TokenSequenceOut(Schema):
    name: str
    """`chosen` or `rejected` of a pair, `good` or `bad` of an answer with a thumb; empty for other rows."""
    tokens: int
    """Tokens of the sequence, without those that are cut off."""
    learnt: int
    """Tokens that count in the loss."""
    cut: int
    """Tokens that are cut off."""
    spans: list[SpanOut]
    """Its tokens after the shared prompt."""


class TokenExampleOut(Schema):
    row: int
    """Position in the dataset, counted from 1."""
    task: str
    """Id of the row's task."""
    left_out: str
    """Why the trainer leaves the row out; empty if it does not."""
    shared: list[SpanOut]
    """The prompt that a chosen and a rejected answer have in common."""
    sequences: list[TokenSequenceOut]
    """One, or the chosen and the rejected answer."""


class TokenCountsOut(Schema):
    rows: int
    """Rows that were tokenized."""
    of: int
    """Rows of the dataset."""
    left_out: int
    """Rows that the trainer leaves out."""
    cut: int
    """Rows that are learnt from after a part was cut off."""
    tokens: int
    """Tokens of all rows that are not left out."""
    learnt: int
    """Tokens that count in the loss."""
    median: int
    """Median length in tokens, before anything is cut off."""
    longest: int
    """Length of the longest row in tokens, before anything is cut off."""
    limit: int | None
    """Maximum length in tokens; null if there is none."""
    limited_by: str
    """What sets the limit."""
    answer: int | None
    """Maximum tokens of the policy's answer to a prompt; null if answers are given."""
    examples: list[TokenExampleOut]
    """The first rows, the longest, and the first that is cut and left out."""


class TokenPreviewOut(JobOut):
    base: Ref
    dataset: Ref
    task_set: Ref
    algorithm: str
    settings: dict[str, Any]
    preview: TokenCountsOut | None
    """Null until it is ready."""

    @staticmethod
    def resolve_preview(job: TokenPreview) -> dict[str, Any] | None:
        return job.result or None


@router.post("/token-previews", response={200: TokenPreviewOut, 202: TokenPreviewOut}, auth=Key(Scope.TRAIN))
def preview_tokens(request: HttpRequest, asked: TypedPreviewIn) -> Status[TokenPreview]:
    """Show what a run would learn from: rows as the trainer would get them, in tokens, with the loss mask. The same
    request again returns the existing preview with 200."""
    dataset = dataset_by_ref(request, asked.dataset)
    if dataset is None:
        raise Missing("there is no dataset ''")
    job, is_new = preview_jobs.preview(
        base=version_of(request, asked.base, "base"),
        dataset=dataset,
        actor=keyed(request).actor,
        task_set=task_set_of(request, asked.task_set) if asked.task_set else None,
        algorithm=asked.algorithm,
        settings=asked.settings,
    )
    return Status(202 if is_new else 200, job)


@router.get("/token-previews/{pk}", response=TokenPreviewOut, auth=Key(Scope.READ))
def get_token_preview(request: HttpRequest, pk: int) -> TokenPreview:
    """Return a preview, with its `preview` once it is ready."""
    rows = TokenPreview.objects.filter(project=keyed(request).project)
    return one(rows.select_related("base__agent", "dataset", "task_set"), pk=pk)
