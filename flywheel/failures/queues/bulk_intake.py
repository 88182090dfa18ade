"""Sending many trajectories to a review queue at once: an action of `trajectories.bulk`."""

from collections import Counter
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project, Scope
from flywheel.edge.numbers import key
from flywheel.edge.prepared_queries import PreparedQuery
from flywheel.failures.models import Queue
from flywheel.failures.queues import intake
from flywheel.trajectories.models import Bulk
from flywheel.trajectories.operations.bulk_actions import Action, BadBulk, Done, register

_OPEN = PreparedQuery(lambda project: Queue.objects.filter(project=project, archived_at=None).only("name"))


def _choices(project: Project) -> list[tuple[str, str]]:
    return [(str(queue.pk), queue.name) for queue in _OPEN(project.pk)]


def _check(project: Project, options: dict[str, Any]) -> dict[str, Any]:
    wanted = str(options.get("queue", ""))
    queue = Queue.objects.filter(project=project, archived_at=None, pk=key(wanted) or 0).first()
    if queue is None:
        raise BadBulk(f"queue: no open queue named {wanted[:40]!r}")
    return {"queue": queue.pk, "queue_name": queue.name}


def _send(job: Bulk, keys: list[int]) -> Done:
    actor = Actor(job.created_by, job.through or f"bulk action {job.pk}")
    queue = Queue.objects.get(project=job.project_id, pk=job.options["queue"])
    added = intake.add(queue=queue, keys=keys, actor=actor)
    return Done(added, +Counter({"already in the queue": len(keys) - added}))


register(
    Action(
        "queue",
        "Send to queue",
        "sent to the queue",
        Permission.REVIEW,
        Scope.REVIEW,
        _send,
        _check,
        at_once=1000,
        option="queue",
        choices=_choices,
    )
)
