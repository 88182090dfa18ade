"""The decision, as the review page sends it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.accounts.models import User
from flywheel.core.buckets import BUCKETS
from flywheel.failures import correction
from flywheel.failures.correction import Correction
from flywheel.failures.label import BadLabel, Superseded, current_of, decide, tools_of
from flywheel.failures.models import Failure, Proposal
from flywheel.failures.review import own_call
from flywheel.trajectories.models import Trajectory

CONFIRM, NOTHING_WRONG = "confirm", "nothing"
"""Values of `quick`: the two decisions that need no choice of a bucket."""


@dataclass(slots=True)
class Written:
    """What stands in the decision form."""

    bucket: str = ""
    step: str = ""
    note: str = ""
    seen: int = 0
    correction: Correction | None = None
    wants_correction: bool = False
    error: str = ""
    overtaken: Failure | None = None
    """Somebody's decision that came between."""

    @property
    def corrected(self) -> dict[str, Any] | None:
        return self.correction.action if self.correction and self.wants_correction else None


def initial(trajectory: Trajectory, current: Failure | None, proposals: list[Proposal]) -> Written:
    """The form as it opens: the decision that stands, else the strongest proposal with the agent's own call."""
    best = proposals[0] if proposals else None
    step = current.step if current else best.step if best else ""
    stored = current.corrected if current else None
    return Written(
        bucket=current.bucket if current else best.bucket if best else "",
        step=step,
        note=current.note if current else "",
        seen=current.pk if current else 0,
        correction=correction.of_action(tools_of(trajectory), stored or own_call(trajectory, step)),
        wants_correction=stored is not None,
    )


def read(trajectory: Trajectory, data: Mapping[str, str]) -> Written:
    """What was sent."""
    bucket = data.get("bucket", "")
    if data.get("quick") == CONFIRM:
        best = trajectory.proposals.first()
        bucket = best.bucket if best else ""
    return Written(
        bucket="" if data.get("quick") == NOTHING_WRONG else bucket,
        step="" if data.get("quick") == NOTHING_WRONG else data.get("step", ""),
        note=data.get("note", "").replace("\r\n", "\n"),
        seen=seen_of(data),
        correction=correction.read(tools_of(trajectory), data),
        wants_correction=bool(data.get("correct")),
    )


def seen_of(data: Mapping[str, str]) -> int:
    """The decision that the sender saw; 0 for none, and for what is no number."""
    text = data.get("seen", "")
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def save(trajectory: Trajectory, actor: User, data: Mapping[str, str]) -> tuple[Failure | None, Written]:
    """Decide as the form says. Returns the decision, or None and the form with what is wrong with it."""
    written = read(trajectory, data)
    if not written.bucket and data.get("quick") != NOTHING_WRONG:
        keys = ", ".join(f"{bucket.shortcut} {bucket.label.lower()}" for bucket in BUCKETS.values())
        written.error = f"Choose a bucket ({keys}), or say that nothing is wrong (r)."
        return None, written
    if written.wants_correction and written.correction and written.correction.problems:
        written.error = f"The corrected action does not fit yet. {'; '.join(written.correction.problems)}"
        return None, written
    try:
        failure = decide(
            trajectory=trajectory,
            actor=actor,
            bucket=written.bucket,
            step=written.step,
            corrected=written.corrected,
            note=written.note,
            seen=written.seen,
        )
    except BadLabel as error:
        written.error = f"{error}"
        return None, written
    except Superseded as error:
        written.overtaken, written.seen = error.current, error.current.pk if error.current else 0
        written.error = f"{error}. Yours is not saved; save again to put it above."
        return None, written
    return failure, written


def opened(trajectory: Trajectory) -> tuple[Failure | None, list[Proposal], Written]:
    """What the page needs to show the form."""
    current = current_of(trajectory)
    proposals = list(trajectory.proposals.all())
    return current, proposals, initial(trajectory, current, proposals)
