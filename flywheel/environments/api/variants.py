"""Synthetic variants for programs."""

import uuid

from django.http import HttpRequest
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.core.envs.task_variants import Entity, Spec
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.api.generations import GenerationOut
from flywheel.environments.api.tasks import find_task
from flywheel.environments.models import Generation
from flywheel.environments.tasks import synthetic_variants

router = Router(tags=["environments"])


class EntityOut(Schema):
    text: str
    kind: str


class VariantsIn(Body):
    swap: list[str] = Field(default_factory=list, description="Texts of the entities to swap, from `list_entities`.")
    values: dict[str, list[str]] = Field(
        default_factory=dict, description="Values to use, by entity; those for other entities are drawn."
    )
    wordings: list[str] = Field(default_factory=list, description="Templates that contain every entity in braces.")
    count: int = 10
    """Number of variants to create."""
    seed: int = 1
    """The same seed draws the same values."""
    key: uuid.UUID | None = Field(None, description="Your own UUID. Repeating a key returns the same generation.")


@router.get("/environments/{name}/tasks/{int:number}/entities", response=list[EntityOut], auth=Key(Scope.READ))
def list_entities(request: HttpRequest, name: str, number: int) -> list[Entity]:
    """List the entities that variants of the task can swap: those in both its request and its target. At most 60 are
    returned, from the first 8,000 characters of the request."""
    return synthetic_variants.offered(find_task(request, name, number))


@router.post("/environments/{name}/tasks/{int:number}/variants", response={202: GenerationOut}, auth=Key(Scope.BUILD))
def make_variants(request: HttpRequest, name: str, number: int, wanted: VariantsIn) -> Status[Generation]:
    """Have a worker create synthetic variants of the task. Each is proved, and belongs to the task's cluster and
    split."""
    spec = Spec(
        tuple(wanted.swap), {text: tuple(values) for text, values in wanted.values.items()}, tuple(wanted.wordings)
    )
    job = synthetic_variants.submit(
        task=find_task(request, name, number),
        actor=keyed(request).actor,
        count=wanted.count,
        seed=wanted.seed,
        spec=spec,
        key=wanted.key or uuid.uuid4(),
    )
    return Status(202, job)
