"""Datasets from elsewhere, for programs: of trajectories that are called good, and of files."""

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import JobOut
from flywheel.edge.refusals import Refused, one
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.evals.api.references import version_of
from flywheel.training.api.datasets import DatasetOut
from flywheel.training.datasets import build_jobs, dataset_uploads, demonstrations
from flywheel.training.datasets.demonstrations import Wanted
from flywheel.training.models import DatasetBuild
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.trajectory_import import kept_aside

router = Router(tags=["training"])


class DemonstrateIn(Body):
    name: str
    """An existing name makes the dataset's next version."""
    version: RefIn
    """`agent@number` whose prompt, tools and call format the rows use."""
    q: str = ""
    """A filter, as for `GET /trajectories`."""
    ids: list[str] = Field([], max_length=500)
    """Trace ids in place of the filter, at most 500."""
    good: str = "good"
    """`good` for trajectories that people or feedback call good, `filter` for everything that matches. `thumbs` for
    those called good and those called bad: each answer becomes a row with its thumb, for KTO. `scores` for those that
    have a score: each answer becomes a row with the score of the whole, for AWR."""
    start: int = Field(1, ge=1, le=10_000)
    """Position of the first of the agent's messages to learn from, counted from 1."""
    steps: dict[str, str] = {}
    """Span ids by trace id: the first step to learn from, in place of `start`."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same build."""
    preview: bool = False
    """Show the result without creating anything."""


class UploadQuery(Schema):
    name: str
    """An existing name makes the dataset's next version."""
    licence: str = ""
    """`unknown` if nobody knows it."""
    description: str = ""
    """For the dataset's card, as are `licence`, `source` and `language`."""
    source: str = ""
    """Where the data comes from."""
    language: str = ""
    """Language of the data."""
    kind: str = ""
    """`sft`, `pairs`, `thumbs`, `scored` or `prompts`; if empty, that of the first valid row."""
    file_name: str = ""
    """Name of the file, for messages."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same build."""
    preview: bool = False
    """Show the result without creating anything."""


class LeftOutOut(Schema):
    reason: str
    words: str
    count: int
    first: list[str]
    """Trace ids, or places in the file."""


class RowProblemOut(Schema):
    at: str
    """Place in the file, for example `line 3`, `item 3` or `row 3`."""
    field: str
    """Empty if the problem is not in a single field."""
    reason: str


class BuildOut(JobOut):
    name: str
    dataset: DatasetOut | None
    """Null until it is built."""
    report: dict[str, Any]
    """Result for the rows read so far: `rows`, `problems`, `problem_count`, `duplicates`, …"""


class SourcedOut(Schema):
    """A preview of a dataset."""

    kind: str
    rows: int
    tokens: int
    """Estimate, including prompts."""
    duplicates: int
    thumbs: dict[str, int]
    """Rows with a thumb up (`true`) and down (`false`); empty for other kinds."""
    scores: dict[str, float]
    """`attempts`, `groups`, `telling` (groups in which one attempt is better than another), `least`, `most`,
    `answers` and `recorded` (those with log-probabilities); empty for other kinds."""
    left_out: list[LeftOutOut]
    """Trajectories or rows that were left out, by reason."""
    problems: list[RowProblemOut]
    """The first 200 rows that could not be read."""
    problem_count: int
    first: list[dict[str, Any]]
    """The first rows."""


@router.post("/datasets/from-trajectories", response={200: SourcedOut, 202: BuildOut}, auth=Key(Scope.TRAIN))
def demonstrate(request: HttpRequest, asked: DemonstrateIn) -> Status[Any]:
    """Create demonstrations from trajectories that people or feedback call good, or answers with a thumb or a score
    from good and bad ones. Failed steps stay in the context but carry no loss, and nothing is used that the project
    measures with."""
    fields = asked.dict(exclude={"name", "version", "preview", "key"})
    wanted = Wanted(version=version_of(request, asked.version), **fields)
    if asked.preview:
        found, first = demonstrations.look(wanted)
        return Status(200, _looked(found.report, found.reasons, first))
    actor, key = keyed(request).actor, asked.key or uuid.uuid4()
    return Status(202, build_jobs.submit_choice(name=asked.name, wanted=wanted, actor=actor, key=key))


@router.post("/datasets/upload", response={200: SourcedOut, 202: BuildOut}, auth=Key(Scope.TRAIN))
def upload_dataset(request: HttpRequest, asked: Query[UploadQuery]) -> Status[Any]:
    """Create a dataset from the file in the request body: conversations, preferences, thumbs, scored attempts or
    prompts, as JSON Lines, JSON, CSV or Parquet. Valid rows become the next version under the name; the report
    lists the others. 413 if the file is too large."""
    caller = keyed(request)
    with kept_aside(request, most=dataset_uploads.MAX_BYTES, command="") as file:
        if asked.preview:
            found, first = dataset_uploads.look(caller.project, file, asked.kind)
            return Status(200, _looked(found.report, found.reasons, first))
        dataset_uploads.check_card(asked.dict())
        upload = uploads.keep(caller.project, caller.actor.user, asked.file_name or "file", file)
    try:
        job = build_jobs.submit_upload(
            project=caller.project,
            name=asked.name,
            upload=upload,
            card=asked.dict(include=set(dataset_uploads.CARD)),
            actor=caller.actor,
            key=asked.key or uuid.uuid4(),
            kind=asked.kind,
        )
    except Refused:
        upload.discard()
        raise
    return Status(202, job)


def _looked(report: dict[str, Any], reasons: list[dict[str, Any]], first: list[dict[str, Any]]) -> dict[str, Any]:
    return {"problems": [], "problem_count": 0, **report, "left_out": reasons, "first": first}


@router.get("/dataset-builds/{pk}", response=BuildOut, auth=Key(Scope.READ))
def get_dataset_build(request: HttpRequest, pk: int) -> DatasetBuild:
    """Return a dataset build with its progress, and its `dataset` once it is built."""
    return one(DatasetBuild.objects.select_related("dataset").filter(project=keyed(request).project), pk=pk)


@router.post("/dataset-builds/{pk}/cancel", response=BuildOut, auth=Key(Scope.TRAIN))
def cancel_dataset_build(request: HttpRequest, pk: int) -> DatasetBuild:
    """Cancel the build; nothing of it is kept. 409 if it has finished."""
    return get_dataset_build(request, pk).cancel(keyed(request).actor)


@router.post("/dataset-builds/{pk}/resume", response=BuildOut, auth=Key(Scope.TRAIN))
def resume_dataset_build(request: HttpRequest, pk: int) -> DatasetBuild:
    """Start a failed or cancelled build again from the beginning. 409 for any other build, and if its source file is
    gone, for example after a cancel."""
    return get_dataset_build(request, pk).resume(keyed(request).actor)
