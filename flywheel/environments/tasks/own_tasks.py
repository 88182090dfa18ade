"""Tasks that a person writes, for worlds of their own: the request, how the world begins, and what is wanted.

What is wanted may be left out: such a task is a draft, which nobody proves and no set takes, until somebody has played
it and says that this is right (`playground.played_targets`).
"""

from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.core import envs
from flywheel.core.digests import digest
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.worlds import own_world
from flywheel.core.envs.worlds.own_world import world_of
from flywheel.core.text.normal_form import normalise
from flywheel.core.verifiers import VerifierError
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, EnvironmentVersion, Task
from flywheel.environments.proofs.proof_jobs import ask
from flywheel.environments.proofs.red_green_proof import begun
from flywheel.environments.tasks.task_rows import next_number, unsaved_task
from flywheel.environments.versions.environment_versions import latest

LONGEST_REQUEST = 20_000
"""Characters."""
DRAFT: dict[str, Any] = {"wanted": []}
"""The target of a task that nobody has played yet."""


@transaction.atomic
def write(
    *,
    environment: Environment,
    actor: Actor,
    prompt: str,
    state: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    group: str = "",
    slice_: str = "",
) -> Task:
    """A task of a world, which a worker proves; a draft without a target. Tasks of one `group` fall into one split.
    Raises Refused and VerifierError."""
    version = latest(environment)
    if not KINDS[environment.kind].is_world:
        raise Refused(f"{environment} is of kind {environment.kind}; tasks are written for worlds of one's own")
    if not prompt.strip() or len(prompt) > LONGEST_REQUEST or "\0" in prompt:
        raise Refused(f"expected a text of 1 to {LONGEST_REQUEST:,} characters", field="prompt")
    check(version, state or {}, target)
    Environment.objects.select_for_update(no_key=True).get(pk=environment.pk)
    cluster = group.strip() or f"written {digest(normalise(prompt))[:16]}"
    pure = envs.Task("", prompt.strip(), target or DRAFT, state or {}, cluster[:200], slice_.strip()[:100])
    task = unsaved_task(environment, pure, number=next_number(environment), created_by=actor.user)
    if (there := environment.tasks.filter(digest=task.digest).first()) is not None:
        raise Refused(f"{there} asks and wants the very same", field="prompt")
    task.proof = begun(None, None) if target else {}
    task.save()
    if target:
        ask(environment, actor)
    subject = f"{environment.name}/{task}"
    actor.record(project=environment.project, action="environments.write_task", subject=subject, split=task.split)
    return task


def is_draft(task: Task) -> bool:
    """Whether nobody has said yet what is wanted of it."""
    return bool(task.target == DRAFT)


@transaction.atomic
def complete(task: Task, target: dict[str, Any], actor: Actor) -> Task:
    """Say what is wanted of a draft; a worker proves it. Raises Refused and VerifierError."""
    row = Task.objects.select_for_update(no_key=True).select_related("environment__project").get(pk=task.pk)
    if not is_draft(row):
        raise Refused(f"{row} already has its target; write another task for another target")
    check(latest(row.environment), row.state, target)
    row.target = target
    row.digest = digest({"prompt": row.prompt, "state": row.state, "target": target})
    if (there := row.environment.tasks.filter(digest=row.digest).first()) is not None:
        raise Refused(f"{there} asks and wants the very same")
    row.proof = begun(None, None)
    row.save(update_fields=["target", "digest", "proof"])
    ask(row.environment, actor)
    subject = f"{row.environment.name}/{row}"
    actor.record(project=row.project, action="environments.complete_task", subject=subject)
    return row


def check(version: EnvironmentVersion, state: dict[str, Any], target: dict[str, Any] | None) -> None:
    """Raise VerifierError, which names the field, for what no task of this world can be."""
    env = envs.build(version.environment.kind, version.config, version.verifier)
    world = world_of(env)
    assert world is not None
    try:
        own_world.check_task(env.tools, state, target, has_state=world.has_state)
    except (RecursionError, TypeError, ValueError) as error:
        raise error if isinstance(error, VerifierError) else VerifierError("target: it cannot be read") from None
