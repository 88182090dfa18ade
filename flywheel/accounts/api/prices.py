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
    model: str = Field(description="its name, which also covers its dated snapshots, or the start of a name and a *")
    price_in: float = Field(description="dollars per million tokens")
    price_out: float
    price_cached: float | None = Field(None, description="of tokens from the provider's cache; as price_in when null")
    valid_from: date | None = Field(None, description="the first day (UTC) of calls it applies to; all when null")
    source: str = Field("", description="its source: a URL, or a note")


class ListedOut(Schema):
    model: str
    price_in: float
    price_out: float
    price_cached: float | None
    as_of: str
    source: str


class HourIn(Body):
    usd_per_hour: float | None = Field(description="dollars an hour of the device that runs own weights; null: unknown")
    source: str = ""


class HourOut(Schema):
    usd_per_hour: float | None


def _prices(request: HttpRequest) -> QuerySet[ModelPrice]:
    return ModelPrice.objects.filter(project=keyed(request).project, removed_at=None).select_related("set_by")


@router.get("/prices", auth=admin, response=page_of(PriceOut), summary="This project's model prices")
def list_prices(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    return paginate(_prices(request), query)


@router.get("/prices/listed", auth=admin, response=list[ListedOut], summary="List prices that ship, with their dates")
def listed_prices(request: HttpRequest) -> Any:
    """They hold where the project's own say nothing, and may be out of date."""
    return list(model_prices.listed())


@router.post("/prices", auth=admin, response=PriceOut, summary="Set a model's price")
def set_price(request: HttpRequest, body: PriceIn) -> ModelPrice:
    """In place of the one of this name and day, if there is one. It holds for what comes in from now on."""
    asked = keyed(request)
    return model_prices.set_price(project=asked.project, actor=asked.actor, **body.dict())


@router.delete("/prices/{int:price}", auth=admin, response={204: None}, summary="Remove a model's price")
def remove_price(request: HttpRequest, price: int) -> Status[None]:
    model_prices.remove_price(row=one(_prices(request), pk=price), actor=keyed(request).actor)
    return Status(204, None)


@router.get("/device-hour", auth=admin, response=HourOut, summary="The price of own weights")
def device_hour(request: HttpRequest) -> dict[str, Any]:
    return {"usd_per_hour": model_prices.hour_of(keyed(request).project.pk)}


@router.put("/device-hour", auth=admin, response=HourOut, summary="Set the price of a device-hour")
def set_device_hour(request: HttpRequest, body: HourIn) -> dict[str, Any]:
    asked = keyed(request)
    model_prices.set_hour(project=asked.project, actor=asked.actor, **body.dict())
    return {"usd_per_hour": body.usd_per_hour}
