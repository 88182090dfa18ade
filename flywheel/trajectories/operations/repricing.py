"""Deriving costs again, after prices have changed: those of every model call whose sender stated none.

Imported files and calls through the gateway have no spans that could be read again, but their steps say by whose price
each cost was derived. So only that is looked at: a cost that is stated stays, as does one by a version's own price,
which never changes, and a rollout's, which its eval measured. It may stop anywhere, and be done again.
"""

from django.db import transaction
from django.db.models import Q

from flywheel.accounts.models import Project
from flywheel.accounts.project_settings import model_prices
from flywheel.trajectories.models import Source, Step, Trajectory
from flywheel.trajectories.store.aggregates import derived_costs, running_totals
from flywheel.trajectories.store.rows import trajectory_rows

STEPS_AT_ONCE = 500
DERIVED = Q(priced_by__startswith="table:") | Q(priced_by__startswith="list:")
OPEN = Q(cost_usd=None, priced_by=None, kind="assistant", tokens_in__isnull=False, tokens_out__isnull=False)
"""A call that has no cost, and may have a price now."""


def derive_again(project: Project, key: int, table: model_prices.Table | None = None) -> bool:
    """Derive the costs of one trajectory by these prices or the project's. Returns whether any is another now.

    Its steps are locked by their trajectory, as whoever writes them does.
    """
    table = table or model_prices.table_of(project.pk)
    with transaction.atomic():
        rows = Trajectory.objects.select_for_update(no_key=True).exclude(source__in=Source.ATTEMPTS)
        row = rows.filter(project=project, pk=key).first()
        if row is None or not _price_steps(row, table):
            return False
        running_totals.add_again(row, [], [])
        trajectory_rows.update_trajectories([row])
        running_totals.settle_again(row)
    return True


def _price_steps(row: Trajectory, table: model_prices.Table) -> bool:
    """Write the costs that differ. Returns whether there are any."""
    fields = ("kind", "model", "started_at", "tokens_in", "tokens_out", "tokens_cached", "cost_usd", "priced_by")
    calls = Step.objects.filter(DERIVED | OPEN, trajectory=row).exclude(model="").only(*fields)
    moved = []
    for step in calls.order_by():
        price = derived_costs.price_of(row.version_id, step.model, step.started_at, table)
        cost = price.cost(step.tokens_in, step.tokens_out, step.tokens_cached) if price else None
        origin = price.origin if price else None
        if (cost, origin) != (step.cost_usd, step.priced_by):
            step.cost_usd, step.priced_by = cost, origin
            moved.append(step)
    Step.objects.bulk_update(moved, ["cost_usd", "priced_by"], batch_size=STEPS_AT_ONCE)
    return bool(moved)
