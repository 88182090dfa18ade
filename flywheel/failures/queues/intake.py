"""The intake of a queue: by hand, or by its rule. Adding again what is there already does nothing.

Rules are applied where what they ask becomes known: `detected` and `sample` in the transaction in which detectors have
read a trajectory, `disagreed` when reviewers of another queue disagree. `catch_up` applies the rule of a new queue to
what was there before, in the background.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from django.db import transaction
from django.db.models import DateTimeField, ExpressionWrapper, OuterRef, Subquery
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.failures.models import OPEN, Queue, QueueItem, Recurrence, Rule
from flywheel.system.sql import bound
from flywheel.trajectories.models import Source, Trajectory

AT_ONCE = 5_000


def keys_of(project: Project, text: str, limit: int = 5_000) -> tuple[list[int], list[str]]:
    """The trajectories that these trace ids name, in this order, and the ids that name none."""
    names = list(dict.fromkeys(re.findall(r"[^\s,;]+", text)))[:limit]
    found = dict(Trajectory.objects.filter(project=project, trace_id__in=names).values_list("trace_id", "pk"))
    return [found[name] for name in names if name in found], [name for name in names if name not in found]


def add(*, queue: Queue, keys: Iterable[int], actor: Actor) -> int:
    """Add these trajectories of the queue's project by hand, in this order; returns how many were not in it yet."""
    count, waiting = 0, iter(keys)
    with transaction.atomic():
        while some := list(islice(waiting, AT_ONCE)):
            count += bound(_ADD, {"queue": queue.pk, "keys": some, "actor": actor.user.pk}).rowcount
        if count:
            actor.record(
                project=queue.project, action="failures.add_to_queue", subject=f"queue {queue}", trajectories=count
            )
    return count


def after_detection(keys: Sequence[int]) -> int:
    """Detectors have read these trajectories: put those into the queues that a rule wants there."""
    return _insert(_RULES.format(since="queue.created_at"), "row.id = ANY(%(keys)s)", keys=list(keys))


def put_first(recurrence: Recurrence) -> int:
    """The bucket came back: in its queues the trajectories that showed it are handed out next. Returns how many."""
    waiting = QueueItem.objects.filter(queue=OuterRef("queue"), state__in=OPEN).order_by("queued_at")
    before = ExpressionWrapper(
        Subquery(waiting.values("queued_at")[:1]) - timedelta(microseconds=1), output_field=DateTimeField()
    )
    rows = QueueItem.objects.filter(
        queue__project=recurrence.project,
        queue__bucket=recurrence.bucket,
        queue__archived_at=None,
        state__in=OPEN,
        trajectory__in=recurrence.trajectories,
    )
    return rows.update(queued_at=before)


def disagreed(trajectory: Trajectory) -> int:
    """Reviewers disagree on it."""
    return _insert(_DISAGREED, "row.id = %(key)s", key=trajectory.pk)


def catch_up() -> int:
    """Apply the rules of queues that ask for what was there before them. Returns how many items that made."""
    count = 0
    for queue in Queue.objects.filter(caught_up_at=None, archived_at=None):
        with transaction.atomic():
            rule = _DISAGREED if queue.rule == Rule.DISAGREED else _RULES.format(since="'-infinity'")
            count += _insert(rule, "queue.id = %(queue)s", queue=queue.pk)
            Queue.objects.filter(pk=queue.pk).update(caught_up_at=timezone.now())
    return count


def _insert(rule: str, scope: str, **values: Any) -> int:
    return bound(_INSERT.format(rule=rule, scope=scope), values).rowcount


_ADD = """
INSERT INTO failures_queueitem (queue_id, trajectory_id, state, queued_at, added_at, added_by_id)
SELECT queue.id, row.id, 'to_review', now(), now(), %(actor)s
FROM unnest(%(keys)s::bigint[]) WITH ORDINALITY AS wanted (id, place)
JOIN failures_queue AS queue ON queue.id = %(queue)s
JOIN trajectories_trajectory AS row ON row.id = wanted.id AND row.project_id = queue.project_id
ORDER BY wanted.place
ON CONFLICT (queue_id, trajectory_id) DO NOTHING
"""

_INSERT = """
INSERT INTO failures_queueitem (queue_id, trajectory_id, state, queued_at, added_at)
SELECT queue.id, row.id, 'to_review', now(), now()
FROM failures_queue AS queue JOIN trajectories_trajectory AS row ON row.project_id = queue.project_id
WHERE queue.archived_at IS NULL AND {scope} AND {rule}
ORDER BY row.id
ON CONFLICT (queue_id, trajectory_id) DO NOTHING
"""

_RULES = f"""row.source NOT IN {Source.ATTEMPTS_SQL} AND (
    queue.rule = 'detected' AND row.label = '' AND row.proposed_bucket <> '' AND EXISTS (
        SELECT FROM failures_proposal AS proposal
        WHERE proposal.trajectory_id = row.id AND queue.bucket IN ('', proposal.bucket)
            AND queue.detector IN ('', proposal.detector)
    )
    OR queue.rule = 'sample' AND row.received_at >= {{since}}
        AND ('x' || substr(md5(queue.id || ' ' || row.trace_id), 1, 8))::bit(32)::bigint < queue.percent / 100 * 2 ^ 32
)"""
"""Whether a trajectory is in a sample depends on its id and the queue alone: it stays in or out however it grows."""

_DISAGREED = """queue.rule = 'disagreed' AND row.id IN (
    SELECT item.trajectory_id
    FROM failures_queueitem AS item
    JOIN failures_queue AS other ON other.id = item.queue_id
    JOIN failures_review AS said ON said.item_id = item.id AND said.current AND NOT said.declined
    WHERE item.queue_id <> queue.id AND other.project_id = queue.project_id AND item.state = 'needs_another'
    GROUP BY item.id, item.trajectory_id, other.needed
    HAVING count(*) >= other.needed AND count(DISTINCT said.bucket) > 1
)"""
