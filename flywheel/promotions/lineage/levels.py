"""The levels of an object: what its relations lead to, and what is come to through them within one turn of the wheel.

The walk goes once around, kind by kind in the order of the wheel, and ends where it began: from a trajectory up to the
version that gave it, the runs that made that, their datasets and tasks, and the trajectories that those were made of.
A level is a query: a list asks for its page, a count for at most `MOST` of it. What the walk goes on from is read on
the way as keys, as long as it is few: the next query is then as quick as its own index.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection

from flywheel.accounts.models import Project
from flywheel.edge.refusals import Missing
from flywheel.promotions.lineage.passport_kinds import KINDS, Kind
from flywheel.promotions.lineage.relation_steps import Rows, Those, either
from flywheel.promotions.lineage.relations import COUNTED, RELATIONS, Direction, Reach
from flywheel.system.sql import sql_of

MOST = COUNTED
FEW = 5_000
"""Keys that are read on the way."""


Ahead = list[tuple[int, Those]]
"""Objects of one kind from which the walk goes on, with their distances."""


@dataclass(frozen=True, slots=True)
class Count:
    number: int
    is_more: bool


@dataclass(frozen=True, slots=True)
class Level:
    direction: str
    """`up` or `down`."""
    name: str
    """Of the relation."""
    kind: Kind
    way: Direction
    distance: int
    """How many relations away from the object."""
    those: Those

    @property
    def title(self) -> str:
        return self.way.title

    @property
    def most(self) -> int:
        """To where it is counted."""
        return min(MOST, self.way.most)

    @property
    def key(self) -> str:
        return f"{self.direction}.{self.name}"

    @property
    def rows(self) -> Rows:
        """As they are shown, in no order."""
        return self.kind.shown(self.those.rows.order_by())


def counted(levels: Sequence[Level]) -> list[Count]:
    """Return how many objects each level has, asked in one statement."""
    rows = [level.those.rows.order_by().values("pk")[: level.most + 1] for level in levels if level.those.few is None]
    found: Iterator[int] = iter(())
    if rows:
        asked = [sql_of(each) for each in rows]
        counts = ", ".join(f"(SELECT count(*) FROM ({sql}) AS level)" for sql, _ in asked)  # noqa: S608 Django's own
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {counts}", [value for _, values in asked for value in values])
            found = iter(cursor.fetchone())
    numbers = [next(found) if level.those.few is None else len(level.those.few) for level in levels]
    pairs = zip(levels, numbers, strict=True)
    return [Count(min(number, level.most), number > level.most) for level, number in pairs]


def levels_of(kind: Kind, row: Any, project: Project) -> list[Level]:
    """Up first, each nearest first."""
    levels = [*_walk("up", kind, row, project), *_walk("down", kind, row, project)]
    return sorted(levels, key=lambda level: (level.direction != "up", level.distance))


def level_of(kind: Kind, row: Any, project: Project, key: str) -> Level:
    """The level of that key. Raises Missing."""
    direction = key.partition(".")[0]
    levels = _walk(direction, kind, row, project) if direction in ("up", "down") else iter(())
    if (level := next((each for each in levels if each.key == key), None)) is None:
        raise Missing(f"a {kind.words} has no level {key[:40]!r}")
    return level


def _walk(direction: str, kind: Kind, row: Any, project: Project) -> Iterator[Level]:
    start = Those.alone(project, row)
    ways = list(_ways(direction, kind.name))
    for name, target, way in ways:
        if Reach.NEAR in way.reach and Reach.ON not in way.reach:
            yield Level(direction, name, KINDS[target], way, 1, Those(project, way.step(start)))
    ahead: dict[str, Ahead] = {}
    for name, target, way in ways:
        if Reach.ON in way.reach:
            those = _settled(project, way.step(start), is_few=Reach.NEAR in way.reach)
            ahead.setdefault(target, []).append((1, those))
            if Reach.NEAR in way.reach:
                yield Level(direction, name, KINDS[target], way, 1, those)
    for name in _around(direction, kind.name):
        if came := ahead.get(name):
            yield from _go_on(direction, name, came, ahead, project)


def _go_on(
    direction: str,
    name: str,
    came: list[tuple[int, Those]],
    ahead: dict[str, list[tuple[int, Those]]],
    project: Project,
) -> Iterator[Level]:
    """The levels that what was come to of a kind leads to."""
    those, distance = _union([those for _, those in came]), min(steps for steps, _ in came) + 1
    if those.few == []:
        return
    for relation, target, way in _ways(direction, name):
        if Reach.FAR in way.reach:
            reached = Those(project, way.step(those))
            if Reach.ON in way.reach:
                reached = _settled(project, reached.rows)
                ahead.setdefault(target, []).append((distance, reached))
            yield Level(direction, relation, KINDS[target], way, distance, reached)


def _ways(direction: str, name: str) -> Iterator[tuple[str, str, Direction]]:
    """The relations that lead on from a kind: their names, to which kind, and how."""
    for relation in RELATIONS:
        near, far = (relation.source, relation.target) if direction == "down" else (relation.target, relation.source)
        way = relation.down if direction == "down" else relation.up
        if near == name and way is not None:
            yield relation.name, far, way


def _around(direction: str, name: str) -> list[str]:
    """The other kinds in the order in which the walk comes to them."""
    names = list(KINDS) if direction == "down" else list(reversed(KINDS))
    at = names.index(name)
    return [*names[at + 1 :], *names[:at]]


def _union(several: list[Those]) -> Those:
    first = several[0]
    if len(several) == 1:
        return first
    if all(each.few is not None for each in several):
        keys = sorted({key for each in several for key in each.few or ()})
        return Those.of(first.project, first.rows.model, keys)
    return Those(first.project, either(first.rows.model, *(each.rows.values("pk") for each in several)))


def _settled(project: Project, rows: Rows, *, is_few: bool = True) -> Those:
    """Read the keys of a few; what is never shown, a version's traffic, is never few."""
    keys = list(rows.order_by().values_list("pk", flat=True)[: FEW + 1]) if is_few else []
    if not is_few or len(keys) > FEW:
        return Those(project, rows)
    return Those.of(project, rows.model, keys)
