"""Tasks out of a file: NeMo Gym's JSONL, rows of a verifiers dataset, tasks that were exported here."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.envs import build
from flywheel.core.interop.foreign_tasks import CannotTake, source_of, task_of
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, EnvironmentVersion, Task
from flywheel.environments.proofs.proof_jobs import ask, is_for_a_worker
from flywheel.environments.proofs.red_green_proof import begun, common_wrong, prove
from flywheel.environments.tasks.task_rows import next_number, unsaved_task
from flywheel.environments.versions.environment_versions import latest
from flywheel.trajectories.formats.values.hostile_json import plain

AT_ONCE = 2_000
"""Rows of a file."""
MAX_BYTES = 32 * 1024 * 1024
"""Of a file that comes by page or API."""
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
    """Those that are here already."""
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


def look(*, environment: Environment, lines: Iterable[bytes]) -> Taken:
    """Preview an import of these lines; nothing is saved. Raises Refused."""
    return _read(environment, latest(environment), lines, None)


@transaction.atomic
def import_tasks(*, environment: Environment, lines: Iterable[bytes], actor: Actor) -> Taken:
    """Make each line a task, its split drawn from its cluster as everywhere, and prove it under the newest version.

    A row that is held-out where it comes from is left out: here it might be trained on. Raises Refused.
    """
    version = latest(environment)
    Environment.objects.select_for_update(no_key=True).get(pk=environment.pk)
    report = _read(environment, version, lines, actor.user)
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


def _read(environment: Environment, version: EnvironmentVersion, lines: Iterable[bytes], maker: User | None) -> Taken:
    tools = build(environment.kind, version.config, version.verifier).tools
    known = set(environment.tasks.values_list("digest", flat=True))
    report = Taken()
    read = 0
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if (read := read + 1) > AT_ONCE:
            raise Refused(f"the file has more than {AT_ONCE} rows; send it in parts")
        try:
            task = _task(environment, report, line, tools)
        except CannotTake as error:
            report.leave_out(at, error.field, error.problem)
            continue
        except (ValueError, RecursionError) as error:
            report.leave_out(at, "", f"not valid JSON: {error}")
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


def _task(environment: Environment, report: Taken, line: bytes, tools: list[dict[str, object]]) -> Task:
    row = json.loads(line)
    if plain(row) != row:
        raise CannotTake("it holds what a database cannot keep, such as a NUL character or a number that is none")
    if isinstance(row, dict):
        source = source_of(row)
        report.sources[source] = report.sources.get(source, 0) + 1
    pure = task_of(row, environment.kind, tools)
    return unsaved_task(environment, pure, is_synthetic=pure.synthetic)
