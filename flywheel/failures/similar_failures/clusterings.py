"""Clustering failures: asking for it, what a worker does, and what is written down of a cluster.

What people change in the clusters is in `cluster_edits.py`, labelling them in `cluster_labels.py`.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Max, Min, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.evidence.similarity import average_linkage, failure_similarity
from flywheel.core.evidence.similarity.failure_similarity import Space
from flywheel.edge.refusals import Refused, check_choice
from flywheel.failures.buckets import bucket_definitions
from flywheel.failures.models import By, Cluster, Clustering, Fineness, Member, Which
from flywheel.failures.similar_failures.sketches import failures_of, hold, keep, sketches_of, terms_of, unread
from flywheel.trajectories.formats.values.hostile_json import text
from flywheel.trajectories.models import Label, Trajectory
from flywheel.trajectories.search.query import parse, settled

AT_MOST = 20_000
"""Failures of one clustering, the newest."""
READ_AT_ONCE = 200
NAMED_BY = 12
"""Members, the most typical, whose words a cluster is told by."""
SEED = 0
APART: Final[dict[str, float]] = {Fineness.COARSE: 0.65, Fineness.MEDIUM: 0.5, Fineness.FINE: 0.35}
"""Mean distance of two clusters from which on they stay two."""
CLOSER = 0.9
"""A cluster is taken apart where its parts are further apart than this share of its own members' distance."""
WEIGHTS: Final[dict[str, dict[str, float]]] = {
    By.BOTH: failure_similarity.WEIGHTS,
    By.TEXT: failure_similarity.TEXT_ALONE,
    By.CALLS: failure_similarity.CALLS_ALONE,
}
DAYS = (0, 1, 7, 30, 90)
"""Periods that a clustering may look back; 0 is for everything."""


# What a person does


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The failures to cluster, and by what; unchecked."""

    which: str = Which.BOTH
    bucket: str = ""
    """Empty for all of them."""
    days: int = 0
    """How far to look back; 0 for everything."""
    q: str = ""
    """A further filter in the filter bar's language."""
    by: str = By.BOTH
    fineness: str = Fineness.MEDIUM

    def check(self, project: Project) -> None:
        """Raise Refused for what no clustering of this project can have."""
        check_choice(self.which, Which.values, field="which")
        check_choice(self.by, By.values, field="by")
        check_choice(self.fineness, Fineness.values, field="fineness")
        check_choice(self.bucket, ["", *bucket_definitions.every(project)], field="bucket")
        if self.days not in DAYS:
            raise Refused(f"expected one of {', '.join(map(str, DAYS))}, 0 for everything", field="days")
        if problems := parse(self.q).problems:
            raise Refused(" ".join(problems), field="q")


@transaction.atomic
def submit(*, project: Project, actor: Actor, key: uuid.UUID, selection: Selection) -> Clustering:
    """Let a worker cluster these failures. The same key again is the same clustering. Raises Refused."""
    selection.check(project)
    return _ask(
        project,
        actor,
        key,
        which=selection.which,
        bucket=selection.bucket,
        since=timezone.now() - timedelta(days=selection.days) if selection.days else None,
        q=settled(selection.q),
        by=selection.by,
        fineness=selection.fineness,
    )


@transaction.atomic
def take_apart(*, cluster: Cluster, actor: Actor, key: uuid.UUID) -> Clustering:
    """Let a worker cluster the members of this cluster anew, more finely. Raises Refused."""
    whole = cluster.clustering
    if cluster.is_rest or cluster.size < 3:
        raise Refused("between three and all of its members would be one cluster", field="cluster")
    return _ask(whole.project, actor, key, within=cluster, by=whole.by, fineness=Fineness.FINE)


def _ask(project: Project, actor: Actor, key: uuid.UUID, **fields: Any) -> Clustering:
    newest = Trajectory.objects.aggregate(newest=Max("pk", default=0))["newest"]
    about = {name: str(fields[name]) for name in ("which", "bucket", "q", "by", "fineness") if fields.get(name)}
    within = {"cluster": fields["within"].pk} if "within" in fields else {}
    entry = "failures.take_apart" if within else "failures.cluster"
    job, _ = Clustering.submit(
        key=key, actor=actor, entry=entry, about=about | within, project=project, up_to=newest, **fields
    )
    return job


# What a worker does


def population(job: Clustering) -> QuerySet[Trajectory]:
    """Select the trajectories it is about, of those that were there when it was asked for."""
    if job.within_id is not None:
        members = Member.objects.filter(cluster=job.within_id).values("trajectory")
        return Trajectory.objects.filter(pk__in=members)
    rows = failures_of(job.project).filter(pk__lte=job.up_to)
    confirmed, proposed = Q(label=Label.FAILURE), Q(label="")
    if job.bucket:
        confirmed, proposed = confirmed & Q(label_bucket=job.bucket), proposed & Q(proposed_bucket=job.bucket)
    wanted = {Which.BOTH: confirmed | proposed, Which.CONFIRMED: confirmed, Which.PROPOSED: proposed}
    rows = rows.filter(wanted[Which(job.which)])
    if job.since:
        rows = rows.filter(started_at__gte=job.since)
    return parse(job.q).apply(rows, job.project_id)


def chosen(job: Clustering) -> tuple[list[int], int]:
    """Keys of the newest `AT_MOST`, in their order, and how many there are in all."""
    rows = population(job)
    keys = sorted(rows.order_by("-started_at", "-pk").values_list("pk", flat=True)[:AT_MOST])
    return keys, len(keys) if len(keys) < AT_MOST else rows.count()


def reading(keys: Sequence[int]) -> Iterator[int]:
    """Keep a sketch of each that has none, a few at a time; yields how many of the keys are done."""
    for start in range(0, len(keys), READ_AT_ONCE):
        few = keys[start : start + READ_AT_ONCE]
        if waiting := unread(few):
            keep(waiting)
        yield start + len(few)


def compare(job: Clustering, keys: Sequence[int]) -> tuple[list[int], Space]:
    """The keys of those that could be read, and all of them in one space. None of them is a space of none."""
    packed: dict[int, dict[str, bytes]] = {}
    for start in range(0, len(keys), AT_MOST // 10):
        packed |= sketches_of(keys[start : start + AT_MOST // 10])
    return list(packed), Space.of(list(packed.values()), WEIGHTS[job.by])


def days_of(keys: Sequence[int]) -> dict[str, str]:
    """The first and the last day on which these began."""
    rows = Trajectory.objects.filter(pk__in=keys)
    found = rows.aggregate(first=Min("started_at"), last=Max("started_at"))
    return {name: moment.astimezone(UTC).date().isoformat() for name, moment in found.items() if moment}


def apart(job: Clustering, space: Space) -> float:
    if job.within_id is None:
        return APART[job.fineness]
    cohesion = average_linkage.measure(space, range(space.rows.shape[0])).cohesion or 0
    return CLOSER * (1 - cohesion)


@dataclass(frozen=True, slots=True)
class Described:
    """A cluster as it will be written: its members with their likeness, and its columns."""

    members: list[tuple[int, float]]
    columns: dict[str, Any]


def described(space: Space, places: Sequence[int], keys: Sequence[int]) -> Described:
    """Return the common traits of the rows at these places. `keys` are those of all rows."""
    found = average_linkage.measure(space, places)
    typical = sorted(range(len(places)), key=lambda at: -found.likeness[at])[:NAMED_BY]
    names = failure_similarity.names_of(terms_of([keys[places[at]] for at in typical]).values())
    shared = failure_similarity.telling(found.weights, space, names)
    columns = {
        "words": [text(word)[:120] for word in shared.words],
        "calls": [text(call)[:400] for call in shared.calls],
        "cohesion": found.cohesion,
        "size": len(places),
        "medoid_id": keys[places[found.medoid]],
    }
    return Described([(keys[place], float(found.likeness[at])) for at, place in enumerate(places)], columns)


def write(job: Clustering, found: Sequence[Described], alone: Sequence[int]) -> None:
    """Put the clusters in the place of what an earlier attempt wrote. In a transaction."""
    job.clusters.all().delete()
    there = hold([key for each in found for key, _ in each.members] + list(alone))
    rest = Described([(key, 0.0) for key in alone], {"is_rest": True, "size": len(alone)})
    members: list[Member] = []
    for each in [*found, *([rest] if alone else [])]:
        if each.columns.get("medoid_id") not in there:
            each.columns.pop("medoid_id", None)
        cluster = Cluster.objects.create(clustering=job, **each.columns)
        members += (
            Member(clustering=job, cluster=cluster, trajectory_id=key, likeness=likeness)
            for key, likeness in each.members
            if key in there
        )
    Member.objects.bulk_create(members, batch_size=2_000)
