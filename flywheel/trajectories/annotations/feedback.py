"""Feedback by API and by file: what a person, a model or code thinks of a trajectory, or of one of its steps.

It may be given before the trajectory arrives (`attachments.py`). A newer word of the same giver about the same thing
holds, and the older ones are kept. The key `outcome` says how the trajectory ended, `intervention` that a person
stepped in.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from flywheel.accounts.models import Project
from flywheel.accounts.project_settings.redaction_policy import redactor_of
from flywheel.core.redaction import Redactor
from flywheel.core.traces import Outcome
from flywheel.trajectories.formats.semantics.judgments import MAX_COMMENT, MAX_KEY, MAX_VALUE, OUTCOME, outcome_of
from flywheel.trajectories.formats.semantics.trace_notes import Note
from flywheel.trajectories.formats.values.hostile_json import MAX_INT, quote, text
from flywheel.trajectories.models import Feedback
from flywheel.trajectories.store import attachments, detector_wakeup
from flywheel.trajectories.store.arrivals.incoming_steps import fit
from flywheel.trajectories.store.merge import patiently
from flywheel.trajectories.store.rows import trajectory_rows

MOST = 1000
"""Items of one request."""
EARLY = timedelta(days=1)
"""How far ahead of ours the sender's clock may be: whatever comes later than everything holds for ever."""

SOURCES = {
    **dict.fromkeys(("human", "reviewer"), Feedback.Source.HUMAN),
    **dict.fromkeys(("end_user", "user"), Feedback.Source.END_USER),
    **dict.fromkeys(("model", "llm"), Feedback.Source.MODEL),
    "code": Feedback.Source.CODE,
}
_TRACE_ID = re.compile(r"[0-9a-fA-F]{32}")


class Given(BaseModel):
    """One piece of feedback."""

    model_config = ConfigDict(extra="forbid")

    trace_id: str = Field(min_length=1, max_length=1000, description="ID of the trajectory, which may arrive later.")
    span_id: str | None = Field(
        None, max_length=1000, description="ID of the step, if the feedback is about a single one."
    )
    key: str = Field(
        min_length=1,
        max_length=MAX_KEY,
        description="What is judged; `outcome` and `intervention` have a special meaning.",
    )
    value: bool | int | float | str = Field(description="A number, a boolean or a string.")
    comment: str | None = Field(None, max_length=MAX_COMMENT)
    source: str | None = Field(None, description="`human`, `end_user`, `model` or `code`; `code` if omitted.")
    by: str | None = Field(None, max_length=200, description="Who or what gave it.")
    id: str | None = Field(
        None, max_length=1000, description="Your own ID; sending it again with the same one stores it once."
    )
    at: AwareDatetime | None = Field(
        None, description="When it was given, in ISO 8601 with a time zone; now if omitted."
    )

    @field_validator("value", mode="before")
    @classmethod
    def _is_plain(cls, value: Any) -> Any:
        if isinstance(value, str):
            if not value.strip() or len(value) > MAX_VALUE:
                raise ValueError(f"expected a string of 1 to {MAX_VALUE} characters; put longer text in a comment")
        elif isinstance(value, bool):
            return value
        elif not isinstance(value, int | float) or not math.isfinite(value) or abs(value) >= MAX_INT:
            raise ValueError(f"{quote(value)} is not a number, a boolean or a string")
        return value

    @field_validator("source")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        name = (value or "code").strip().lower().replace(" ", "_").replace("-", "_")
        if name not in SOURCES:
            raise ValueError(f"{quote(value)} is not one of {', '.join(Feedback.Source.values)}")
        return SOURCES[name]

    @field_validator("at")
    @classmethod
    def _has_been(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        try:
            value = value.astimezone(UTC)
        except OverflowError:
            raise ValueError("there is no such time") from None
        if value > timezone.now() + EARLY:
            raise ValueError("it is in the future")
        return value

    @model_validator(mode="after")
    def _says_an_outcome(self) -> "Given":
        if self.key == OUTCOME and outcome_of(self.value) is None:
            raise ValueError(
                f"{quote(self.value)} is no outcome; success or failed is (also pass and fail, true and false, 1 and 0)"
            )
        return self


@dataclass(frozen=True, slots=True)
class Problem:
    index: int
    field: str
    reason: str


@dataclass(slots=True)
class Report:
    """Counts of the items: received = stored + duplicate + rejected."""

    received: int
    stored: int = 0
    duplicate: int = 0
    waiting: int = 0
    """Of those stored, how many wait for their trajectory."""
    problems: list[Problem] = field(default_factory=list)
    """One for each item that was rejected."""


def give(project: Project, items: Sequence[Any]) -> Report:
    """Keep the good items and name the others: one transaction."""
    good: list[tuple[int, Given]] = []
    bad: list[Problem] = []
    for index, item in enumerate(items):
        try:
            good.append((index, Given.model_validate(_readable(item))))
        except ValidationError as error:
            bad.append(_problem(index, error))
    redactor = redactor_of(project)

    def waiting(now: datetime) -> list[_Waiting]:
        return [
            _Waiting(index, given.id or "", given.at is not None, _row(project, given, redactor, now))
            for index, given in good
        ]

    report = _keep(project, Report(len(items), problems=bad), waiting)
    report.problems.sort(key=lambda problem: problem.index)
    return report


@dataclass(frozen=True, slots=True)
class Told:
    """A line of a file that judges, and what it judges."""

    trace_id: str
    span_id: str
    """Empty for the whole trajectory."""
    note: Note


def tell(project: Project, told: Sequence[Told]) -> Report:
    """Keep what an imported file says of trajectories, here or not yet: as if it had been given by API.

    A score whose name alone says that it is about success becomes an outcome beside it, by that name.
    """
    redactor = redactor_of(project)

    def waiting(now: datetime) -> list[_Waiting]:
        kept = []
        for index, each in enumerate(told):
            rows_of = [_row_of_note(project, each, redactor, now)]
            if (ends := each.note.outcome) and not each.span_id:
                rows_of.append(_outcome_of_note(rows_of[0], ends))
            is_dated = each.note.at is not None and each.note.at <= now + EARLY
            # Dated, the content and its time make it this one. Undated, the id does; changed since, it is another.
            own = "" if is_dated else each.note.identity
            kept += [
                _Waiting(index, own and f"{own} {attachments.identified(row).digest}", is_dated, row) for row in rows_of
            ]
        return kept

    return _keep(project, Report(len(told)), waiting)


@dataclass(frozen=True, slots=True)
class _Waiting:
    index: int
    """Of the item that it came from."""
    identity: str
    """The sender's own id, if any."""
    is_dated: bool
    row: Feedback


def _keep(project: Project, blank: Report, waiting: Callable[[datetime], list[_Waiting]]) -> Report:
    """Keep what is new of that which waits now, and tell the trajectories: one transaction, which may run again."""

    def work() -> tuple[Report, bool]:
        trajectory_rows.hurry()
        now = timezone.now()
        rows, report = waiting(now), replace(blank, problems=[*blank.problems])
        attachments.address(project, [each.row for each in rows])
        stored = attachments.held(project, {each.row.trace_id for each in rows})
        attached = attachments.attach(project, stored, _fresh(project, rows, now, report), [], now)
        report.stored = len(attached.feedback)
        report.waiting = sum(row.trace_id not in stored for row in attached.feedback)
        return report, attached.is_news

    report, is_news = patiently(work)
    if is_news:
        detector_wakeup.after_commit(project.pk)
    return report


def _readable(item: Any) -> Any:
    """Without what no database holds in its strings."""
    if not isinstance(item, dict):
        return item
    return {text(key): text(value) if isinstance(value, str) else value for key, value in item.items()}


def _row(project: Project, given: Given, redactor: Redactor, now: datetime) -> Feedback:
    trace_id = given.trace_id.lower() if _TRACE_ID.fullmatch(given.trace_id) else given.trace_id
    is_number = isinstance(given.value, int | float) and not isinstance(given.value, bool)
    return Feedback(
        project=project,
        trace_id=fit(trace_id),
        span_id=fit(given.span_id or ""),
        key=given.key,
        value=redactor.text(given.value)[0] if isinstance(given.value, str) else given.value,
        score=float(given.value) if is_number else None,
        comment=redactor.text(given.comment or "")[0],
        source=given.source or Feedback.Source.CODE,
        by=redactor.text(given.by or "")[0][:200],
        at=given.at or now,
    )


def _row_of_note(project: Project, told: Told, redactor: Redactor, now: datetime) -> Feedback:
    note = told.note
    value, score, comment = note.as_feedback
    return Feedback(
        project=project,
        trace_id=fit(told.trace_id),
        span_id=fit(told.span_id),
        key=note.name,
        value=redactor.text(value)[0] if isinstance(value, str) else value,
        score=score,
        comment=redactor.text(comment)[0],
        source=note.source,
        by=redactor.text(text(note.by))[0][:200],
        at=note.at or now,
    )


def _outcome_of_note(row: Feedback, ends: Outcome) -> Feedback:
    """Return a score like `correctness` as feedback on how the trajectory ended, apart from one called `outcome`."""
    by = f"{row.key} ({row.by})"[:200]
    return Feedback(
        project=row.project, trace_id=row.trace_id, key=OUTCOME, value=ends, source=row.source, by=by, at=row.at
    )


def _fresh(project: Project, waiting: Sequence[_Waiting], now: datetime, report: Report) -> list[Feedback]:
    """Those that are not there yet. Without an id and a time, what its giver said last is there already."""
    for number, each in enumerate(waiting):
        if not each.is_dated:
            each.row.at = now + timedelta(microseconds=number)  # of one request, the later one is newer
        attachments.identified(each.row, each.identity)
    asked = [each.row.identity for each in waiting]
    known = dict(Feedback.objects.filter(project=project, identity__in=asked).values_list("identity", "digest"))
    last = _last(project, {each.row.trace_id for each in waiting})
    fresh = []
    for each in waiting:
        row = each.row
        if row.identity in known:
            if known[row.identity] != row.digest:
                report.problems.append(Problem(each.index, "id", "this id is already that of other feedback"))
            else:
                report.duplicate += 1
            continue
        at, digest = last.get(_giver(row), (row.at, ""))
        if not each.identity and not each.is_dated and digest == row.digest:
            report.duplicate += 1
            continue
        if row.at >= at:
            last[_giver(row)] = row.at, row.digest
        known[row.identity] = row.digest
        fresh.append(row)
    return fresh


def _last(project: Project, trace_ids: Iterable[str]) -> dict[tuple[str, ...], tuple[datetime, str]]:
    found = Feedback.objects.filter(project=project, trace_id__in=trace_ids, current=True)
    return {_giver(row): (row.at, row.digest) for row in found}


def _giver(row: Feedback) -> tuple[str, ...]:
    """Whose word about what: the newest one of these holds."""
    return row.trace_id, row.span_id, row.key, row.source, row.by


def _problem(index: int, error: ValidationError) -> Problem:
    first = error.errors()[0]
    where = first["loc"][0] if first["loc"] else "value" if isinstance(first["input"], dict) else "item"
    return Problem(index, str(where), text(first["msg"].removeprefix("Value error, "))[:500])
