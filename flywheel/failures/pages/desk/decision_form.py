"""The decision, as the review page sends it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.edge.numbers import key
from flywheel.edge.refusals import Refused
from flywheel.failures.buckets.bucket_definitions import of_project
from flywheel.failures.labels.decisions import Superseded, current_of, decide, tools_of
from flywheel.failures.models import Failure, Proposal, QueueItem, Review
from flywheel.failures.pages.desk import correction_form
from flywheel.failures.pages.desk.correction_form import Correction
from flywheel.failures.queues.reservations import Held, NotYours
from flywheel.failures.queues.reviews import Closed, give
from flywheel.trajectories.detail.expected_action import own_call, own_message
from flywheel.trajectories.models import Trajectory

CONFIRM, NOTHING_WRONG = "confirm", "nothing"
"""Values of `quick`: the two decisions that need no choice of a bucket."""


@dataclass(slots=True)
class Written:
    """The content of the decision form."""

    bucket: str = ""
    step: str = ""
    note: str = ""
    seen: int = 0
    correction: Correction | None = None
    wants_correction: bool = False
    error: str = ""
    is_overtaken: bool = False
    """Somebody came between; nothing is wrong with what is written."""

    @property
    def corrected(self) -> dict[str, Any] | None:
        return self.correction.action if self.correction and self.wants_correction else None


def initial(trajectory: Trajectory, current: Failure | Review | None, proposals: list[Proposal]) -> Written:
    """The form as it opens: the decision that stands, else the strongest proposal with the agent's own call."""
    best = proposals[0] if proposals else None
    step = current.step if current else best.step if best else ""
    stored = current.corrected if current else None
    return Written(
        bucket=current.bucket if current else best.bucket if best else "",
        step=step,
        note=current.note if current else "",
        seen=current.pk if current else 0,
        correction=correction_form.of_action(
            tools_of(trajectory), stored or own_call(trajectory, step), own_message(trajectory, step)
        ),
        wants_correction=stored is not None,
    )


def read(trajectory: Trajectory, data: Mapping[str, str]) -> Written:
    """Read the form that was sent."""
    bucket = data.get("bucket", "")
    if data.get("quick") == CONFIRM:
        best = trajectory.proposals.first()
        bucket = best.bucket if best else ""
    return Written(
        bucket="" if data.get("quick") == NOTHING_WRONG else bucket,
        step="" if data.get("quick") == NOTHING_WRONG else data.get("step", ""),
        note=data.get("note", "").replace("\r\n", "\n"),
        seen=seen_of(data),
        correction=correction_form.read(tools_of(trajectory), data, own_message(trajectory, data.get("step", ""))),
        wants_correction=bool(data.get("correct")) and data.get("quick") != NOTHING_WRONG,
    )


def seen_of(data: Mapping[str, str]) -> int:
    """The decision that the sender saw; 0 for none, and for what is no number."""
    return key(data.get("seen", "")) or 0


def is_settled(trajectory: Trajectory, data: Mapping[str, str]) -> bool:
    """Whether a pass stands that the sender saw, and the form says nothing else."""
    current = current_of(trajectory)
    is_pass = current is not None and not current.is_failure and current.pk == seen_of(data)
    return is_pass and not (data.get("bucket") or data.get("correct"))


def save(trajectory: Trajectory, actor: Actor, data: Mapping[str, str]) -> tuple[Failure | Review | None, Written]:
    """Decide as the form says, on the item of a queue where it names one.

    Returns the decision, or None and the form with what is wrong with it.
    """
    written = read(trajectory, data)
    if not written.bucket and data.get("quick") != NOTHING_WRONG:
        offered = of_project(trajectory.project).values()
        keys = ", ".join(f"{bucket.shortcut} {bucket.label.lower()}".strip() for bucket in offered)
        written.error = f"Choose a category ({keys}), or mark it as nothing wrong (p)."
        return None, written
    if written.wants_correction and written.correction and written.correction.problems:
        written.error = f"The corrected action is not valid yet. {'; '.join(map(str, written.correction.problems))}"
        return None, written
    said = {name: getattr(written, name) for name in ("bucket", "step", "corrected", "note", "seen")}
    item = item_of(trajectory, data)
    try:
        if item is None:
            return decide(trajectory=trajectory, actor=actor, **said), written
        return give(item=item, actor=actor, settles=bool(data.get("settle")), **said), written
    except Superseded as error:
        written.is_overtaken, written.seen = True, error.current.pk if error.current else 0
        written.error = f"{error}. Yours is not saved; save again to replace it."
    except Held as error:
        written.is_overtaken = True
        written.error = (
            f"Your reservation has run out, and {error}. Yours is not saved. Your text stays here; save it when the "
            f"item is free again."
        )
    except (Closed, NotYours) as error:
        written.is_overtaken = True
        written.error = f"Not saved: {error}. Your text stays here."
    except Refused as error:
        written.error = str(error)
    return None, written


def item_of(trajectory: Trajectory, data: Mapping[str, str]) -> QueueItem | None:
    """The item of a queue that the form is about."""
    pk = key(data.get("item", ""))
    return QueueItem.objects.filter(pk=pk, trajectory=trajectory).select_related("queue").first() if pk else None


def opened(trajectory: Trajectory) -> tuple[list[Proposal], Written]:
    """Return the proposals, and the form as it opens."""
    proposals = list(trajectory.proposals.all())
    return proposals, initial(trajectory, current_of(trajectory), proposals)
