"""The state of an episode's world, and the changes made by the last move, for people to look at."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flywheel.core.envs import Table
from flywheel.core.envs.replay.end_states import tables
from flywheel.environments.models import Play
from flywheel.environments.playground.episode_moves import conversation, environment_of
from flywheel.environments.tasks.task_rows import core_task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    before: str | None = None
    """What stood there before the last move, where that was something else."""


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    cells: list[Cell]
    change: Literal["", "new", "changed", "gone"]


@dataclass(frozen=True, slots=True)
class Stand:
    """A table, with what the last move did to it."""

    name: str
    columns: tuple[str, ...]
    rows: list[Row]
    """As it stands now."""
    gone: list[Row]

    @property
    def changed(self) -> list[Row]:
        return [row for row in self.rows if row.change] + self.gone

    @property
    def shown(self) -> list[Row]:
        """Those that a page writes out, beside those that were changed."""
        return self.rows[:200]


def state(play: Play) -> list[Stand]:
    """The tables of the world; none where an environment keeps nothing but the conversation."""
    if play.world is not None:  # a worker has looked
        was = {table.name: table.rows for table in tables(play.world["before"])}
        return [_beside(table, was.get(table.name, {})) for table in tables(play.world["now"])]
    env, task, said = environment_of(play), core_task(play.task), conversation(play)
    spoken = [place for place, message in enumerate(said) if message.role == "assistant"]
    try:
        now = env.state(task, said)
        before = env.state(task, said[: spoken[-1]]) if spoken and now else now
    except Exception:  # whatever a strange task brings about: then there is nothing to look at
        log.warning("the state of play %s cannot be shown", play.pk, exc_info=True)
        return []
    old = {table.name: table.rows for table in before}
    return [_beside(table, old[table.name]) for table in now]


def as_json(table: Stand) -> dict[str, Any]:
    """`{"name", "columns", "rows": {id: cells}, "changed": {id: "new", "changed" or "gone"}}`."""
    return {
        "name": table.name,
        "columns": list(table.columns),
        "rows": {row.key: [cell.text for cell in row.cells] for row in table.rows},
        "changed": {row.key: row.change for row in table.changed},
    }


def _beside(table: Table, old: Mapping[str, tuple[str, ...]]) -> Stand:
    rows = [_row(key, cells, old.get(key)) for key, cells in table.rows.items()]
    gone = [Row(key, [Cell(text) for text in cells], "gone") for key, cells in old.items() if key not in table.rows]
    return Stand(table.name, table.columns, rows, gone)


def _row(key: str, cells: tuple[str, ...], old: tuple[str, ...] | None) -> Row:
    if old is None:
        return Row(key, [Cell(text) for text in cells], "new")
    pairs = zip(cells, old, strict=True)
    return Row(
        key, [Cell(text, None if text == was else was) for text, was in pairs], "" if cells == old else "changed"
    )
