"""Tasks out of a file: NeMo Gym's JSONL, rows of a verifiers dataset, questions with answers, tasks that were exported
here; as JSON Lines, JSON, CSV or Parquet."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core import envs
from flywheel.core.envs import build
from flywheel.core.envs.replay import episode_replay
from flywheel.core.envs.replay.wanted_items import MATCHES
from flywheel.core.interop import episode_rows, foreign_tasks
from flywheel.core.interop.foreign_tasks import CannotTake
from flywheel.edge import numbers
from flywheel.edge.refusals import Refused, check_choice
from flywheel.environments.models import Environment, EnvironmentVersion, Task
from flywheel.environments.proofs.proof_jobs import ask, is_for_a_worker
from flywheel.environments.proofs.red_green_proof import begun, common_wrong, prove
from flywheel.environments.tasks.task_rows import next_number, unsaved_task
from flywheel.environments.versions.environment_versions import latest
from flywheel.trajectories.formats.files import file_values, table_rows
from flywheel.trajectories.formats.files.file_limits import Bounds, Item
from flywheel.trajectories.formats.files.json_values import json_lines
from flywheel.trajectories.formats.values.hostile_json import FormatError, plain

log = logging.getLogger(__name__)

KINDS = (episode_replay.KIND, *foreign_tasks.KINDS)
"""Of environments that take them."""
AT_ONCE = 2_000
"""Rows of a file."""
MAX_BYTES = 32 * 1024 * 1024
"""Of a file that comes by page or API."""
SECONDS = 60
"""Reading it may take."""
PROBLEMS_TOLD = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a row is no task."""

    line: int
    field: str
    """Empty where it is not one field's fault."""
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.field + ': ' if self.field else ''}{self.reason}"


@dataclass(slots=True)
class Taken:
    """The content of a task file, or the outcome of its import."""

    tasks: list[Task] = field(default_factory=list)
    """The new ones; not saved in a preview."""
    lines: list[int] = field(default_factory=list)
    """Of each new task."""
    there: int = 0
    """Those that already exist."""
    unproved: int = 0
    waiting: int = 0
    """Of the unproved, those that a worker is to prove."""
    left_out: int = 0
    problems: list[Problem] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    """Rows by whose they seem to be."""

    @property
    def made(self) -> int:
        return len(self.tasks)

    @property
    def read(self) -> int:
        return self.made + self.there + self.left_out

    @property
    def splits(self) -> dict[str, dict[str, int]]:
        """The new tasks and their sources, by split."""
        found: dict[str, list[str]] = {}
        for task in self.tasks:
            found.setdefault(task.split, []).append(task.cluster)
        return {
            split: {"tasks": len(clusters), "clusters": len(set(clusters))} for split, clusters in sorted(found.items())
        }

    def leave_out(self, line: int, field: str, reason: str) -> None:
        self.left_out += 1
        if len(self.problems) < PROBLEMS_TOLD:
            self.problems.append(Problem(line, field, reason[:300]))

    def __str__(self) -> str:
        proofs = f"{self.waiting} of them wait for a worker's proof" if self.waiting else f"{self.unproved} not proved"
        return f"{self.made} tasks made, {proofs}; {self.there} here already, {self.left_out} left out"


Source = BinaryIO | Iterable[bytes]
"""A seekable file of any of these kinds, or lines of JSON."""
ReadRow = Callable[[Any], envs.Task]
"""A row's task. Raises CannotTake."""


def look(*, environment: Environment, lines: Source, match: str = "words") -> Taken:
    """Preview an import of these lines, texts compared as `match` says (`wanted_items`); nothing is saved.

    Raises Refused.
    """
    version = latest(environment)
    return _read(environment, lines, _usual(environment, version, match), None)


@transaction.atomic
def import_tasks(
    *, environment: Environment, lines: Source, actor: Actor, match: str = "words", read: ReadRow | None = None
) -> Taken:
    """Make each line a task, its split drawn from its cluster as everywhere, and prove it under the newest version.

    A row that is held-out where it comes from is left out: here it might be trained on. `read` is how a row is read
    that is none of the usual ones. Raises Refused.
    """
    version = latest(environment)
    Environment.objects.select_for_update(no_key=True).get(pk=environment.pk)
    report = _read(environment, lines, read or _usual(environment, version, match), actor.user)
    is_later = is_for_a_worker(version, report.made)
    common = None if is_later else common_wrong(environment, version)
    for number, task in enumerate(report.tasks, next_number(environment)):
        task.number = number
        if is_later:
            task.proof = begun(None, None)
        else:
            task.proof, task.is_proved = prove(task, version, common=common)
        report.unproved += not task.is_proved
    Task.objects.bulk_create(report.tasks)
    if report.made and is_later:
        report.waiting = report.made
        ask(environment, actor)
    actor.record(
        project=environment.project,
        action="environments.import_tasks",
        subject=environment,
        made=report.made,
        left_out=report.left_out,
    )
    return report


def _usual(environment: Environment, version: EnvironmentVersion, match: str) -> ReadRow:
    check_choice(match, MATCHES, field="match")
    tools = build(environment.kind, version.config, version.verifier).tools
    if environment.kind == episode_replay.KIND:
        return lambda row: episode_rows.task_of(row, tools, match)
    return lambda row: foreign_tasks.task_of(row, environment.kind, tools)


def _read(environment: Environment, lines: Source, read_row: ReadRow, maker: User | None) -> Taken:
    known = set(environment.tasks.values_list("digest", flat=True))
    report = Taken()
    for read, (at, item) in enumerate(numbered(lines), 1):
        if read > AT_ONCE:
            raise Refused(f"the file has more than {AT_ONCE} rows; send it in parts")
        try:
            task = _task(environment, report, item, read_row)
        except CannotTake as error:
            report.leave_out(at, error.field, error.problem)
            continue
        if task.digest in known:
            report.there += 1
            continue
        known.add(task.digest)
        if maker is not None:
            task.created_by = maker
        report.tasks.append(task)
        report.lines.append(at)
    return report


def numbered(source: Source) -> Iterator[tuple[int, Item]]:
    """The values of a file with the numbers of their lines, rows or items. Raises Refused."""
    try:
        if not hasattr(source, "seek"):
            items: Iterable[Item] = json_lines(source)
        else:
            content = file_values.read(source, Bounds(seconds=SECONDS))  # type: ignore[arg-type]
            items = content.items
            if content.is_table:
                items = (each if each.error else Item(each.at, table_rows.decoded(each.value)) for each in items)
        for number, item in enumerate(items, 1):
            place = numbers.number(item.at.rpartition(" ")[2])
            yield number if place is None else place, item
    except FormatError as error:
        raise Refused(str(error)) from None


def _task(environment: Environment, report: Taken, item: Item, read_row: ReadRow) -> Task:
    if item.error:
        raise CannotTake(item.error)
    row = item.value
    if plain(row) != row:
        raise CannotTake("it holds what a database cannot keep, such as a NUL character or a number that is none")
    if isinstance(row, dict):
        source = (episode_rows if environment.kind == episode_replay.KIND else foreign_tasks).source_of(row)
        report.sources[source] = report.sources.get(source, 0) + 1
    try:
        pure = read_row(row)
    except CannotTake:
        raise
    except RecursionError:
        raise CannotTake("nested too deep to be read") from None
    except Exception as error:  # one bad row must not lose the good ones
        log.exception("a row of a task file cannot be read")
        raise CannotTake(f"it cannot be read ({type(error).__name__})") from None
    if plain(whole := [pure.prompt, dict(pure.target), dict(pure.state)]) != whole:  # a text in it was read as JSON
        raise CannotTake("a text of it, read as JSON, holds what a database cannot keep, such as a NUL character")
    return unsaved_task(environment, pure, is_synthetic=pure.synthetic)
