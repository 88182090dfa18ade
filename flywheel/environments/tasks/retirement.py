"""Take a task out of use."""

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.environments.models import Task
from flywheel.environments.versions.environment_versions import CannotMake


@transaction.atomic
def retire(*, task: Task, actor: Actor, reason: str) -> Task:
    """Keep the task out of every future task set; frozen sets keep it. Raises CannotMake without a reason."""
    if not reason.strip():
        raise CannotMake("reason: say why this task should not be used any more")
    if Task.objects.filter(pk=task.pk, retired_at=None).update(retired_at=timezone.now()):
        actor.record(
            project=task.project,
            action="environments.retire",
            subject=f"{task.environment.name}/{task}",
            reason=reason.strip(),
        )
    task.refresh_from_db()
    return task
