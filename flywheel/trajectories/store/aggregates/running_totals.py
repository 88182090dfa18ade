"""The figures of a trajectory, added up as its steps arrive. They do not depend on the order of arrival.

Money is added up in whole nanodollars, since a sum of floats depends on its order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import BigIntegerField
from django.db.models.functions import Cast, Extract

from flywheel.core import traces
from flywheel.system.sql import bound
from flywheel.trajectories.formats.values.times import EPOCH
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store.aggregates.step_order import UNTIMED
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival

COST = "cost"
"""In `Trajectory.claims`: the cost of all steps, in nanodollars."""
_NANO = 10**9


@dataclass(slots=True)
class Figures:
    start_us: int | None
    end_us: int | None
    status: str
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None


def mark_untimed(row: Trajectory, fresh: Iterable[Arrival]) -> None:
    """Remember for ordering that a step came without a clock."""
    if UNTIMED not in row.claims and any(step.start_us is None for step in fresh):
        row.claims = {**row.claims, UNTIMED: True}


def add(row: Trajectory, fresh: Sequence[Arrival | Figures]) -> None:
    """Add new steps to the figures of those before them."""
    starts = [step.start_us for step in fresh if step.start_us is not None]
    ends = [step.end_us for step in fresh if step.end_us is not None]
    if starts:
        first = EPOCH + timedelta(microseconds=min(starts))
        row.started_at = min(row.started_at, first) if STARTED in row.claims else first
        row.claims[STARTED] = True
    if ends:
        last = EPOCH + timedelta(microseconds=max(ends))
        row.ended_at = max(row.ended_at, last) if row.ended_at else last
    if STARTED in row.claims and row.ended_at:
        row.latency_ms = (row.ended_at - row.started_at) / timedelta(milliseconds=1)
    row.step_count += len(fresh)
    row.error_count += sum(step.status == "error" for step in fresh)
    row.tokens_in = _more(row.tokens_in, (step.tokens_in for step in fresh))
    row.tokens_out = _more(row.tokens_out, (step.tokens_out for step in fresh))
    costs = [round(step.cost_usd * _NANO) for step in fresh if step.cost_usd is not None]
    if costs:
        row.claims[COST] = row.claims.get(COST, 0) + sum(costs)
        row.cost_usd = row.claims[COST] / _NANO


STARTED = "started"
"""In `Trajectory.claims` once a step with a clock has come; until then `started_at` is the time of arrival."""


def add_again(row: Trajectory, fresh: Sequence[Arrival], replaced: Collection[int]) -> None:
    """Compute the figures anew, since some of the new steps replace stored ones (by key)."""
    found = Step.objects.filter(trajectory=row).exclude(pk__in=replaced).order_by()
    kept = [Figures(*values) for values in found.values_list(*_COLUMNS)]
    if STARTED in row.claims:
        row.claims.pop(STARTED)
        row.started_at = row.received_at
    row.ended_at = row.latency_ms = row.tokens_in = row.tokens_out = row.cost_usd = None
    row.claims.pop(COST, None)
    row.step_count = row.error_count = 0
    add(row, [*kept, *fresh])


def settle_again(row: Trajectory) -> None:
    """Count once what a trajectory tells twice, after its figures were computed anew. The caller holds its lock."""
    found = Step.objects.filter(trajectory=row, kind="assistant").order_by("position")
    if not found.filter(parent_id__in=found.order_by().values("span_id")).exists():
        return
    names = ("span_id", "kind", "parent_id", "tokens_in", "tokens_out", "cost_usd", "priced_by")
    every = Step.objects.filter(trajectory=row).order_by("position").values(*names)
    steps = [traces.Step(**{**values, "priced_by": values["priced_by"] or ""}) for values in every]
    settle({row.pk: traces.Trace(row.trace_id, steps)})


def settle(twice: Mapping[int, traces.Trace]) -> None:
    """Count once what these trajectories, by primary key, tell twice (`traces.told_twice`).

    Which calls those are shows only once all of them are there, so this is for whoever reads whole trajectories. The
    caller holds their locks.
    """
    found = Trajectory.objects.filter(pk__in=twice).only("tokens_in", "tokens_out", "cost_usd", "claims")
    changed = [row for row in found if _settle(row, twice[row.pk])] if twice else []
    if changed:
        rows = [(row.pk, row.tokens_in, row.tokens_out, row.cost_usd, row.claims[COST]) for row in changed]
        bound(_SETTLE, [list(column) for column in zip(*rows, strict=True)])


_SETTLE = """
UPDATE trajectories_trajectory AS kept
SET tokens_in = new.tokens_in, tokens_out = new.tokens_out, cost_usd = new.cost_usd,
    claims = jsonb_set(claims, '{cost}', to_jsonb(new.nano))
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::numeric[])
    AS new (id, tokens_in, tokens_out, cost_usd, nano)
WHERE kept.id = new.id
"""


def _settle(row: Trajectory, trace: traces.Trace) -> bool:
    """Returns whether a figure changed."""
    before = row.tokens_in, row.tokens_out, row.cost_usd
    row.tokens_in = _more(None, (step.tokens_in for step in _telling(trace, "tokens_in")))
    row.tokens_out = _more(None, (step.tokens_out for step in _telling(trace, "tokens_out")))
    costs = [round((step.cost_usd or 0) * _NANO) for step in _telling(trace, "cost_usd")]
    row.cost_usd = sum(costs) / _NANO if costs else None
    row.claims[COST] = sum(costs)
    return before != (row.tokens_in, row.tokens_out, row.cost_usd)


def _telling(trace: traces.Trace, figure: str) -> list[traces.Step]:
    """The steps whose figure counts: all that have it, but not a model call above another that has it too."""
    known = [step for step in trace.steps if getattr(step, figure) is not None]
    if figure == "cost_usd":  # what a sender states of a call holds over what we derive below it
        stated = {step.span_id for step in known if step.kind == "assistant" and not step.priced_by}
        known = [step for step in known if not (step.priced_by and step.parent_id in stated)]
    above = {step.parent_id for step in known if step.kind == "assistant"}
    return [step for step in known if step.kind != "assistant" or step.span_id not in above]


def _us(column: str) -> Any:
    return Cast(Extract(column, "epoch") * 1_000_000, BigIntegerField())


_COLUMNS = (_us("started_at"), _us("ended_at"), "status", "tokens_in", "tokens_out", "cost_usd")


def _more(known: int | None, counts: Iterable[int | None]) -> int | None:
    told = [count for count in counts if count is not None]
    return (known or 0) + sum(told) if told else known
