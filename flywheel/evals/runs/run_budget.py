"""Limits of an eval run: tokens, dollars, minutes. A run that has spent one stops, and keeps what it has.

They are looked at before each chunk of attempts, so a run ends at most one chunk beyond. Tokens and dollars are those
of the whole run, and what is spent of them is resumed with a greater budget; minutes are those of one go, so that a run
which waited, or is resumed, has them again. What judges take counts too, and so does a model that stands in for tools;
dollars are limited where the prices of all that are asked are known.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models import Count, Q, Sum
from django.db.models.functions import Coalesce

from flywheel.accounts.project_settings import model_prices
from flywheel.agents.models import Version
from flywheel.core.verifiers import UNJUDGED
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.proofs import judge_endpoints
from flywheel.evals.models import EvalRun

UNITS: Final[Mapping[str, type]] = {"tokens": int, "usd": float, "minutes": float}
MOST: Final = 10**12


def limits(value: Mapping[str, Any], units: Mapping[str, type] = UNITS) -> dict[str, float]:
    """The limits that are set, by unit; what is None sets none. Raises Refused."""
    if unknown := sorted(set(value) - set(units)):
        raise Refused(f"is unknown; use one of {', '.join(units)}", field=f"budget.{unknown[0]}")
    found: dict[str, float] = {}
    for name, limit in value.items():
        if limit is None:
            continue
        is_whole = units[name] is int
        fits = isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit <= MOST
        if not fits or (is_whole and limit != int(limit)):
            raise Refused(f"{limit!r} is not a {'whole ' if is_whole else ''}number above 0", field=f"budget.{name}")
        found[name] = units[name](limit)
    return found


def check(value: Mapping[str, Any], version: Version, environment: EnvironmentVersion) -> dict[str, float]:
    """The limits that are set and can be kept. Raises Refused."""
    found = limits(value)
    if "usd" in found and not _is_priced(version):
        where = "set its price under Settings › Prices"
        problem = f"{version} has no price, so its cost is unknown; {where}, or limit tokens or minutes"
        raise Refused(problem, field="budget.usd")
    unpriced = judge_endpoints.unpriced(version.agent.project, environment.config, environment.verifier)
    if "usd" in found and unpriced:
        raise Refused(f"{unpriced}; or limit tokens or minutes", field="budget.usd")
    return found


def _is_priced(version: Version) -> bool:
    """Whether it is known what the version's answers cost: by tokens, or by the hour of the device that has its
    weights."""
    project_id, endpoint = version.agent.project_id, version.endpoint
    if endpoint.get("kind") == "transformers":
        return model_prices.hour_of(project_id) is not None
    return model_prices.price_of(project_id, endpoint.get("model", ""), endpoint) is not None


@dataclass(frozen=True, slots=True)
class Taken:
    """Tokens, in and out, and dollars; None where an answer does not say what it took."""

    tokens: int | None
    usd: float | None


def of_policy(run: EvalRun) -> Taken:
    """Sum the tokens and dollars of the attempts."""
    answered = ~Q(cause__in=UNJUDGED) | Q(cause="broken", latency_ms__isnull=False)
    found = run.results.aggregate(
        tokens=Sum(Coalesce("tokens_in", 0) + Coalesce("tokens_out", 0), default=0),
        usd=Sum("cost_usd", default=0.0),
        uncounted=Count("pk", filter=answered & (Q(tokens_in=None) | Q(tokens_out=None))),
        unpriced=Count("pk", filter=answered & Q(cost_usd=None)),
    )
    return Taken(None if found["uncounted"] else found["tokens"], None if found["unpriced"] else found["usd"])


def of_judges(run: EvalRun) -> Taken:
    """Sum the tokens and dollars of the verifier's judges, canaries too."""
    return sum_of(run.judges.values())


def of_simulator(run: EvalRun) -> Taken:
    """Sum the tokens and dollars of the model that stands in for tools."""
    return sum_of([run.simulator] if run.simulator else [])


def sum_of(rows: Collection[Mapping[str, Any]]) -> Taken:
    """Sum what judges and simulators report that they took."""
    is_known = all(row.get("cost_usd") is not None for row in rows)
    usd = sum((row["cost_usd"] for row in rows), 0.0) if is_known else None
    tokens = [row[name] for row in rows for name in ("tokens_in", "tokens_out")]
    return Taken(None if None in tokens else sum(tokens), usd)


def spent(run: EvalRun, running: timedelta) -> str:
    """Which limit is reached, in a sentence; empty while there is something left."""
    limits = run.budget
    if (minutes := limits.get("minutes")) and running >= timedelta(minutes=minutes):
        return f"the budget of {minutes:g} minutes is spent"
    if not limits.keys() & {"tokens", "usd"}:
        return ""
    policy, judged = of_policy(run), sum_of([*run.judges.values(), *filter(None, [run.simulator])])
    if most := limits.get("tokens"):
        if policy.tokens is None or judged.tokens is None:
            return _untold("tokens", policy.tokens)
        if (tokens := policy.tokens + judged.tokens) >= most:
            return f"the budget of {most:.0f} tokens is spent: {tokens}"
    if dollars := limits.get("usd"):
        if policy.usd is None or judged.usd is None:
            return _untold("dollars", policy.usd)
        if (cost := policy.usd + judged.usd) >= dollars:
            return f"the budget of ${dollars:g} is spent: ${cost:.4f}"
    return ""


def _untold(words: str, of_policy: float | None) -> str:
    who = "the server" if of_policy is None else "the judge's server, or the simulator's,"
    return f"the budget cannot be kept: {who} does not say how many {words} an answer takes"
