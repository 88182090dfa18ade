"""To which arm of a split a unit falls: a keyed hash of its name is its coin, and below the share is the candidate's.

So a higher share adds units to the candidate and takes none away, and every process throws the same coin.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal

from flywheel.core.evidence.ramp.ramp_plan import WHOLE

Arm = Literal["live", "candidate"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Something that keeps its arm: a session, a trace, or the beginning of a conversation."""

    kind: str
    """As `SplitUnit.Kind`."""
    name: str


def coin(salt: str, project_id: int, agent_id: int, unit: Unit) -> int:
    """The unit's coin: evenly from 0 to `WHOLE` - 1."""
    said = f"{project_id}\0{agent_id}\0{unit.kind}\0{unit.name}"
    drawn = hmac.new(salt.encode(), said.encode(), hashlib.sha256).digest()
    return int.from_bytes(drawn[:8]) % WHOLE


def arm_of(is_candidate: bool) -> Arm:
    return "candidate" if is_candidate else "live"
