"""Prices of models and of devices, for programs."""

from datetime import date, datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import ModelPrice, Scope
from flywheel.accounts.project_settings import model_prices
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class PriceOut(Schema):
    id: int
    model: str
    price_in: float
    price_out: float
    price_cached: float | None
    valid_from: date | None
    source: str
    set_by: Ref | None
    set_at: datetime


class PriceIn(Body):
    model: str = Field(
        description="model name, which also covers its dated snapshots, or the start of a name followed by *"
    )
    price_in: float = Field(description="dollars per million tokens")
    price_out: float
    price_cached: float | None = Field(None, description="for tokens from the provider's cache; `price_in` if null")
    valid_from: date | None = Field(None, description="first day (UTC) of the calls it applies to; all calls if null")
    source: str = Field("", description="where the price comes from: a URL or a note")


class ListedOut(Schema):
    model: str
    price_in: float
    price_out: float
    price_cached: float | None
    as_of: str
    source: str


class HourIn(Body):
    usd_per_hour: float | None = Field(
        description="dollars per hour for the device that runs your own weights; null if unknown"
    )
    source: str = ""


class HourOut(Schema):
    usd_per_hour: float | None


def _prices(request: HttpRequest) -> QuerySet[ModelPrice]:
    return ModelPrice.objects.filter(project=keyed(request).project, removed_at=None).select_related("set_by")


@router.get("/prices", auth=admin, response=page_of(PriceOut), summary="List this project's model prices")
def list_prices(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
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
    model_prices.remove_price(row=one(_prices(request), pk=price), actor=keyed(request).actor)
    return Status(204, None)


@router.get("/device-hour", auth=admin, response=HourOut, summary="Get the price of a device-hour")
def device_hour(request: HttpRequest) -> dict[str, Any]:
    return {"usd_per_hour": model_prices.hour_of(keyed(request).project.pk)}


@router.put("/device-hour", auth=admin, response=HourOut, summary="Set the price of a device-hour")
def set_device_hour(request: HttpRequest, body: HourIn) -> dict[str, Any]:
    asked = keyed(request)
    model_prices.set_hour(project=asked.project, actor=asked.actor, **body.dict())
    return {"usd_per_hour": body.usd_per_hour}
