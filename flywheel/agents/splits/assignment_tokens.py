"""Tokens that a program which calls its model itself shows for the arm that it was given: one session's, in one split.

Its traces carry the token as the attribute `flywheel.assignment`. Only this installation can make one, and one that was
given for another session, split or project shows nothing.
"""

import hmac

from flywheel.accounts.models.keys import keyed_hash
from flywheel.agents.models import Split
from flywheel.agents.splits.assignment import Arm, Unit

PREFIX = "fwt"


def assignment_token(split: Split, unit: Unit, arm: Arm) -> str:
    """At most 104 characters, so that it fits where attributes are kept."""
    said = "\0".join(("assignment", str(split.pk), str(split.agent_id), split.salt, arm, unit.kind, unit.name))
    return f"{PREFIX}_{split.pk}_{arm}_{keyed_hash(said)}"


def is_assignment(token: str, split: Split, kind: str, name: str) -> Arm | None:
    """The arm that this token was given for, to this unit of the split; None where it was not."""
    arms: tuple[Arm, Arm] = ("live", "candidate")
    known = token.encode(errors="replace")
    for arm in arms:
        if hmac.compare_digest(known, assignment_token(split, Unit(kind, name), arm).encode()):
            return arm
    return None
