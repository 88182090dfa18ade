"""The kinds of objects that have a lineage: how one is named in an address, found, shown, and digested.

Names are those of pages and API: `agent@3`, `set@2`, a trace id; a task is `environment:number`, and what has no name
is its key. Nothing that a task or a rollout says is shown, so that lineage is no look at held-out tasks.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.db.models import Model, QuerySet
from django.urls import reverse

from flywheel.accounts.models import Project
from flywheel.agents.models import RewardModel, Version
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.core.digests import digest
from flywheel.edge.numbers import key, number
from flywheel.edge.refusals import Missing
from flywheel.environments.models import Environment, Suite, Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.failures.labels.decisions import describe
from flywheel.failures.models import Failure, ProjectBucket, QueueItem, Recurrence
from flywheel.promotions.models import Candidate, Promotion, Ramp
from flywheel.training.models import Dataset, FixTrial, TrainingRun
from flywheel.trajectories.annotations.project_buckets import name_of
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.rows.trajectory_rows import home_of

Rows = QuerySet[Any]


def _by_key(text: str, _: Project) -> dict[str, Any] | None:
    pk = key(text)
    return None if pk is None else {"pk": pk}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object. The functions take a row with `fields` loaded."""

    name: str
    model: type[Model]
    _: KW_ONLY
    fields: tuple[str, ...]
    """Columns that it is shown by; the others are wide. What is named of another row is joined."""
    page: Callable[[Any], tuple[Any, ...]]
    """The name of its page and the values that its address takes after the project."""
    label: str = ""
    """In running text, where the name is not that."""
    project: str = "project"
    """The lookup from a row to its project."""
    named: Callable[[str, Project], dict[str, Any] | None] = _by_key
    """The filter that a reference means; None for a text that cannot be one."""
    unstored: Callable[[str, Project], Any] = lambda _, __: None
    """What a reference means where no row does, as an unsaved row; None where it means nothing."""
    reference: Callable[[Any], str] = lambda row: str(row.pk)
    title: Callable[[Any, Project], str] = lambda row, _: str(row)
    note: Callable[[Any], str] = lambda _: ""
    digest: Callable[[Any], str | None] = lambda _: None
    """SHA-256 of its content; None for what still grows, or only moves a pointer."""
    keys: tuple[str, ...] = ("id",)
    """The order of lists, as `edge.paging.keyset` has it."""
    made: str = "created_at"
    """When it was made."""

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    def of(self, project: Project) -> Rows:
        return self.model._default_manager.filter(**{self.project: project}).order_by()

    def shown(self, rows: Rows) -> Rows:
        """The rows with what they are shown by, and nothing else."""
        joined = {name.rpartition("__")[0] for name in self.fields if "__" in name}
        return (rows.select_related(*joined) if joined else rows).only(*self.fields)


def _by_number(name: str, of: str, sign: str = "@") -> Callable[[str, Project], dict[str, Any] | None]:
    """Read `name@number`, with the lookups of both."""

    def read(text: str, _: Project) -> dict[str, Any] | None:
        first, *rest = text.split(sign, 1)
        value = number("".join(rest))
        return None if value is None else {name: first, of: value}

    return read


def _by_trace(text: str, project: Project) -> dict[str, Any]:
    """A trace whose calls another trajectory has is that trajectory."""
    is_own = Trajectory.objects.filter(project=project, trace_id=text).exists()
    return {"trace_id": text if is_own else home_of(project.pk, text)}


def _failure_digest(row: Failure) -> str:
    decided = {"trace_id": row.trajectory.trace_id, "decision": row.decision, "bucket": row.bucket, "step": row.step}
    by = {"by": row.labelled_by.username, "at": row.labelled_at.isoformat()}
    return digest(decided | by | {"corrected": row.corrected, "note": row.note})


def _eval_digest(row: EvalRun) -> str:
    """Identify all that decides its scores."""
    asked = {"version": row.version.digest, "task_set": row.task_set.digest, "split": row.split}
    names = ("samples", "sampling", "seed", "verifier_digest", "engine")
    return digest(asked | {name: getattr(row, name) for name in names})


def _built_in_bucket(text: str, project: Project) -> ProjectBucket | None:
    """Every project has it from its beginning on."""
    if (bucket := BUCKETS.get(text)) is None:
        return None
    return ProjectBucket(project=project, key=bucket.key, label=bucket.label, created_at=project.created_at)


def _suite_digest(row: Suite) -> str:
    names = ("kind", "rule", "measure", "samples", "margin")
    return digest({"task_set": row.task_set.digest} | {name: getattr(row, name) for name in names})


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "trajectory",
            Trajectory,
            fields=("project", "trace_id", "source", "outcome", "title", "started_at"),
            named=_by_trace,
            reference=lambda row: row.trace_id,
            page=lambda row: ("trajectories:detail", row.trace_id),
            title=lambda row, _: (not row.is_attempt and row.title) or str(row),
            note=lambda row: " · ".join(filter(None, (row.get_source_display(), row.outcome))),
            keys=("started_at", "id"),
            made="started_at",
        ),
        Kind(
            "queue_item",
            QueueItem,
            project="queue__project",
            fields=("state", "added_at", "queue__name"),
            page=lambda row: ("failures:item", row.queue_id, row.pk),
            title=lambda row, _: f"{row.queue.name}, item {row.pk}",
            note=lambda row: row.get_state_display(),
            made="added_at",
        ),
        Kind(
            "failure",
            Failure,
            label="decision",
            fields=(
                *("decision", "bucket", "step", "corrected", "note", "labelled_at"),
                *("trajectory__trace_id", "labelled_by__username"),
            ),
            page=lambda row: ("failures:review", row.trajectory.trace_id),
            title=lambda row, project: describe(project, row),
            note=lambda row: f"by {row.labelled_by}",
            digest=_failure_digest,
            made="labelled_at",
        ),
        Kind(
            "bucket",
            ProjectBucket,
            label="category",
            fields=("project", "key", "label", "archived_at", "created_at"),
            named=lambda text, _: {"key": text},
            unstored=_built_in_bucket,
            reference=attrgetter("key"),
            page=lambda row: ("failures:bucket", row.key),
            note=lambda row: "archived" if row.archived_at else "",
        ),
        Kind(
            "environment",
            Environment,
            fields=("name", "kind", "created_at"),
            named=lambda text, _: {"name": text},
            reference=str,
            page=lambda row: ("environments:environment", row.name),
            note=attrgetter("kind"),
        ),
        Kind(
            "task",
            Task,
            fields=("number", "split", "digest", "retired_at", "created_at", "environment__name"),
            named=_by_number("environment__name", "number", ":"),
            reference=lambda row: f"{row.environment}:{row.number}",
            page=lambda row: ("environments:task", row.environment.name, row.number),
            title=lambda row, _: f"{row} of {row.environment}",
            note=lambda row: "retired" if row.retired_at else row.get_split_display(),
            digest=attrgetter("digest"),
        ),
        Kind(
            "task_set",
            TaskSet,
            fields=("name", "version", "digest", "created_at"),
            named=_by_number("name", "version"),
            reference=str,
            page=lambda row: ("environments:task_set", row.name, row.version),
            digest=attrgetter("digest"),
        ),
        Kind(
            "suite",
            Suite,
            label="regression suite",
            project="agent__project",
            fields=(
                *("name", "version", "kind", "rule", "measure", "samples", "margin", "retired_at", "created_at"),
                *("agent__name", "task_set__digest"),
            ),
            page=lambda row: ("promotions:suites", row.agent.name),
            title=lambda row, _: f"{row} of {row.agent}",
            note=lambda row: "retired" if row.retired_at else row.words,
            digest=_suite_digest,
        ),
        Kind(
            "eval_run",
            EvalRun,
            label="eval",
            fields=(
                *("state", "split", "samples", "sampling", "seed", "verifier_digest", "engine", "created_at"),
                *("version__number", "version__digest", "version__agent__name"),
                *("task_set__name", "task_set__version", "task_set__digest"),
            ),
            page=lambda row: ("evals:run", row.pk),
            note=lambda row: f"{row.version} at {row.task_set}, {row.get_split_display()}, {row.state}",
            digest=_eval_digest,
        ),
        Kind(
            "fix_trial",
            FixTrial,
            fields=("created_at", "parent__number", "parent__agent__name"),
            page=lambda row: ("training:fix_trial", row.pk),
            note=lambda row: f"of {row.parent}",
        ),
        Kind(
            "dataset",
            Dataset,
            fields=("name", "version", "kind", "digest", "created_at"),
            named=_by_number("name", "version"),
            reference=str,
            page=lambda row: ("training:dataset", row.name, row.version),
            note=lambda row: row.get_kind_display(),
            digest=attrgetter("digest"),
        ),
        Kind(
            "training_run",
            TrainingRun,
            fields=("algorithm", "state", "spec_digest", "created_at"),
            page=lambda row: ("training:run", row.pk),
            note=lambda row: f"{row.algorithm_label}, {row.state}",
            digest=attrgetter("spec_digest"),
        ),
        Kind(
            "reward_model",
            RewardModel,
            fields=("name", "number", "created_at", "weights__digest"),
            named=_by_number("name", "number"),
            reference=str,
            page=lambda row: ("environments:reward_model", row.name, row.number),
            digest=attrgetter("weights.digest"),
        ),
        Kind(
            "version",
            Version,
            project="agent__project",
            fields=("number", "note", "digest", "created_at", "agent__name"),
            named=_by_number("agent__name", "number"),
            reference=str,
            page=lambda row: ("agents:version", row.agent.name, row.number),
            note=attrgetter("note"),
            digest=attrgetter("digest"),
        ),
        Kind(
            "candidate",
            Candidate,
            fields=(
                *("state", "verdict", "report_digest", "created_at"),
                *("version__number", "version__agent__name", "baseline__number", "baseline__agent__name"),
            ),
            page=lambda row: ("promotions:candidate", row.pk),
            title=lambda row, _: f"{row.version} against {row.baseline}",
            note=lambda row: f"{row.get_verdict_display()}, {row.get_state_display()}".lower(),
            digest=attrgetter("report_digest"),
        ),
        Kind(
            "ramp",
            Ramp,
            project="agent__project",
            fields=(
                *("state", "created_at", "agent_id", "split_id"),
                *("candidate__version__number", "candidate__version__agent__name"),
                *("candidate__baseline__number", "candidate__baseline__agent__name"),
            ),
            page=lambda row: ("promotions:ramp", row.pk),
            title=lambda row, _: f"ramp of {row.candidate.version}",
            note=lambda row: f"beside {row.candidate.baseline}, {row.get_state_display()}",
        ),
        Kind(
            "promotion",
            Promotion,
            project="agent__project",
            fields=("kind", "created_at", "after__number", "after__agent__name", "approved_by__username"),
            page=lambda _: ("promotions:index",),
            title=lambda row, _: f"{row.after} went live",
            note=lambda row: f"{row.get_kind_display()} by {row.approved_by}".lower(),
        ),
        Kind(
            "recurrence",
            Recurrence,
            fields=("project", "bucket", "answer", "at", "version__number", "version__agent__name"),
            page=lambda row: ("failures:bucket", row.bucket),
            title=lambda row, project: name_of(project, row.bucket),
            note=lambda row: f"with {row.version}, {row.get_answer_display()}",
            made="at",
        ),
    )
}
"""In the order of the wheel."""


@dataclass(frozen=True, slots=True)
class Passport:
    """One object as lineage shows it."""

    kind: str
    ref: str
    title: str
    note: str
    url: str
    digest: str | None
    made_at: datetime


def passport(kind: Kind, row: Any, project: Project) -> Passport:
    page, *values = kind.page(row)
    return Passport(
        kind=kind.name,
        ref=kind.reference(row),
        title=kind.title(row, project),
        note=kind.note(row),
        url=reverse(page, args=[project.slug, *values]),
        digest=kind.digest(row),
        made_at=getattr(row, kind.made),
    )


def find(kind: str, ref: str, project: Project) -> tuple[Kind, Any]:
    """The kind and the row that the texts name. Raises Missing."""
    if (known := KINDS.get(kind)) is None:
        raise Missing(f"{kind[:40]!r} has no lineage; use one of {', '.join(KINDS)}")
    wanted = known.named(ref, project)
    row = known.shown(known.of(project).filter(**wanted)).first() if wanted else None
    row = row or known.unstored(ref, project)
    if row is None:
        raise Missing(f"there is no {known.words} {ref[:100]}")
    return known, row
