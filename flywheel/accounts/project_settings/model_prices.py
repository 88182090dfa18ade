"""The price of a model call: of its version's endpoint, else of the project's table, else of the list that ships.

A cost that the sender states is always his; whoever asks here has none. In the table a name stands for itself and for
its dated snapshots, a beginning with `*` for all names that begin so; the closest wins, and of its rows the last one
that was valid on the day of the call. What nobody has named has no price, which is not 0.

The list is `list_prices.json`: what a provider's own page said, and the day on which it was read, since such pages have
no date. No row stands there that nobody read. Rows are added to and not changed, since steps refer to them by model and
date.
"""

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import DevicePrice, ModelPrice, Project
from flywheel.core.traces.call_prices import DEAREST, Price
from flywheel.edge.numbers import key
from flywheel.edge.refusals import Refused
from flywheel.system.sql import planned

MOST: Final = 500
"""Rows of a project's table."""
DEAREST_HOUR: Final = 100_000.0
"""Dollars an hour of a device, at most."""
_SNAPSHOT = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8})$", re.ASCII)
_LONG_AGO = date.min


@dataclass(frozen=True, slots=True)
class Listed:
    """A price of the list that ships."""

    model: str
    price_in: float
    price_out: float
    price_cached: float | None
    as_of: str
    """The day, `YYYY-MM-DD`, on which the page was read."""
    source: str
    """The address of that page, the provider's own."""

    @property
    def origin(self) -> str:
        return f"list:{self.model}@{self.as_of}"


@functools.cache
def listed() -> Sequence[Listed]:
    """The list that ships."""
    path = Path(__file__).with_name("list_prices.json")
    return tuple(Listed(**row) for row in json.loads(path.read_text(encoding="utf-8")))


# Looking up


def names_of(model: str) -> tuple[str, str]:
    """The names that a price of this model may stand under: its own, and that without the date of its snapshot."""
    return model, _SNAPSHOT.sub("", model)


class Table:
    """Prices of models by name and day: a project's own, and the list behind them."""

    def __init__(self, rows: Iterable[tuple[str, date | None, Price]]) -> None:
        self._rows: dict[str, list[tuple[date, Price]]] = {}
        for model, valid_from, price in rows:
            self._rows.setdefault(model, []).append((valid_from or _LONG_AGO, price))
        self._beginnings = sorted((name for name in self._rows if name.endswith("*")), key=len, reverse=True)

    def price_of(self, model: str, at: datetime | None = None) -> Price | None:
        """The price of a call of this model at that time, now by default; None where nobody has named it."""
        day = (at or timezone.now()).astimezone(UTC).date()
        return self._named(model, day) or (_list()._named(model, day) if self is not _list() else None)

    def _named(self, model: str, day: date) -> Price | None:
        for name in (*names_of(model), *self._beginnings):
            if name.endswith("*") and not model.startswith(name[:-1]):
                continue
            valid = [row for row in self._rows.get(name, ()) if row[0] <= day]
            if valid:
                return max(valid, key=lambda row: row[0])[1]
        return None


@functools.cache
def _list() -> Table:
    """The newest price of each model, for whatever day: providers do not say when the former one ended."""
    rows = sorted(listed(), key=lambda row: row.as_of)
    newest = {row.model: Price(row.price_in, row.price_out, row.price_cached, row.origin) for row in rows}
    return Table((model, None, price) for model, price in newest.items())


def table_of(project_id: int) -> Table:
    """The prices of a project."""
    rows = planned(_READ, [project_id])
    return Table(
        (model, valid_from, Price(price_in, price_out, price_cached, f"table:{pk}"))
        for pk, model, valid_from, price_in, price_out, price_cached in rows
    )


_READ = """
SELECT id, model, valid_from, price_in, price_out, price_cached FROM accounts_modelprice
WHERE project_id = %s AND removed_at IS NULL
"""
"""With every batch of steps that came without their cost, so not by way of the ORM."""


def stated(endpoint: Mapping[str, Any], origin: str = "") -> Price | None:
    """The price that a version's endpoint names; None unless it names both."""
    price_in, price_out = endpoint.get("price_in"), endpoint.get("price_out")
    return None if price_in is None or price_out is None else Price(float(price_in), float(price_out), None, origin)


def price_of(project_id: int, model: str, endpoint: Mapping[str, Any] | None = None, origin: str = "") -> Price | None:
    """The price of a call of this model now; the endpoint's first, which `origin` names."""
    return (stated(endpoint, origin) if endpoint else None) or table_of(project_id).price_of(model)


def hour_of(project_id: int) -> float | None:
    """Dollars an hour of the project's own device; None where nobody has named them."""
    return DevicePrice.objects.filter(project=project_id).values_list("usd_per_hour", flat=True).first()


def words_of(project_id: int, origin: str) -> str:
    """Where a price comes from, in words for who looks at a cost; empty where nobody knows any more."""
    kind, _, name = origin.partition(":")
    if kind == "table":
        row = ModelPrice.objects.filter(project=project_id, pk=key(name) or 0).first()
        since = f" from {row.valid_from} on" if row and row.valid_from else ""
        return f"{row.model}{since}: {_dollars(row)} (Settings › Prices)" if row else ""
    if kind == "list":
        found = next((row for row in listed() if row.origin == origin), None)
        read = f"list price, read on {found.as_of} from {found.source}" if found else ""
        return f"{found.model}: {_dollars(found)}, {read}" if found else ""
    return "the prices of its version’s endpoint" if kind == "version" else ""


def _dollars(row: ModelPrice | Listed) -> str:
    cached = "" if row.price_cached is None else f", ${row.price_cached:g} cached"
    return f"${row.price_in:g} in{cached}, ${row.price_out:g} out for a million tokens"


# Setting


@transaction.atomic
def set_price(
    *,
    project: Project,
    actor: Actor,
    model: str,
    price_in: float,
    price_out: float,
    price_cached: float | None = None,
    valid_from: date | None = None,
    source: str = "",
) -> ModelPrice:
    """Name the price of a model from a day on, in place of the row of this name and day. Raises Refused."""
    name, source = model.strip(), source.strip()
    _check(name, source)
    prices = {"price_in": price_in, "price_out": price_out, "price_cached": price_cached}
    for field, price in prices.items():
        if price is not None and not (math.isfinite(price) and 0 <= price <= DEAREST):
            raise Refused(f"{price!r} is not from 0 to {DEAREST:.0f} dollars", field=field)
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    own = ModelPrice.objects.filter(project=project, removed_at=None)
    before = own.filter(model=name, valid_from=valid_from).first()
    if before is None and own.count() >= MOST:
        raise Refused(f"{MOST} prices are the maximum; remove some", field="model")
    if before is not None:
        if all(getattr(before, field) == value for field, value in {**prices, "source": source}.items()):
            return before
        before.removed_at = timezone.now()
        before.save(update_fields=["removed_at"])
    row = ModelPrice.objects.create(
        project=project, model=name, valid_from=valid_from, source=source, set_by=actor.user, **prices
    )
    former = None if before is None else {field: getattr(before, field) for field in prices}
    day = None if valid_from is None else valid_from.isoformat()
    after = {**prices, "valid_from": day, "source": source}
    actor.record(project=project, action="accounts.set_price", subject=name, before=former, after=after)
    return row


@transaction.atomic
def remove_price(*, row: ModelPrice, actor: Actor) -> None:
    """End a price. Costs that were derived from it stay until somebody derives them again, and still say so."""
    if ModelPrice.objects.filter(pk=row.pk, removed_at=None).update(removed_at=timezone.now()):
        prices = {"price_in": row.price_in, "price_out": row.price_out, "price_cached": row.price_cached}
        actor.record(project=row.project, action="accounts.remove_price", subject=row.model, before=prices)


@transaction.atomic
def set_hour(*, project: Project, actor: Actor, usd_per_hour: float | None, source: str = "") -> None:
    """Say what an hour of the project's own device costs from now on; None for unknown. Raises Refused."""
    source = source.strip()
    if usd_per_hour is not None and not (math.isfinite(usd_per_hour) and 0 < usd_per_hour <= DEAREST_HOUR):
        raise Refused(f"{usd_per_hour!r} is not above 0 and up to {DEAREST_HOUR:.0f} dollars", field="usd_per_hour")
    if len(source) > 500:
        raise Refused("is longer than 500 characters", field="source")
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    row = DevicePrice.objects.filter(project=project).first()
    before = None if row is None else row.usd_per_hour
    if before == usd_per_hour and (row is None or row.source == source):
        return
    if usd_per_hour is None:
        DevicePrice.objects.filter(project=project).delete()
    else:
        new = {"usd_per_hour": usd_per_hour, "source": source, "set_by": actor.user, "set_at": timezone.now()}
        DevicePrice.objects.update_or_create(project=project, defaults=new)
    actor.record(
        project=project, action="accounts.set_device_price", subject="own weights", before=before, after=usd_per_hour
    )


def _check(name: str, source: str) -> None:
    """Raises Refused."""
    if not name.removesuffix("*") or len(name) > 200 or "*" in name[:-1] or not name.isprintable():
        problem = (
            "is not a model name: use 1 to 200 characters, with a * only at the end, for example gpt-5-mini or llama-3*"
        )
        raise Refused(f"{name[:80]!r} {problem}", field="model")
    if len(source) > 500:
        raise Refused("is longer than 500 characters", field="source")
