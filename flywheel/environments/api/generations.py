"""For programs: tasks that an environment makes out of a seed."""

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Body
from flywheel.environments.api.environments import find_environment
from flywheel.environments.models import Generation
from flywheel.environments.tasks import seeded_tasks
from flywheel.environments.versions.environment_versions import CannotMake

router = Router(tags=["environments"])


class GenerateIn(Body):
    count: int
    """From 1 to 2000."""
    seed: int = 1
    """The same seed makes the same tasks; those that are there already are not made again."""
    options: dict[str, float] = {}
    """As the kind knows them: `low` and `high` of `tictactoe`."""
    key: uuid.UUID | None = None
    """Of your own making: the same key again is the same generation."""


class GenerationOut(Schema):
    id: int
    environment: str
    count: int
    seed: int
    options: dict[str, Any]
    origin: int | None
    """The number of the task whose variants these are."""
    state: str
    done: int
    made: int
    error: str
    created_at: datetime
    finished_at: datetime | None

    @staticmethod
    def resolve_environment(row: Generation) -> str:
        return row.environment.name

    @staticmethod
    def resolve_origin(row: Generation) -> int | None:
        return row.origin.number if row.origin else None


@router.post(
    "/environments/{name}/tasks/generate",
    response={202: GenerationOut},
    auth=Key(Scope.BUILD),
    operation_id="generate_tasks",
)
def generate_tasks(request: HttpRequest, name: str, wanted: GenerateIn) -> Status[Generation]:
    """Make tasks out of a seed in the background, for a kind that needs no recorded failure."""
    try:
        job = seeded_tasks.submit(
            environment=find_environment(request, name),
            actor=keyed(request).actor,
            count=wanted.count,
            seed=wanted.seed,
            options=wanted.options,
            key=wanted.key or uuid.uuid4(),
        )
    except CannotMake as error:
        raise HttpError(422, str(error)) from None
    return Status(202, job)


@router.get("/generations/{pk}", response=GenerationOut, auth=Key(Scope.READ), operation_id="get_generation")
def get_generation(request: HttpRequest, pk: int) -> Generation:
    """How far it is."""
    return _generation(request, pk)


@router.post(
    "/generations/{pk}/cancel", response=GenerationOut, auth=Key(Scope.BUILD), operation_id="cancel_generation"
)
def cancel_generation(request: HttpRequest, pk: int) -> Generation:
    """Ask for an end; tasks that are made stay."""
    return _generation(request, pk).cancel(keyed(request).actor)


def _generation(request: HttpRequest, pk: int) -> Generation:
    rows = Generation.objects.select_related("environment")
    found = rows.filter(project=keyed(request).project, pk=pk).first()
    if found is None:
        raise HttpError(404, f"there is no generation {pk}")
    return found
