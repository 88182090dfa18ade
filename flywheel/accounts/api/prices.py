"""Prices of models and of devices, for programs."""

from datetime import date, datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import ModelPrice, Scope
from flywheel.accounts.project_settings import model_prices
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class PriceOut(Schema):
    id: int
    model: str
    price_in: float
    """Dollars per million input tokens."""
    price_out: float
    """Dollars per million output tokens."""
    price_cached: float | None
    """Dollars per million tokens from the provider's cache; null if the same as `price_in`."""
    valid_from: date | None
    """First day (UTC) of the calls it applies to; null for all calls."""
    source: str
    set_by: Ref | None
    set_at: datetime


class PriceIn(Body):
    model: str = Field(
        description="Model name, which also covers its dated snapshots, or the start of a name followed by *."
    )
    price_in: float = Field(description="Dollars per million input tokens.")
    price_out: float = Field(description="Dollars per million output tokens.")
    price_cached: float | None = Field(None, description="For tokens from the provider's cache; `price_in` if null.")
    valid_from: date | None = Field(None, description="First day (UTC) of the calls it applies to; all calls if null.")
    source: str = Field("", description="Where the price comes from: a URL or a note.")


class ListedOut(Schema):
    model: str
    price_in: float
    """Dollars per million input tokens."""
    price_out: float
    """Dollars per million output tokens."""
    price_cached: float | None
    """Dollars per million tokens from the provider's cache; null if the same as `price_in`."""
    as_of: str
    """When the price was looked up."""
    source: str


class HourIn(Body):
    usd_per_hour: float | None = Field(
        description="Dollars per hour for the device that runs your own weights; null if unknown."
    )
    source: str = ""
    """Where the price comes from: a URL or a note."""


class HourOut(Schema):
    usd_per_hour: float | None
    """Null if unknown."""


def _prices(request: HttpRequest) -> QuerySet[ModelPrice]:
    return ModelPrice.objects.filter(project=keyed(request).project, removed_at=None).select_related("set_by")


@router.get("/prices", auth=admin, response=page_of(PriceOut), summary="List this project's model prices")
def list_prices(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List the prices that the project has set itself, newest first. They take precedence over built-in prices."""
    return paginate(_prices(request), query)


@router.get("/prices/listed", auth=admin, response=list[ListedOut], summary="List built-in prices with their dates")
def listed_prices(request: HttpRequest) -> Any:
    """They apply where the project has no price of its own, and may be out of date."""
    return list(model_prices.listed())


@router.post("/prices", auth=admin, response=PriceOut, summary="Set a model's price")
def set_price(request: HttpRequest, body: PriceIn) -> ModelPrice:
    """Store the price, replacing the one for the same model and day if there is one. It applies to data received
    from now on."""
    asked = keyed(request)
    return model_prices.set_price(project=asked.project, actor=asked.actor, **body.dict())


@router.delete("/prices/{int:price}", auth=admin, response={204: None}, summary="Remove a model's price")
def remove_price(request: HttpRequest, price: int) -> Status[None]:
    """Remove the price. Data received from now on uses the built-in price, if there is one. Stored costs stay."""
    model_prices.remove_price(row=one(_prices(request), pk=price), actor=keyed(request).actor)
    return Status(204, None)


@router.get("/device-hour", auth=admin, response=HourOut, summary="Get the price of a device-hour")
def device_hour(request: HttpRequest) -> dict[str, Any]:
    """Return the price that the project has set, in dollars per hour, or null if it has set none."""
    return {"usd_per_hour": model_prices.hour_of(keyed(request).project.pk)}


@router.put("/device-hour", auth=admin, response=HourOut, summary="Set the price of a device-hour")
def set_device_hour(request: HttpRequest, body: HourIn) -> dict[str, Any]:
    """Set the price per hour of the device that runs your own weights, or remove it with null."""
    asked = keyed(request)
    model_prices.set_hour(project=asked.project, actor=asked.actor, **body.dict())
    return {"usd_per_hour": body.usd_per_hour}
