"""A person's decision about a trajectory. A later decision supersedes the earlier one and never overwrites it.

A caller that shows decisions says which one it saw (`seen`), so that of two people who decide at the same time the
second learns of the first. The same decision by the same person twice is one decision.
"""

from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.traces import corrections
from flywheel.core.traces.episodes import every_text
from flywheel.edge.refusals import Refused, Stale
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.buckets.bucket_definitions import every, name_of, of_project
from flywheel.failures.labels import queue_outcomes
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Label, Source, Trajectory

LATEST: Final = -1
"""`seen` of a caller that does not care what stands: a script, the story's oracle."""
NOTE_LIMIT = 10_000


class Superseded(Stale):
    """Somebody decided since the caller looked. `current` is what stands now, or None when it was taken back."""

    def __init__(self, current: Failure | None) -> None:
        self.current = current
        super().__init__(
            f"{current.labelled_by} decided {describe(current.project, current)} since you opened this"
            if current
            else "the decision you saw was undone since you opened this page"
        )


def describe(project: Project, failure: Failure) -> str:
    """The decision in two or three words: `wrong tool`, `nothing wrong`."""
    return name_of(project, failure.bucket) if failure.is_failure else "nothing wrong"


def tools_of(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The tools that the agent had: as the trajectory tells, else as its version does; those with a name alone.

    A rollout always tells: in an environment without tools there are none, whatever the version has elsewhere.
    """
    given = trajectory.tools
    if not given and trajectory.version is not None and trajectory.source not in Source.ATTEMPTS:
        given = trajectory.version.tools
    return [tool for tool in given if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


def current_of(trajectory: Trajectory) -> Failure | None:
    """The decision that counts."""
    return trajectory.failures.filter(current=True).select_related("labelled_by").first()


@transaction.atomic
def decide(
    *,
    trajectory: Trajectory,
    actor: Actor,
    decision: Decision | None = None,
    bucket: str = "",
    step: str = "",
    corrected: dict[str, Any] | None = None,
    note: str = "",
    seen: int = LATEST,
) -> Failure:
    """Record a decision, and what it means for the trajectory. Raises Refused and Superseded.

    Without `decision` it follows from the bucket and from what is proposed; no bucket says that nothing is wrong.
    `corrected` is what should have happened, in one of the forms of `core.traces.corrections`.
    `seen` is the primary key of the current decision as the caller knows it, 0 for none.
    """
    row = (
        Trajectory.objects.select_for_update(no_key=True, of=("self",)).select_related("version").get(pk=trajectory.pk)
    )
    decision = decision or decision_for(row, bucket)
    note = note.strip()
    check(row, decision, bucket, step, corrected, note)
    current = current_of(row)
    wanted = {"bucket": bucket, "step": step, "corrected": corrected, "note": note}
    if (
        current
        and current.labelled_by_id == actor.user.pk
        and wanted == {name: getattr(current, name) for name in wanted}
    ):
        queue_outcomes.made(current)
        return current
    if seen != LATEST and seen != (current.pk if current else 0):
        raise Superseded(current)
    row.failures.filter(current=True).update(current=False)
    failure = Failure.objects.create(
        project=row.project,
        trajectory=row,
        decision=decision,
        labelled_by=actor.user,
        labelled_at=timezone.now(),
        **wanted,
    )
    _mark(row, failure)
    queue_outcomes.made(failure)
    bucket_lifecycle.recur(failure, actor)
    actor.record(
        project=row.project,
        action=f"failures.{decision}",
        subject=f"trajectory {row.trace_id}",
        reason=note,
        bucket=bucket,
        step=step,
    )
    return failure


@transaction.atomic
def undo(*, trajectory: Trajectory, actor: Actor, seen: int = LATEST) -> Failure | None:
    """Take back the decision that counts: the one before it counts again. Returns that one, or None.

    Raises Superseded when it is not the decision that the caller saw.
    """
    row = Trajectory.objects.select_for_update(no_key=True).get(pk=trajectory.pk)
    current = current_of(row)
    if seen not in (LATEST, current.pk if current else 0):
        raise Superseded(current)
    if current is None:
        return None
    before = row.failures.filter(pk__lt=current.pk, taken_back_at=None).order_by("-pk").first()
    Failure.objects.filter(pk=current.pk).update(current=False, taken_back_at=timezone.now())
    if before is not None:
        Failure.objects.filter(pk=before.pk).update(current=True)
        before.current = True
    _mark(row, before)
    queue_outcomes.undone(current, before)
    actor.record(
        project=row.project, action="failures.undo", subject=f"trajectory {row.trace_id}", taken_back=current.pk
    )
    return before


def decision_for(trajectory: Trajectory, bucket: str) -> Decision:
    """Return the decision made by choosing this bucket, given the proposals. No bucket says that nothing is wrong."""
    if not bucket:
        return Decision.REJECTED
    proposed = set(trajectory.proposals.values_list("bucket", flat=True))
    if not proposed:
        return Decision.ADDED
    return Decision.CONFIRMED if bucket in proposed else Decision.CHANGED


def _mark(row: Trajectory, failure: Failure | None) -> None:
    """Write what the decision means on the trajectory, where lists read it."""
    row.label = "" if failure is None else Label.FAILURE if failure.is_failure else Label.PASS
    row.label_bucket = failure.bucket if failure else ""
    if failure is None:
        row.detected_at = None  # what detectors propose may be others' by now: those with a label are not read again
    row.save(update_fields=["label", "label_bucket", "detected_at"])


def check(row: Trajectory, decision: str, bucket: str, step: str, corrected: dict[str, Any] | None, note: str) -> None:
    """Raise Refused when the decision does not fit the trajectory."""
    if decision == Decision.REJECTED and bucket:
        raise Refused("leave empty if nothing is wrong", field="bucket")
    if decision != Decision.REJECTED and bucket not in (offered := of_project(row.project)):
        is_kept = bool(bucket) and bucket == row.label_bucket
        if not is_kept:
            word = "archived" if bucket in every(row.project) else "unknown"
            raise Refused(f"{bucket!r} is {word}, expected one of {', '.join(offered)}", field="bucket")
    if decision == Decision.REJECTED and corrected is not None:
        raise Refused("leave empty if nothing is wrong", field="corrected")
    if bucket == "other" and not note:
        raise Refused("describe what is wrong, since no category does", field="note")
    if any("\0" in text for text in every_text([note, corrected])):
        raise Refused("note and corrected: remove the null character")
    if len(note) > NOTE_LIMIT:
        raise Refused(f"{len(note)} characters; at most {NOTE_LIMIT} are allowed", field="note")
    if step and not row.steps.filter(span_id=step).exists():
        raise Refused(f"this trajectory has no step {step!r}", field="step")
    if corrected is not None and (problems := corrections.problems(corrected, tools_of(row))):
        raise Refused("; ".join(map(str, problems)))
