"""Datasets that a worker builds (`jobs/training/dataset_builds.py`): of an uploaded file, or of chosen trajectories.

submit_upload(…), submit_choice(…)      a job, which waits for a worker
opened(job)                             what it is built of, read one row at a time

Who takes over a build begins it anew: rows are written to a file that only its process sees, and the dataset, what it
has of held-out sets, and the job's end are one transaction. Nothing is kept of a build but that.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused, check_choice
from flywheel.environments.versions.environment_versions import check_name
from flywheel.training.datasets.dataset_files import Draft
from flywheel.training.datasets.dataset_uploads import Uploaded, check_card
from flywheel.training.datasets.demonstrations import Gathered, Wanted
from flywheel.training.datasets.uploaded_rows import READERS
from flywheel.training.models import Dataset, DatasetBuild
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.uploads import Upload
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search.query import settled


class Content(Protocol):
    """Rows on their way, and what was left out of them so far."""

    @property
    def kind(self) -> str: ...

    @property
    def done(self) -> int: ...

    @property
    def report(self) -> dict[str, Any]: ...

    @property
    def recipe(self) -> dict[str, Any]: ...

    def rows(self, tell: Callable[[], None]) -> Iterator[dict[str, Any]]: ...

    def refuse_nothing(self) -> None: ...


class FileGone(Refused):
    """The upload is not there any more."""


@transaction.atomic
def submit_upload(
    *,
    project: Project,
    name: str,
    upload: Upload,
    card: Mapping[str, str],
    actor: Actor,
    key: uuid.UUID,
    kind: str = "",
) -> DatasetBuild:
    """Let a worker build a dataset of a file. The same key again is the same build, and the second copy of the file
    goes. Raises Refused."""
    check_name(name)
    card = check_card(card)
    if kind:
        check_choice(kind, READERS, field="kind")
    upload.path.touch()
    about = {"kind": kind, "card": card, "file": upload.name[:200], "upload": upload.token, "total": upload.size}
    job = _submit(project, name, Dataset.Origin.UPLOAD, actor, key, **about)
    if job.upload != upload.token:
        upload.discard()
    return job


@transaction.atomic
def submit_choice(*, name: str, wanted: Wanted, actor: Actor, key: uuid.UUID) -> DatasetBuild:
    """Let a worker build a dataset of trajectories that are there now. The same key again is the same build. Raises
    Refused."""
    check_name(name)
    total = len(Gathered(wanted).keys)
    project = wanted.version.agent.project
    newest = Trajectory.objects.filter(project=project).order_by("-pk").values_list("pk", flat=True).first()
    choice = {
        "version": wanted.version.pk,
        "q": settled(wanted.q) if not wanted.ids else "",
        "ids": list(wanted.ids),
        "good": wanted.good,
        "start": wanted.start,
        "steps": dict(wanted.steps),
        "up_to": newest or 0,
    }
    return _submit(project, name, Dataset.Origin.TRAJECTORIES, actor, key, choice=choice, total=total)


def _submit(
    project: Project, name: str, origin: Dataset.Origin, actor: Actor, key: uuid.UUID, **fields: Any
) -> DatasetBuild:
    job, _ = DatasetBuild.submit(
        key=key,
        actor=actor,
        entry="training.build_dataset",
        about={"name": name, "origin": origin},
        project=project,
        name=name,
        origin=origin,
        through=actor.through[:120],
        **fields,
    )
    return job


@contextmanager
def opened(job: DatasetBuild) -> Iterator[Content]:
    """Read what a build is made of, from its beginning. Raises Refused where that cannot be."""
    if job.origin == Dataset.Origin.TRAJECTORIES:
        version = Version.objects.select_related("agent__project").get(pk=job.choice["version"])
        yield Gathered(Wanted(**job.choice | {"version": version}))
        return
    upload = uploads.find(job.project, job.upload)
    if upload is None:
        raise FileGone("is no longer here; send it again", field="file")
    with upload.open() as file:
        yield Uploaded(job.project, file, job.kind)


def draft_of(job: DatasetBuild, content: Content) -> Draft:
    """Return what is frozen, but for its rows, which are in a file. Raises Refused where none was taken."""
    content.refuse_nothing()
    recipe = content.recipe | ({"file": job.file} if job.file else {})
    return Draft(content.kind, None, [], recipe, job.project, job.origin, job.card)


def discard(job: DatasetBuild) -> None:
    """Delete the file that it was built of."""
    if upload := uploads.find(job.project, job.upload):
        upload.discard()
    DatasetBuild.objects.filter(pk=job.pk).update(upload="")


def sweep() -> None:
    """Delete the files of builds that ended while nobody worked on them, or in the moment before their worker died."""
    ended = DatasetBuild.objects.filter(state__in=[State.SUCCEEDED, State.CANCELLED]).exclude(upload="")
    for job in ended.select_related("project"):
        discard(job)
