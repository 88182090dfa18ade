"""For programs: tasks that an environment makes out of a seed."""

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import Number, Ref
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.api.environments import find_environment
from flywheel.environments.models import Generation
from flywheel.environments.tasks import seeded_tasks

router = Router(tags=["environments"])


class GenerateIn(Body):
    count: int
    """From 1 to 2000."""
    seed: int = 1
    """The same seed makes the same tasks; existing ones are not created again."""
    options: dict[str, float] = {}
    """Options of the kind: `low` and `high` for `tictactoe`."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same generation."""


class GenerationOut(Schema):
    id: int
    environment: Ref
    count: int
    seed: int
    options: dict[str, Any]
    origin: Number | None
    """Number of the task that these are variants of; null for other tasks."""
    state: str
    done: int
    """Tasks finished so far, of `count`."""
    made: int
    """New tasks among those `done`; the others already exist."""
    error: str
    created_at: datetime
    finished_at: datetime | None


@router.post("/environments/{name}/tasks/generate", response={202: GenerationOut}, auth=Key(Scope.BUILD))
def generate_tasks(request: HttpRequest, name: str, wanted: GenerateIn) -> Status[Generation]:
    """Generate tasks from a seed in the background, for a kind of environment that needs no recorded failures."""
    job = seeded_tasks.submit(
        environment=find_environment(request, name),
        actor=keyed(request).actor,
        count=wanted.count,
        seed=wanted.seed,
        options=wanted.options,
        key=wanted.key or uuid.uuid4(),
    )
    return Status(202, job)


@router.get("/generations/{pk}", response=GenerationOut, auth=Key(Scope.READ))
def get_generation(request: HttpRequest, pk: int) -> Generation:
    """Return a generation with its progress."""
    return one(Generation.objects.select_related("environment").filter(project=keyed(request).project), pk=pk)


@router.post("/generations/{pk}/cancel", response=GenerationOut, auth=Key(Scope.BUILD))
def cancel_generation(request: HttpRequest, pk: int) -> Generation:
    """Cancel the generation; tasks created so far are kept. 409 if it has finished."""
    return get_generation(request, pk).cancel(keyed(request).actor)
