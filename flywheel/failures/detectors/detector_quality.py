"""Precision and recall of the detectors, against what people decided.

Precision: of the trajectories about which a person decided and for which the detector had proposed something, the share
filed in its bucket. Recall: of the failures that people filed in its bucket, the share for which it had proposed. A
bucket that a project defined counts as the built-in one that it is a kind of too. Where a project has a detector
propose another bucket than its own, that one is meant, and what was decided before says nothing of it.

What people look at is mostly what was proposed to them, so recall over all decisions flatters. What queues of a sample
of the traffic have brought to them was drawn by lot: recall over that alone is without bias, and there is less of it.
Of what was drawn, some is decided before its turn because something was proposed, so each queue counts up to the first
item that is open, in the order of drawing: all of a smaller sample, whoever decided and wherever.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from django.db.models import Min, QuerySet

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import BUCKETS, DETECTORS, Bucket, Detector
from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.detectors import detector_settings
from flywheel.failures.models import OPEN, DetectorSetting, Failure, QueueItem, Rule
from flywheel.system.sql import bound
from flywheel.trajectories.models import Source

MEASURED = 20_000
"""Decisions, the newest, that are looked at."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A trajectory about which a person decided."""

    trajectory: int
    began: date
    decided_at: datetime
    bucket: str
    """The one that it was filed in, empty when nothing is wrong."""
    family: str
    """The built-in bucket that this one is, or is a kind of."""
    proposed: frozenset[str]
    """Detectors that proposed something."""
    buckets: frozenset[str]
    """What they proposed then, with what each is a kind of."""
    is_drawn: bool
    """By lot, into a queue of a sample of the traffic."""

    def is_in(self, bucket: str) -> bool:
        """Filed there, or in a kind of it."""
        return bucket in (self.bucket, self.family)

    @property
    def week(self) -> date:
        """The Monday of the week in which it began."""
        return self.began - timedelta(days=self.began.weekday())


@dataclass(frozen=True, slots=True)
class Rates:
    """Precision and recall of one detector, or of all that propose one bucket."""

    precision: Estimate
    is_failure: Estimate
    """As precision, but filed in any bucket."""
    recall: Estimate


@dataclass(slots=True)
class Measured:
    detector: Detector
    setting: DetectorSetting | None
    """What the project says of it."""
    all: Rates
    drawn: Rates
    """From the samples alone."""
    filed: Counter[str] = field(default_factory=Counter)
    """Where people filed what it had proposed; the empty one is `nothing wrong`."""
    weeks: dict[date, Rates] = field(default_factory=dict)
    wrong: list[Judged] = field(default_factory=list)
    """It proposed and people filed elsewhere or passed, the newest first."""
    missed: list[Judged] = field(default_factory=list)
    """In its category, without a proposal."""

    @property
    def is_on(self) -> bool:
        return self.setting.is_on if self.setting else self.detector.is_on

    @property
    def bucket(self) -> str:
        """The bucket that it proposes in the project."""
        return _proposes(self.detector, self.setting)


@dataclass(frozen=True, slots=True)
class BucketMeasured:
    """The joint precision and recall of a bucket's detectors."""

    key: str
    detectors: tuple[Detector, ...]
    all: Rates
    drawn: Rates


Kinds = Sequence[tuple[Judged, int]]
"""One of each kind of judged trajectory, with how many there are: few where there are many decisions."""


def kinds_of(judged: Iterable[Judged]) -> Kinds:
    """Those that are alike in what rates are made of, together."""
    counts: Counter[tuple[str, str, frozenset[str], frozenset[str]]] = Counter()
    first: dict[tuple[str, str, frozenset[str], frozenset[str]], Judged] = {}
    for each in judged:
        kind = (each.bucket, each.family, each.proposed, each.buckets)
        counts[kind] += 1
        first.setdefault(kind, each)
    return [(first[kind], n) for kind, n in counts.items()]


def rates(kinds: Kinds, bucket: str, proposes: Callable[[Judged], bool]) -> Rates:
    """`proposes` says whether the one that is measured proposed something for a trajectory."""
    hits = right = failing = inside = 0
    for each, n in kinds:
        is_hit, is_inside = proposes(each), each.is_in(bucket)
        hits += n * is_hit
        right += n * (is_hit and is_inside)
        failing += n * (is_hit and each.bucket != "")
        inside += n * is_inside
    return Rates(proportion(right, hits), proportion(failing, hits), proportion(right, inside))


@dataclass(frozen=True, slots=True)
class Decisions:
    """All kinds of them, and those of the samples."""

    all: Kinds
    drawn: Kinds


def decisions(judged: Iterable[Judged]) -> Decisions:
    kept = list(judged)
    return Decisions(kinds_of(kept), kinds_of(each for each in kept if each.is_drawn))


def telling(judged: Sequence[Judged], said: DetectorSetting | None) -> Sequence[Judged]:
    """Leave out decisions made since a detector is off, or before it proposed what it does: they say nothing of it."""
    if said is None or (said.is_on and said.bucket_since is None):
        return judged
    since, until = said.bucket_since, None if said.is_on else said.at
    return [
        each
        for each in judged
        if (since is None or each.decided_at >= since) and (until is None or each.decided_at < until)
    ]


def briefly(found: Decisions, detector: Detector, said: DetectorSetting | None) -> Measured:
    """Its rates alone."""

    def of(kinds: Kinds) -> Rates:
        return rates(kinds, _proposes(detector, said), lambda each: detector.name in each.proposed)

    return Measured(detector, said, of(found.all), of(found.drawn))


def of_detector(judged: Sequence[Judged], detector: Detector, said: DetectorSetting | None = None) -> Measured:
    """Everything about it."""
    judged = telling(judged, said)

    def proposes(each: Judged) -> bool:
        return detector.name in each.proposed

    found = briefly(decisions(judged), detector, said)
    mine = [each for each in judged if proposes(each)]
    concerned = [each for each in judged if proposes(each) or each.is_in(found.bucket)]
    weeks = sorted({each.week for each in concerned})
    found.filed = Counter(each.bucket for each in mine)
    found.wrong = [each for each in mine if not each.is_in(found.bucket)]
    found.missed = [each for each in concerned if not proposes(each)]
    found.weeks = {
        week: rates(kinds_of(each for each in concerned if each.week == week), found.bucket, proposes) for week in weeks
    }
    return found


def of_bucket(found: Decisions, key: str, detectors: Iterable[Detector]) -> BucketMeasured:
    """`detectors` are those that propose it, or a kind of it, now; it is measured by what was proposed then."""

    def of(kinds: Kinds) -> Rates:
        return rates(kinds, key, lambda each: key in each.buckets)

    return BucketMeasured(key, tuple(detectors), of(found.all), of(found.drawn))


def _proposes(detector: Detector, said: DetectorSetting | None) -> str:
    return said.proposes if said else detector.bucket


# Reading


def measure(project: Project) -> tuple[list[Measured], list[BucketMeasured]]:
    """Every detector, and every bucket in which there is something to say."""
    every_one, said, known = judged(project), settings(project), every(project)
    found = decisions(every_one)
    detectors = []
    for name, detector in DETECTORS.items():
        telling_ones = telling(every_one, said.get(name))
        own = found if telling_ones is every_one else decisions(telling_ones)
        detectors.append(briefly(own, detector, said.get(name)))
    proposed = {each.bucket for each in detectors}
    buckets = [
        of_bucket(found, key, [each.detector for each in detectors if key in (each.bucket, known[each.bucket].family)])
        for key in known
        if key in BUCKETS or key in proposed
    ]
    return detectors, [bucket for bucket in buckets if bucket.all.recall.n or bucket.all.precision.n]


def measure_one(project: Project, name: str) -> Measured:
    """Everything about the detector of this name."""
    return of_detector(judged(project), DETECTORS[name], settings(project).get(name))


def settings(project: Project) -> dict[str, DetectorSetting]:
    return detector_settings.settings([project.pk]).get(project.pk, {})


def judged(project: Project) -> list[Judged]:
    """List people's decisions, the newest first: in a handful of statements."""
    rows = Failure.objects.filter(project=project, current=True).exclude(trajectory__source__in=Source.ATTEMPTS)
    decided = list(
        rows.order_by("-pk").values_list("trajectory", "trajectory__started_at", "labelled_at", "bucket")[:MEASURED]
    )
    known = every(project)
    proposed: dict[int, set[str]] = {}
    proposed_as: dict[int, set[str]] = {}
    for key, name, bucket in bound(_PROPOSED, [[key for key, *_ in decided]]):
        proposed.setdefault(key, set()).add(name)
        proposed_as.setdefault(key, set()).update((bucket, _family(known, bucket)))
    drawn = _drawn(project)
    return [
        Judged(
            key,
            began.date(),
            decided_at,
            bucket,
            _family(known, bucket),
            frozenset(proposed.get(key, ())),
            frozenset(proposed_as.get(key, ())),
            key in drawn,
        )
        for key, began, decided_at, bucket in decided
    ]


def _drawn(project: Project) -> set[int]:
    """Keys of the labelled trajectories that count as drawn by lot."""
    rows = _by_lot(project)
    firsts = rows.filter(state__in=OPEN).values_list("queue").annotate(Min("pk"))
    for queue, first in list(firsts):
        rows = rows.exclude(queue=queue, pk__gte=first)
    return set(rows.exclude(trajectory__label="").values_list("trajectory", flat=True))


def undecided(project: Project) -> int:
    """Count those drawn by lot that wait for a decision; in an archived queue none does any more."""
    return _by_lot(project).filter(state__in=OPEN, queue__archived_at=None).count()


def _by_lot(project: Project) -> QuerySet[QueueItem]:
    return QueueItem.objects.filter(queue__project=project, queue__rule=Rule.SAMPLE, added_by=None)


def _family(known: Mapping[str, Bucket], key: str) -> str:
    return known[key].family if key in known else key


_PROPOSED = "SELECT DISTINCT trajectory_id, detector, bucket FROM failures_proposal WHERE trajectory_id = ANY(%s)"
