"""Datasets from elsewhere, for programs: of trajectories that are called good, and of files."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Body, RefIn
from flywheel.evals.api.references import version_of
from flywheel.training.api.datasets import DatasetOut
from flywheel.training.datasets import dataset_uploads, demonstrations, uploaded_rows
from flywheel.training.datasets.demonstrations import Wanted
from flywheel.trajectories.import_export.trajectory_import import kept_aside

router = Router(tags=["training"])

FIRST = 5


class DemonstrateIn(Body):
    name: str
    version: RefIn
    """Whose prompt, tools and form of calls the rows have."""
    q: str = ""
    """A filter as the list of trajectories has it."""
    ids: list[str] = Field([], max_length=500)
    """Trace ids, instead of the filter."""
    good: str = "good"
    """`good` where people or feedback have to call a trajectory good, `filter` where the filter says enough."""
    start: int = Field(1, ge=1, le=10_000)
    """The agent's message to learn from on, counted from 1."""
    steps: dict[str, str] = {}
    """Span ids by trace id: to learn from this step on instead."""
    preview: bool = False
    """Say what it would become and make nothing."""


class UploadQuery(Schema):
    name: str
    licence: str = ""
    """`unknown` where nobody knows it."""
    description: str = ""
    source: str = ""
    language: str = ""
    kind: str = ""
    """`sft`, `pairs`, `thumbs` or `prompts`; of the first good row if left out."""
    file_name: str = ""
    preview: bool = False
    """Say what it would become and make nothing."""


class LeftOutOut(Schema):
    reason: str
    words: str
    count: int
    first: list[str]
    """Trace ids, or places in the file."""


class RowProblemOut(Schema):
    at: str
    """Where in the file: `line 3`, `item 3`, `row 3`."""
    field: str
    """Empty where it is not one field's fault."""
    reason: str


class SourcedOut(Schema):
    dataset: DatasetOut | None
    """None in a preview."""
    kind: str
    rows: int
    tokens: int
    """About, prompts included."""
    duplicates: int
    left_out: list[LeftOutOut]
    problems: list[RowProblemOut]
    """Of the first 200 rows that could not be read."""
    problem_count: int
    first: list[dict[str, Any]]
    """The first rows."""


@router.post("/datasets/from-trajectories", response={200: SourcedOut, 201: SourcedOut}, auth=Key(Scope.TRAIN))
def demonstrate(request: HttpRequest, asked: DemonstrateIn) -> Status[dict[str, Any]]:
    """Make demonstrations of trajectories that people or feedback call good. What failed in them is shown and carries
    no loss; nothing is taken of what the project measures with."""
    fields = asked.dict(exclude={"name", "version", "preview"})
    wanted = Wanted(version=version_of(request, asked.version), **fields)
    found = demonstrations.gather(wanted)
    made = None
    if not asked.preview:
        made = demonstrations.write(name=asked.name, wanted=wanted, actor=keyed(request).actor, found=found)
    told = {
        "dataset": made,
        "kind": "sft",
        "rows": len(found.rows),
        "tokens": found.tokens,
        "duplicates": found.repeated,
        "left_out": found.reasons,
        "problems": [],
        "problem_count": 0,
        "first": found.rows[:FIRST],
    }
    return Status(201 if made else 200, told)


@router.post("/datasets/upload", response={200: SourcedOut, 201: SourcedOut}, auth=Key(Scope.TRAIN))
def upload_dataset(request: HttpRequest, asked: Query[UploadQuery]) -> Status[dict[str, Any]]:
    """A file as the body: conversations, preferences, thumbs or prompts as JSON Lines, JSON, CSV or Parquet. Good rows
    are kept as the next version of the name; the answer names the others."""
    project, made = keyed(request).project, None
    with kept_aside(request, most=dataset_uploads.MAX_BYTES) as file:
        if asked.preview:
            found = dataset_uploads.look(project, file, asked.kind)
        else:
            made, found = dataset_uploads.take(
                project,
                name=asked.name,
                source=file,
                card=asked.dict(include=set(dataset_uploads.CARD)),
                actor=keyed(request).actor,
                kind=asked.kind,
                file_name=asked.file_name,
            )
    told = {
        "dataset": made,
        "kind": found.kind,
        "rows": len(found.rows),
        "tokens": found.tokens,
        "duplicates": found.repeated,
        "left_out": found.reasons,
        "problems": found.problems[: uploaded_rows.KEPT],
        "problem_count": len(found.problems),
        "first": found.rows[:FIRST],
    }
    return Status(201 if made else 200, told)
