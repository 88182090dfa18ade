"""Costs of model calls whose sender stated none: their tokens at the price of the day on which they were made.

By the prices of the version's own endpoint where it asks that model, else by the project's table, else by the list
(`model_prices`). What the sender says is never touched, and a model that nobody has priced keeps no cost.
"""

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from flywheel.accounts.models import Project
from flywheel.accounts.project_settings import model_prices
from flywheel.agents.models import Version
from flywheel.core.traces.call_prices import Price
from flywheel.trajectories.formats.values.times import EPOCH
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival


def derive(
    project: Project,
    trajectories: Mapping[str, Trajectory],
    fresh: Mapping[str, Sequence[Arrival]],
    table: model_prices.Table | None = None,
) -> None:
    """Set the cost of these new steps, by trace id, where it is to be derived: by this table, else by the project's,
    which is then read once."""
    open_steps = [
        (trajectories[trace_id], step) for trace_id, steps in fresh.items() for step in steps if _is_open(step)
    ]
    if not open_steps:
        return
    table = table or model_prices.table_of(project.pk)
    for row, step in open_steps:
        at = None if step.start_us is None else EPOCH + timedelta(microseconds=step.start_us)
        price = price_of(row.version_id, step.model, at, table)
        if price is not None:
            step.cost_usd = price.cost(step.tokens_in, step.tokens_out, step.tokens_cached)
            step.priced_by = price.origin


def price_of(version: int | None, model: str, at: datetime | None, table: model_prices.Table) -> Price | None:
    """The price of a call of this model by a version at that time; None where nobody has named it."""
    return _of_version(version, model) or table.price_of(model, at)


def _is_open(step: Arrival) -> bool:
    is_counted = step.tokens_in is not None and step.tokens_out is not None
    return step.kind == "assistant" and bool(step.model) and step.cost_usd is None and is_counted


def _of_version(version: int | None, model: str) -> Price | None:
    """The price that the version names of its own model, or of a snapshot of it."""
    own, price = _endpoint_price(version) if version is not None else ("", None)
    return price if own in model_prices.names_of(model) else None


@functools.lru_cache(maxsize=1024)
def _endpoint_price(version: int) -> tuple[str, Price | None]:
    """The model that a version asks, and its price. Versions do not change."""
    endpoint = Version.objects.filter(pk=version).values_list("endpoint", flat=True).first() or {}
    return endpoint.get("model", ""), model_prices.stated(endpoint, f"version:{version}")
