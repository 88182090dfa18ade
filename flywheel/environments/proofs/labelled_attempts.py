"""Labelled attempts as probes of a verifier: what a person passes it must pass, what a person calls a failure it must
fail.

They are attempts at train tasks, of evals and of training runs. Each is judged again with the proof of its task, so
under every new version of the environment, and shown where a verifier is tried, before it is saved. Where the two
disagree the proof warns and stays green: a label may be wrong too, and only people can tell. Attempts at tasks that are
measured are no probes; a verifier that is fitted to them would fit the measurement.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from flywheel.core.traces import Message
from flywheel.core.verifiers import PASS, Verdict
from flywheel.edge.numbers import number
from flywheel.environments.models import Environment, EnvironmentVersion, Split, Task
from flywheel.failures.models import Failure
from flywheel.trajectories.models import Label, Source, Trajectory
from flywheel.trajectories.store.stored_traces import traces_of

OF_TASK = 20
"""Attempts of a task that are judged, the newest."""
SHOWN = 200
"""Attempts of an environment that are listed, the newest."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A labelled attempt beside the verdict of an environment's version."""

    trace_id: str
    task: Task
    source: str
    label: str
    """`pass` or `fail`, as the person said."""
    by: str
    labelled_at: datetime | None
    is_judged: bool
    """Whether this version's verifier has judged it."""
    score: float | None
    agrees: bool | None
    """None where it was not judged yet, or got no score."""
    reason: str

    @property
    def success(self) -> bool | None:
        return None if self.score is None else self.score >= PASS - 1e-9


def judged(task: Task, judge: Callable[[Sequence[Sequence[Message]]], list[Verdict]]) -> list[dict[str, Any]]:
    """The task's newest labelled attempts as checks of its proof, each with its `trace_id`. `judge`: returns the
    verdicts of conversations."""
    if task.pk is None or task.split != Split.TRAIN:
        return []
    rows = sorted(_of(task.environment, task), key=lambda row: -row.pk)[:OF_TASK]
    traces = traces_of(rows)
    checks = []
    for row, verdict in zip(rows, judge([traces[row.pk].conversation() for row in rows]), strict=True):
        wanted = row.label == Label.PASS
        checks.append(
            {
                "name": "labelled attempt",
                "trace_id": row.trace_id,
                "wanted": "passes" if wanted else "fails",
                "score": verdict.score,
                "passed": verdict.success is wanted,
                "reason": verdict.reason,
                "cause": verdict.cause,
                "parts": dict(verdict.parts),
            }
        )
    return checks


def probes_of(version: EnvironmentVersion) -> list[Probe]:
    """The environment's labelled attempts under this version, what disagrees first, then what waits."""
    rows = sorted(_of(version.environment), key=lambda row: -row.pk)[:SHOWN]
    numbers = {row.pk: number for row in rows if (number := _number(row)) is not None}
    tasks = {
        task.number: task
        for task in version.environment.tasks.filter(number__in=numbers.values(), split=Split.TRAIN, retired_at=None)
    }
    labels = Failure.objects.filter(trajectory__in=rows, current=True).select_related("labelled_by")
    said = {label.trajectory_id: label for label in labels}
    found = [
        _probe(row, tasks[numbers[row.pk]], said.get(row.pk), version) for row in rows if numbers.get(row.pk) in tasks
    ]
    return sorted(found, key=lambda probe: (probe.agrees is not False, probe.agrees is not None))


def disagreements(version: EnvironmentVersion) -> int:
    """Count the labelled attempts that the version's verifier judges otherwise."""
    return sum(probe.agrees is False for probe in probes_of(version))


def let_wait(version: EnvironmentVersion) -> int:
    """Let the proofs of tasks with a labelled attempt that was not judged yet wait to be made again; what is proved
    stays so meanwhile. Returns how many do."""
    tasks = {probe.task.pk: probe.task for probe in probes_of(version) if not probe.is_judged}
    for task in tasks.values():
        task.proof.pop("environment_version", None)
        task.save(update_fields=["proof"])
    return len(tasks)


def _of(environment: Environment, task: Task | None = None) -> Iterator[Trajectory]:
    """The labelled attempts at the environment's train tasks, or at one of them."""
    rows = Trajectory.objects.filter(project=environment.project_id).exclude(label="")
    at = {"result__task": task} if task else {"result__task__environment": environment}
    yield from _read(rows.filter(**at, source=Source.ROLLOUT, result__task__split=Split.TRAIN))
    # A run names a task as its data does: by number, in a mix of environments with the environment's name before it.
    own = Q(training_attempt__run__task_set__environment_version__environment=environment)
    mixed = f"{environment.name}/{task or ''}"
    if task:
        named = Q(own, training_attempt__task=str(task)) | Q(training_attempt__task=mixed)
    else:
        named = Q(own, training_attempt__task__startswith="t-") | Q(training_attempt__task__startswith=mixed)
    yield from _read(rows.filter(named, source=Source.TRAINING))


def _read(rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
    whose = ("result__run", "result__task", "training_attempt__run__task_set__environment_version")
    return rows.select_related(*whose).order_by("-pk")[:SHOWN]


def _number(row: Any) -> int | None:
    """The number of the task that was attempted; `row` is a trajectory with what rooms to the right say of it."""
    if row.source == Source.ROLLOUT:
        return int(row.result.task.number)
    return number(row.training_attempt.task.rpartition("/")[2].removeprefix("t-"))


def _probe(row: Any, task: Task, label: Failure | None, version: EnvironmentVersion) -> Probe:
    passes = row.label == Label.PASS
    found: dict[str, Any] | None = None
    if task.proof.get("environment_version") == str(version):
        found = next((check for check in task.proof.get("labelled", ()) if check["trace_id"] == row.trace_id), None)
    if found is None and row.source == Source.ROLLOUT and row.result.run.verifier_digest == version.verifier_digest:
        found = {"score": row.result.score, "reason": row.result.reason}
    if found is None and row.source == Source.TRAINING:
        then = row.training_attempt.run.task_set.environment_version
        if (then.environment_id, then.verifier_digest) == (version.environment_id, version.verifier_digest):
            found = {"score": row.training_attempt.score, "reason": row.training_attempt.reason}
    score = found["score"] if found else None
    return Probe(
        trace_id=row.trace_id,
        task=task,
        source=row.get_source_display(),
        label="pass" if passes else "fail",
        by=str(label.labelled_by) if label else "",
        labelled_at=label.labelled_at if label else None,
        is_judged=found is not None,
        score=score,
        agrees=None if score is None else (score >= PASS - 1e-9) is passes,
        reason=found["reason"] if found else "",
    )
