"""Synthetic variants of a task, made and proved by a worker: the generation of a task that is there.

A variant stands in its origin's cluster, and therefore in its split: what is varied of a held-out task is held out. It
asks what no other task of the environment asks, names nobody whom the other split names, and is proved as every task
is; that its origin's answer fails on it is one more check (`red_green_proof`). What made it never changes, so it is
synthetic for ever.
"""

import re
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.core import envs
from flywheel.core.envs import task_variants
from flywheel.core.envs.kinds import KINDS, players
from flywheel.core.envs.task_variants import Entity, Spec
from flywheel.core.text.normal_form import normalise
from flywheel.edge.refusals import Refused
from flywheel.environments.models import MEASURED, Generation, Split, Task
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_versions import latest

AT_MOST = 200
"""Variants of one task at once."""
PERSONAL = ("name", "email", "id")
"""Kinds of entities of which the other split's own are not used."""


def offered(task: Task) -> list[Entity]:
    """List entities to swap in a task; none where somebody else's server judges, for it knows its own rows alone, and
    none where a team's own functions play, for which ids are keys and parts of paths."""
    config = latest(task.environment).config
    return [] if players(task.environment.kind, config) else task_variants.entities(core_task(task))


@transaction.atomic
def submit(*, task: Task, actor: Actor, count: int, seed: int, spec: Spec, key: uuid.UUID) -> Generation:
    """Let a worker make variants of a proved task. The same key again is the same generation. Raises Refused."""
    if not task.is_proved or task.retired_at is not None:
        raise Refused(f"{task} is {'retired' if task.retired_at else 'not proved'}; nothing can be made of it")
    if KINDS[task.environment.kind].is_world:
        raise Refused(f"{task} is of a world of one's own; write another task, or import a file of them")
    if KINDS[task.environment.kind].is_external:
        raise Refused(f"{task.environment} is somebody else's server, which judges its own rows and no variants")
    if task.generation is not None and task.generation.origin_id is not None:
        raise Refused(f"{task} is a variant itself; make variants of {task.generation.origin}")
    if not 1 <= count <= AT_MOST:
        raise Refused(f"{count} is not from 1 to {AT_MOST}", field="count")
    if not 0 <= seed < 2**31:
        raise Refused(f"{seed} is not from 0 to {2**31 - 1}", field="seed")
    latest(task.environment)
    task_variants.check(core_task(task), spec)
    job, is_new = Generation.submit(
        key=key,
        project=task.project,
        actor=actor,
        environment=task.environment,
        origin=task,
        count=count,
        seed=seed,
        options=spec.to_json(),
        total=count,
    )
    if is_new:
        about: dict[str, Any] = {"count": count, "seed": seed, "job": job.pk}
        subject = f"{task.environment.name}/{task}"
        actor.record(project=task.project, action="environments.vary", subject=subject, **about)
    return job


def made(job: Generation) -> Iterator[envs.Task]:
    """The variants of a job, always the same: what it has saved itself is not in its own way."""
    origin = job.origin
    assert origin is not None
    others = origin.environment.tasks.exclude(generation=job)
    taken = {normalise(prompt) for prompt in others.values_list("prompt", flat=True)}
    apart = [Split.TRAIN] if origin.split in MEASURED else MEASURED
    told = "\n".join(others.filter(split__in=apart).values_list("prompt", flat=True))

    def forbidden(entity: Entity, value: str) -> bool:
        return entity.kind in PERSONAL and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", told) is not None

    found = task_variants.make(
        core_task(origin), Spec.from_json(job.options), seed=job.seed, taken=taken, forbidden=forbidden
    )
    return islice(found, job.count)
