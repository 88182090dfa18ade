"""Take a task out of use."""

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Task


@transaction.atomic
def retire(*, task: Task, actor: Actor, reason: str) -> Task:
    """Keep the task out of every future task set; frozen sets keep it. Raises Refused without a reason."""
    if not reason.strip():
        raise Refused("enter the reason why this task should no longer be used", field="reason")
    if Task.objects.filter(pk=task.pk, retired_at=None).update(retired_at=timezone.now()):
        subject = f"{task.environment.name}/{task}"
        actor.record(project=task.project, action="environments.retire", subject=subject, reason=reason.strip())
    task.refresh_from_db()
    return task
