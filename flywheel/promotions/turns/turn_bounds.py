"""An agent's turns, derived from its promotions (docs/design/turns.md).

A turn ends when a version is promoted, and the next one begins in that moment. The last one is open. A rollback ends
none: it belongs to the turn in which it happens, and so do ramps that were taken back and candidates that were
rejected.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from flywheel.agents.models import Agent
from flywheel.edge.refusals import Missing
from flywheel.failures.buckets.bucket_lifecycle import standing_moves
from flywheel.promotions.models import Promotion


@dataclass(frozen=True, slots=True)
class Turn:
    agent: Agent
    number: int
    """From 1 on."""
    begun_by: Promotion | None
    """The promotion at which it begins; None for the first turn, which has everything before the first promotion."""
    ended_by: Promotion | None
    """The promotion that it led to; None while it is open."""

    def __str__(self) -> str:
        return f"turn {self.number} of {self.agent}"

    @property
    def is_open(self) -> bool:
        return self.ended_by is None

    @property
    def since(self) -> datetime | None:
        return self.begun_by.created_at if self.begun_by else None

    @property
    def until(self) -> datetime | None:
        return self.ended_by.created_at if self.ended_by else None

    def has(self, name: str) -> Q:
        """Rows whose moment of that name is in the turn; that of the promotion that ends it is in the next one."""
        condition = Q()
        if self.since is not None:
            condition &= Q(**{f"{name}__gte": self.since})
        if self.until is not None:
            condition &= Q(**{f"{name}__lt": self.until})
        return condition

    @property
    def moves(self) -> QuerySet[Promotion]:
        """Every move of the live version in it, with the one that ends it."""
        rows = self.agent.promotions.all()
        rows = rows.filter(generation__gt=self.begun_by.generation) if self.begun_by else rows
        return rows.filter(generation__lte=self.ended_by.generation) if self.ended_by else rows


def promotions_of(agent: Agent) -> QuerySet[Promotion]:
    """Those that end turns, the oldest first."""
    rows = agent.promotions.filter(kind=Promotion.Kind.PROMOTE).order_by("generation")
    return rows.select_related("before__agent", "after__agent")


def present(agent: Agent) -> Turn:
    """The open turn."""
    return Turn(agent, promotions_of(agent).count() + 1, promotions_of(agent).last(), None)


def turn_numbered(agent: Agent, number: int) -> Turn:
    """Raises Missing."""
    edges = list(promotions_of(agent)[max(0, number - 2) : number]) if number > 0 else []
    begun_by = edges.pop(0) if edges and number > 1 else None
    if number < 1 or (number > 1 and begun_by is None):
        raise Missing(f"{agent} has no turn {number}; its turns are 1 to {present(agent).number}")
    return Turn(agent, number, begun_by, edges[0] if edges else None)


def ended_by(agent: Agent, moves: Sequence[Promotion]) -> list[Turn]:
    """The turns that these promotions ended, which are neighbours, the newest first."""
    if not moves:
        return []
    number = promotions_of(agent).filter(generation__lte=moves[0].generation).count()
    before = promotions_of(agent).filter(generation__lt=moves[-1].generation).last()
    begun = [*moves[1:], before]
    return [Turn(agent, number - place, begun[place], move) for place, move in enumerate(moves)]


def rolled_back(agent: Agent, turns: Collection[Turn]) -> set[int]:
    """The numbers of those whose version was rolled back later."""
    standing = set(standing_moves(agent.promotions.all()))
    return {turn.number for turn in turns if turn.ended_by and turn.ended_by.pk not in standing}
