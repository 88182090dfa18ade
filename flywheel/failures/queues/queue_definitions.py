"""Making, changing and archiving a queue."""

from collections.abc import Collection
from dataclasses import dataclass, field

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import NoticeEvent, Project, User
from flywheel.accounts.notices import notify
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.edge.refusals import Refused, check_choice
from flywheel.failures.buckets.bucket_definitions import offered
from flywheel.failures.models import Queue, Rule
from flywheel.failures.project_reviewers import named

AT_MOST = 9
"""Reviewers per item; more agree no better and cost a day."""
LONGEST = 24 * 60
"""Minutes of a reservation."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested definition of a queue."""

    name: str
    instructions: str = ""
    rule: str = Rule.HAND
    bucket: str = ""
    detector: str = ""
    percent: float | None = None
    needed: int = 1
    assignees: list[str] = field(default_factory=list)
    """Usernames; empty for everyone who may label."""
    minutes: int = 15


def make(*, project: Project, actor: Actor, wanted: Wanted, with_existing: bool = False) -> Queue:
    """Make a queue. `with_existing` applies the rule to what is there already too. Raises Refused."""
    return _save(Queue(project=project, created_by=actor.user), actor, wanted, with_existing, "failures.make_queue")


def change(*, queue: Queue, actor: Actor, wanted: Wanted, with_existing: bool = False) -> Queue:
    """Make the queue so; what is in it stays, and what was decided too. Raises Refused."""
    return _save(queue, actor, wanted, with_existing, "failures.change_queue")


@transaction.atomic
def archive(*, queue: Queue, actor: Actor, is_archived: bool = True) -> None:
    """Close the queue, or open it again: nothing is added to an archived queue and nobody is given anything of it."""
    moment = timezone.now() if is_archived else None
    changed = Queue.objects.filter(pk=queue.pk, archived_at__isnull=is_archived).update(archived_at=moment)
    queue.archived_at = moment
    if changed:
        action = "failures.archive_queue" if is_archived else "failures.unarchive_queue"
        actor.record(project=queue.project, action=action, subject=f"queue {queue}")


@transaction.atomic
def _save(queue: Queue, actor: Actor, wanted: Wanted, with_existing: bool, action: str) -> Queue:
    people = _check(queue, wanted)
    is_sample, is_detected = wanted.rule == Rule.SAMPLE, wanted.rule == Rule.DETECTED
    queue.name, queue.instructions, queue.rule = wanted.name.strip(), wanted.instructions.strip(), wanted.rule
    queue.bucket, queue.detector = (wanted.bucket, wanted.detector) if is_detected else ("", "")
    queue.percent = wanted.percent if is_sample else None
    queue.needed, queue.minutes = wanted.needed, wanted.minutes
    queue.caught_up_at = None if with_existing and wanted.rule != Rule.HAND else timezone.now()
    before = set(queue.assignees.all()) if queue.pk else set()
    queue.save()
    queue.assignees.set(people)
    if new := set(people) - before - {actor.user}:
        _tell(queue, new, actor)
    actor.record(
        project=queue.project,
        action=action,
        subject=f"queue {queue}",
        rule=wanted.rule,
        needed=wanted.needed,
        assignees=sorted(person.username for person in people),
    )
    return queue


def _tell(queue: Queue, people: Collection[User], actor: Actor) -> None:
    notify(
        project=queue.project,
        event=NoticeEvent.QUEUE_ASSIGNED,
        subject=f"queue {queue.pk}",
        title=f"{actor.user} assigned the queue {queue} to {', '.join(sorted(person.username for person in people))}",
        url=f"/p/{queue.project.slug}/failures/queues/{queue.pk}/",
        to=people,
    )


def _check(queue: Queue, wanted: Wanted) -> list[User]:
    """Raise Refused for what does not fit; returns the people named."""
    name = wanted.name.strip()
    if not name or len(name) > 100:
        raise Refused("expected between 1 and 100 characters", field="name")
    if any("\0" in text for text in (name, wanted.instructions)):
        raise Refused("name and instructions: remove the null character")
    if Queue.objects.filter(project=queue.project, name=name).exclude(pk=queue.pk).exists():
        raise Refused(f"a queue {name!r} already exists", field="name")
    check_choice(wanted.rule, Rule.values, field="rule")
    buckets = [bucket.key for bucket in offered(queue.project, queue.bucket)]
    check_choice(wanted.bucket, ["", *buckets], field="bucket")
    check_choice(wanted.detector, ["", *DETECTORS], field="detector")
    if wanted.rule == Rule.SAMPLE and not 0 < (wanted.percent or 0) <= 100:
        raise Refused("expected more than 0 and at most 100", field="percent")
    becomes_sample = wanted.rule == Rule.SAMPLE and queue.pk is not None and queue.rule != Rule.SAMPLE
    if becomes_sample and queue.items.filter(added_by=None).exists():
        raise Refused(
            "this queue's items came from another rule, and a sample must be random; create a new queue", field="rule"
        )
    if not 1 <= wanted.minutes <= LONGEST:
        raise Refused(f"expected between 1 and {LONGEST}", field="minutes")
    people = named(queue.project, wanted.assignees, field="assignees")
    if not 1 <= wanted.needed <= AT_MOST:
        raise Refused(f"expected between 1 and {AT_MOST} reviewers", field="needed")
    if people and wanted.needed > len(people):
        raise Refused(f"{wanted.needed} reviewers needed, {len(people)} named", field="needed")
    return people
