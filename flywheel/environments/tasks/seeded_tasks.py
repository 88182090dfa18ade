"""Tasks out of a seed, for environments whose kind can make them: no failure has to happen first.

A worker makes them (`workers/jobs/task_generation.py`), a few at a time, each with its proof. The same seed gives the
same tasks; those that are there already are left alone, so that whoever goes on after an interruption makes nothing
twice.
"""

import uuid
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.core import envs
from flywheel.core.digests import digest
from flywheel.core.envs.kinds import KINDS
from flywheel.core.verifiers import Runners
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Generation, Split, Task
from flywheel.environments.proofs.red_green_proof import common_wrong, prove
from flywheel.environments.tasks import synthetic_variants
from flywheel.environments.tasks.task_rows import next_number, unsaved_task
from flywheel.environments.versions.environment_versions import latest

AT_MOST = 2000
"""Tasks of one generation."""
LARGEST_SEED = 2**31 - 1


@transaction.atomic
def submit(
    *,
    environment: Environment,
    actor: Actor,
    count: int,
    seed: int,
    key: uuid.UUID,
    options: dict[str, float] | None = None,
) -> Generation:
    """Let a worker make so many tasks. The same key again is the same generation. Raises Refused."""
    kind = KINDS[environment.kind]
    if kind.generate is None:
        raise Refused(f"tasks of kind {environment.kind} are made of labelled failures, not out of a seed")
    latest(environment)
    chosen = {name: default for name, (default, _) in kind.options.items()} | (options or {})
    if unknown := sorted(set(chosen) - set(kind.options)):
        known = f"expected one of {', '.join(kind.options)}" if kind.options else f"{environment.kind} has none"
        raise Refused(f"options.{unknown[0]}: there is no such option; {known}")
    if not 1 <= count <= AT_MOST:
        raise Refused(f"{count} is not from 1 to {AT_MOST}", field="count")
    if not 0 <= seed <= LARGEST_SEED:
        raise Refused(f"{seed} is not from 0 to {LARGEST_SEED}", field="seed")
    try:
        next(kind.generate(1, seed=seed, **chosen))
    except (ValueError, TypeError) as error:
        raise Refused(str(error), field="options") from None
    job, is_new = Generation.submit(
        key=key,
        project=environment.project,
        actor=actor,
        environment=environment,
        count=count,
        seed=seed,
        options=chosen,
        total=count,
    )
    if is_new:
        about: dict[str, Any] = {"count": count, "seed": seed, "options": chosen, "job": job.pk}
        actor.record(project=environment.project, action="environments.generate", subject=environment, **about)
    return job


def parts(job: Generation, at_once: int, runners: Runners) -> Iterator[list[Task]]:
    """Tasks that are still to be made, a few at a time, with their proofs; nothing is saved."""
    version = latest(job.environment)
    common = common_wrong(job.environment, version)
    waiting = islice(_tasks_of(job), job.done, None)
    while some := list(islice(waiting, at_once)):
        found = []
        for pure in some:
            task = _task(job, pure)
            task.proof, task.is_proved = prove(task, version, common=common, runners=runners)
            found.append(task)
        yield found


@transaction.atomic
def keep(job: Generation, tasks: Sequence[Task]) -> int:
    """Save those that are not there yet. Returns how many. What asks the same and wants the same in
    another world is the same: it could stand in the other split."""
    environment = Environment.objects.select_for_update(no_key=True).get(pk=job.environment_id)
    asked = environment.tasks.filter(prompt__in=[task.prompt for task in tasks])
    there = {_identity(prompt, target) for prompt, target in asked.values_list("prompt", "target")}
    new = [task for key, task in {_identity(t.prompt, t.target): t for t in tasks}.items() if key not in there]
    for number, task in enumerate(new, next_number(environment)):
        task.number = number
    Task.objects.bulk_create(new)
    return len(new)


def _tasks_of(job: Generation) -> Iterator[envs.Task]:
    if job.origin is not None:
        return synthetic_variants.made(job)
    generate = KINDS[job.environment.kind].generate
    assert generate is not None, "submit looks"
    return generate(job.count, seed=job.seed, **job.options)


def _identity(prompt: str, target: dict[str, Any]) -> str:
    return digest({"prompt": prompt, "target": target})


def _task(job: Generation, pure: envs.Task) -> Task:
    # A variant stands where its origin stands, whatever was said of splits since.
    split = Split(job.origin.split) if job.origin else None
    about = {"generation": job, "is_synthetic": True, "created_by": job.created_by}
    return unsaved_task(job.environment, pure, split=split, **about)
