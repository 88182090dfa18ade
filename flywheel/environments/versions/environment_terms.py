"""Terms of an environment: what it is made with and keeps, whatever its versions say."""

from collections.abc import Sequence
from dataclasses import dataclass

from flywheel.agents.models import Agent
from flywheel.core.envs.kinds import KINDS
from flywheel.edge.refusals import Refused, check_choice


@dataclass(frozen=True, slots=True)
class Terms:
    """The kind of an environment, whose failures become its tasks, and how those are split; unchecked.

    None of it ever changes: a split that moved later would leak.
    """

    kind: str = "tool_call"
    agent: Agent | None = None
    held_out_share: float = 0.4
    sealed_share: float = 0
    """A part of the held-out share."""
    reserved_slices: Sequence[str] = ()

    def check(self) -> None:
        """Raise Refused for what no environment can have."""
        check_choice(self.kind, KINDS, field="kind")
        if not 0 < self.held_out_share <= 1:
            raise Refused(f"{self.held_out_share} is not between 0 and 1", field="held_out_share")
        if not 0 <= self.sealed_share < self.held_out_share:
            raise Refused(
                f"{self.sealed_share} is not from 0 to below the held-out share, {self.held_out_share}",
                field="sealed_share",
            )
        if self.sealed_share and self.held_out_share == 1:
            raise Refused(
                "leave it out where everything is held out, for suites would miss those tasks", field="sealed_share"
            )
