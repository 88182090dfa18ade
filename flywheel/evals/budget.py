"""What an eval run may take at most: tokens, dollars, minutes. A run that has spent it stops, and keeps what it has.

It is looked at before each chunk of attempts, so a run ends at most one chunk beyond it. Tokens and dollars are those
of the whole run, and what is spent of them is resumed with a greater budget; minutes are those of one go, so that a run
which waited, or is resumed, has them again. What judges take counts as tokens; nothing names a price for it, so that
there is no budget of dollars beside a judge.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.db.models import Sum

from flywheel.agents.models import Version
from flywheel.core.errors import FieldError
from flywheel.core.verifiers import rubric
from flywheel.evals.models import EvalRun

CHUNK: Final = 16
"""Attempts asked at once where there is a budget: the most that it is exceeded by."""
UNITS: Final[Mapping[str, type]] = {"tokens": int, "usd": float, "minutes": float}
MOST: Final = 10**12


class BadBudget(FieldError):
    """`field` says which limit, the message what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"budget.{field}", problem)


def check(value: Mapping[str, Any], version: Version, verifier: Mapping[str, Any]) -> dict[str, float]:
    """The limits that are set. Raises BadBudget."""
    if unknown := sorted(set(value) - set(UNITS)):
        raise BadBudget(unknown[0], f"is unknown, {', '.join(UNITS)} are known")
    found: dict[str, float] = {}
    for name, limit in value.items():
        if limit is None:
            continue
        is_whole = UNITS[name] is int
        fits = isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit <= MOST
        if not fits or (is_whole and limit != int(limit)):
            raise BadBudget(name, f"{limit!r} is not a {'whole ' if is_whole else ''}number above 0")
        found[name] = UNITS[name](limit)
    if "usd" in found and not all(version.endpoint.get(name) is not None for name in ("price_in", "price_out")):
        problem = f"{version} does not name both prices, so nobody knows what it costs; limit tokens or minutes"
        raise BadBudget("usd", problem)
    if "usd" in found and (judges := rubric.judges(verifier)):
        names = ", ".join(part.name for part in judges.values())
        raise BadBudget(
            "usd", f"the verifier asks a judge ({names}), whose price nobody names; limit tokens or minutes"
        )
    return found


def spent(run: EvalRun, running: timedelta) -> str:
    """Which limit is reached, in a sentence; empty while there is something left."""
    limits = run.budget
    if (minutes := limits.get("minutes")) and running >= timedelta(minutes=minutes):
        return f"the budget of {minutes:g} minutes is spent"
    if not limits.keys() & {"tokens", "usd"}:
        return ""
    answered = run.results.exclude(cause="not_answered")
    for limit, known, words in (("tokens", "tokens_out", "tokens"), ("usd", "cost_usd", "dollars")):
        if limit in limits and answered.filter(**{known: None}).exists():
            return f"the budget cannot be kept: the server does not say how many {words} an answer takes"
    used = run.results.aggregate(read=Sum("tokens_in"), written=Sum("tokens_out"), usd=Sum("cost_usd"))
    judges = sum(row["tokens_in"] + row["tokens_out"] for row in run.judges.values())
    tokens, cost = (used["read"] or 0) + (used["written"] or 0) + judges, used["usd"] or 0.0
    if (most := limits.get("tokens")) and tokens >= most:
        return f"the budget of {most:.0f} tokens is spent: {tokens}"
    if (dollars := limits.get("usd")) and cost >= dollars:
        return f"the budget of ${dollars:g} is spent: ${cost:.4f}"
    return ""
