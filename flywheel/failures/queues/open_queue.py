"""The open queue: everything proposed that waits for a decision, in which order, and what comes after which.

In the queue of a bucket that the watch saw come back, the trajectories that showed it come first. Nothing in it is
reserved: whoever comes second learns of the first. `reservations.py` hands out the items of made queues.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.edge.numbers import number
from flywheel.edge.paging import about, beyond
from flywheel.failures.buckets.bucket_definitions import every, name_of
from flywheel.failures.models import BucketLife, Failure, Proposal, Recurrence, Review
from flywheel.trajectories.models import Source, Trajectory

ORDERS = {"score": "most certain first", "newest": "newest first", "oldest": "oldest first"}
_ORDERED = {"score": ("-proposed_score", "-pk"), "newest": ("-started_at", "-pk"), "oldest": ("started_at", "pk")}
BEFORE, AFTER = 8, 40
"""Items that the list shows around the one in hand."""
RAIL_MOST = 1000
"""One more than the rail counts."""
RECENT = timedelta(hours=12)
"""How far back a reviewer's own decisions can be undone from the queue: about one sitting."""


@dataclass(frozen=True)
class Filters:
    """The filters in the page's address. Empty text means no filter."""

    bucket: str = ""
    detector: str = ""
    version: str = ""
    """`agent@number`."""
    order: str = "score"
    problems: list[str] = field(default_factory=list)
    """Filters that mean nothing here, which are said and left out."""

    @classmethod
    def read(cls, project: Project, given: Mapping[str, str]) -> "Filters":
        known: dict[str, Iterable[str]] = {"bucket": every(project), "detector": DETECTORS, "order": ORDERS}
        values, problems = {}, []
        for name, choices in known.items():
            value = given.get(name, "")
            if value and value not in choices:
                problems.append(f"{name}: {value[:60]!r} is unknown; use one of {', '.join(choices)}")
            elif value:
                values[name] = value
        return cls(**values, version=given.get("version", "")[:120], problems=problems)

    @property
    def query(self) -> str:
        """As it stands in the address, without the question mark."""
        chosen = {"bucket": self.bucket, "detector": self.detector, "version": self.version}
        if self.order != "score":
            chosen["order"] = self.order
        return urlencode({name: value for name, value in chosen.items() if value})

    def describe(self, project: Project) -> str:
        parts = [name_of(project, self.bucket) if self.bucket else "everything proposed"]
        if self.detector:
            parts.append(f"by {self.detector}")
        if self.version:
            parts.append(f"of {self.version}")
        return " ".join(parts)


def waiting(project: Project, filters: Filters) -> QuerySet[Trajectory]:
    """Trajectories with a proposal and without a decision, in the order of the filters."""
    rows = Trajectory.objects.filter(project=project, label="", proposed_bucket__gt="").exclude(
        source__in=Source.ATTEMPTS
    )
    if filters.bucket:
        rows = rows.filter(proposed_bucket=filters.bucket)
    if filters.detector:
        rows = rows.filter(pk__in=Proposal.objects.filter(detector=filters.detector).values("trajectory"))
    if filters.version:
        agent, _, version = filters.version.partition("@")
        rows = rows.filter(agent__name=agent, version__number=number(version) or 0)
    return rows.order_by(*_ORDERED[filters.order])


def waiting_in_all(project: Project) -> int:
    """Count what waits, whatever the filters, up to `RAIL_MOST`: what the rail beside the desk says."""
    return waiting(project, Filters()).order_by()[:RAIL_MOST].count()


def first(project: Project, filters: Filters) -> Trajectory | None:
    return _first(_Walk.of(project, filters).parts)


def next_after(project: Project, filters: Filters, item: Trajectory) -> Trajectory | None:
    """The item to look at after this one; from the end it goes on at the beginning."""
    walk = _Walk.of(project, filters)
    own, *later = walk.parts[walk.place_of(item) :]
    return _first([_after(own, item, filters), *later, *(rows.exclude(pk=item.pk) for rows in walk.parts)])


def around(project: Project, filters: Filters, item: Trajectory | None) -> dict[str, Any]:
    """The list of items with the one in hand among them, and where it leads before and after it."""
    walk = _Walk.of(project, filters)
    count, is_about = about(walk.parts[-1])
    counted = {"count": count + sum(rows.count() for rows in walk.parts[:-1]), "is_about": is_about}
    if item is None:
        return {"items": [], "previous": None, "next": None, **counted}
    place = walk.place_of(item)
    behind = [_before(walk.parts[place], item, filters), *(rows.reverse() for rows in reversed(walk.parts[:place]))]
    ahead = [_after(walk.parts[place], item, filters), *walk.parts[place + 1 :]]
    earlier, later = _up_to(BEFORE, behind)[::-1], _up_to(AFTER, ahead)
    return {
        "items": [*earlier, item, *later],
        "previous": earlier[-1] if earlier else None,
        "next": later[0] if later else next_after(project, filters, item),
        **counted,
    }


@dataclass(frozen=True, slots=True)
class _Walk:
    """Trajectories that wait, in their order. Those by which the bucket came back are a part of their own before the
    others, so that each part is read along its index."""

    back: Collection[int]
    """Keys of those, while nobody has said whether it is the same failure."""
    parts: list[QuerySet[Trajectory]]

    @classmethod
    def of(cls, project: Project, filters: Filters) -> "_Walk":
        rows = waiting(project, filters)
        lives = BucketLife.objects.filter(project=project, bucket=filters.bucket or None)
        unanswered = lives.filter(reopened_by_watch__answer=Recurrence.Answer.OPEN)
        back = unanswered.values_list("reopened_by_watch__trajectories", flat=True).first()
        if not back:
            return cls((), [rows])
        # Also those of which another bucket is proposed more strongly.
        of_any = waiting(project, replace(filters, bucket=""))
        return cls(back, [of_any.filter(pk__in=back), rows.exclude(pk__in=back)])

    def place_of(self, item: Trajectory) -> int:
        """The place of the part that it is in; it need not wait any more."""
        return 0 if item.pk in self.back else len(self.parts) - 1


def _first(parts: Iterable[QuerySet[Trajectory]]) -> Trajectory | None:
    return next((found for rows in parts if (found := rows.first())), None)


def _up_to(most: int, parts: Iterable[QuerySet[Trajectory]]) -> list[Trajectory]:
    found: list[Trajectory] = []
    for rows in parts:
        found += rows[: most - len(found)] if len(found) < most else ()
    return found


def _after(rows: QuerySet[Trajectory], item: Trajectory, filters: Filters) -> QuerySet[Trajectory]:
    """Select the rows that come after the item; the item itself need not be among them any more."""
    return rows.filter(_beyond(item, filters, "gt" if filters.order == "oldest" else "lt"))


def _before(rows: QuerySet[Trajectory], item: Trajectory, filters: Filters) -> QuerySet[Trajectory]:
    """Select the rows that come before the item, the nearest first."""
    return rows.filter(_beyond(item, filters, "lt" if filters.order == "oldest" else "gt")).reverse()


def _beyond(item: Trajectory, filters: Filters, side: str) -> Q:
    if filters.order == "score":
        return beyond(("proposed_score", "pk"), [item.proposed_score or 0.0, item.pk], side)
    return beyond(("started_at", "pk"), [item.started_at, item.pk], side)


def own_decisions(project: Project, user: User) -> QuerySet[Failure]:
    """The person's own decisions of this sitting that still count, the latest first: what undo takes back.

    What was decided on an item of a queue is undone there, with the review that it came of.
    """
    since = timezone.now() - RECENT
    of_an_item = Review.objects.filter(item__outcome=OuterRef("pk"))
    return (
        Failure.objects.filter(project=project, labelled_by=user, current=True, labelled_at__gte=since)
        .exclude(Exists(of_an_item))
        .select_related("trajectory")
        .order_by("-labelled_at", "-pk")
    )


def pace(project: Project, user: User) -> dict[str, int]:
    """Count the trajectories that the person decided today and within the last hour."""
    now = timezone.now()
    mine = Failure.objects.filter(project=project, labelled_by=user, taken_back_at=None).values("trajectory").distinct()
    return {
        "today": mine.filter(labelled_at__gte=now - timedelta(days=1)).count(),
        "hour": mine.filter(labelled_at__gte=now - timedelta(hours=1)).count(),
    }


def versions(project: Project) -> list[str]:
    """List the versions that the filter offers, newest first."""
    rows = Version.objects.filter(agent__project=project).select_related("agent").order_by("agent__name", "-number")
    return [str(version) for version in rows[:50]]
