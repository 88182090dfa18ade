"""Prices: whose holds, from when on, who set it, and what is refused."""

import html
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, DevicePrice, ModelPrice, User
from flywheel.accounts.project_settings import model_prices
from flywheel.core.traces.call_prices import Price
from flywheel.edge.refusals import Refused
from tests.conftest import Cast

pytestmark = pytest.mark.django_db
PAGE = "/p/acme/settings/prices/"
PROVIDERS = {"developers.openai.com", "docs.anthropic.com", "platform.claude.com"}


def named(cast: Cast, model: str, price: float = 1.0, **more: Any) -> ModelPrice:
    fields = {"price_in": price, "price_out": price, **more}
    return model_prices.set_price(project=cast.project, actor=Actor(cast.admin), model=model, **fields)


def found(cast: Cast, model: str, at: str = "2026-11-01") -> float | None:
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    price = model_prices.table_of(cast.project.pk).price_of(model, moment)
    return None if price is None else price.price_in


def test_the_closest_name_holds(cast: Cast) -> None:
    for model, price in (("llama*", 1), ("llama-3*", 2), ("llama-3-70b", 3)):
        named(cast, model, price)
    names = ["llama-2", "llama-3-8b", "llama-3-70b", "llama-3-70b-2026-01-31", "llama-3-70b-20260131", "lama"]
    assert [found(cast, name) for name in names] == [1, 2, 3, 3, 3, None]


def test_of_a_name_the_row_of_the_day_holds(cast: Cast) -> None:
    named(cast, "m", 3, valid_from=date(2026, 3, 1))
    named(cast, "m", 2, valid_from=date(2026, 2, 1))
    days = ["2026-01-31", "2026-02-01", "2026-02-28T23:59:59", "2026-03-01"]
    assert [found(cast, "m", day) for day in days] == [None, 2, 2, 3]
    named(cast, "m", 1)
    assert found(cast, "m", "2026-01-31") == 1


def test_the_projects_own_price_holds_over_the_list_and_the_endpoints_over_both(cast: Cast) -> None:
    assert found(cast, "gpt-5-mini-2025-08-07") == 0.25
    named(cast, "gpt-5-mini", 9)
    assert found(cast, "gpt-5-mini") == 9
    both = {"price_in": 1, "price_out": 2}
    assert model_prices.price_of(cast.project.pk, "gpt-5-mini", both, "version:1") == Price(1.0, 2.0, None, "version:1")
    half = model_prices.price_of(cast.project.pk, "gpt-5-mini", {"price_in": 1})
    assert half is not None
    assert half.price_in == 9
    assert model_prices.price_of(cast.elsewhere.pk, "gpt-5-mini") != half, "another project's is another's"


def test_every_listed_price_says_when_and_where() -> None:
    rows = model_prices.listed()
    assert len({row.origin for row in rows}) == len(rows)
    for row in rows:
        assert date.fromisoformat(row.as_of) <= date(2026, 12, 31)
        assert urlsplit(row.source).hostname in PROVIDERS, "a page of the provider's own that was read"
        assert row.price_cached is not None
        assert 0 < row.price_cached < row.price_in < row.price_out
        assert f"list price, read on {row.as_of} from {row.source}" in model_prices.words_of(0, row.origin)


def test_setting_a_price_does_not_wait_for_spans_that_arrive(cast: Cast) -> None:
    """A new row locks the key of its project, which only a change of that key may wait for."""
    with CaptureQueriesContext(connection) as asked:
        named(cast, "m")
        model_prices.set_hour(project=cast.project, actor=Actor(cast.admin), usd_per_hour=2.0)
    locks = [row["sql"] for row in asked if "FOR " in row["sql"] and "accounts_project" in row["sql"]]
    assert len(locks) == 2
    assert all("FOR NO KEY UPDATE" in lock for lock in locks)


def test_a_price_is_replaced_and_never_changed(cast: Cast) -> None:
    first = named(cast, "m", 1, source="the contract")
    assert named(cast, "m", 1, source="the contract").pk == first.pk
    second = named(cast, "m", 2)
    assert list(ModelPrice.objects.filter(removed_at=None)) == [second]
    assert model_prices.words_of(cast.project.pk, f"table:{first.pk}").startswith("m: $1 in, $1 out")
    assert model_prices.words_of(cast.elsewhere.pk, f"table:{first.pk}") == ""
    model_prices.remove_price(row=second, actor=Actor(cast.admin))
    model_prices.remove_price(row=second, actor=Actor(cast.admin))
    assert found(cast, "m") is None
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions == ["accounts.set_price", "accounts.set_price", "accounts.remove_price"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": " "}, "model: '' is not a model name"),
        ({"model": "*"}, "is not a model name"),
        ({"model": "a*b"}, "is not a model name"),
        ({"model": "m" * 201}, "is not a model name"),
        ({"price_in": -1.0}, "price_in: -1.0 is not from 0 to 10000"),
        ({"price_out": float("nan")}, "price_out: nan is not"),
        ({"price_cached": 10_001.0}, "price_cached: 10001.0 is not"),
        ({"source": "x" * 501}, "source: is longer"),
    ],
)
def test_what_is_no_price_is_refused_by_its_field(cast: Cast, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused) as refused:
        named(cast, **{"model": "m", **fields})
    assert told in str(refused.value)
    assert not ModelPrice.objects.exists()


def test_a_table_has_an_end(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_prices, "MOST", 1)
    named(cast, "m")
    with pytest.raises(Refused, match="1 prices are the maximum"):
        named(cast, "n")
    named(cast, "m", 2)


def test_an_admin_names_prices_on_the_page(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    admin = sign_in(cast.admin)
    sent = {"model": "m", "price_in": "0.25", "price_out": "2", "valid_from": "2026-01-31", "source": "<b>contract"}
    assert admin.post(PAGE, sent).status_code == 302
    page = admin.get(PAGE).content.decode()
    assert "2026-01-31" in page
    assert "&lt;b&gt;contract" in page
    assert "gpt-5-mini" in page, "the list that ships"
    wrong = admin.post(PAGE, {**sent, "model": "a*b"})
    assert wrong.status_code == 422
    assert "is not a model name" in html.unescape(wrong.content.decode())
    assert admin.post(f"{PAGE}{ModelPrice.objects.get().pk}/remove/").status_code == 302
    assert not ModelPrice.objects.filter(removed_at=None).exists()


def test_a_device_hour_is_set_and_taken_back(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    admin = sign_in(cast.admin)
    assert model_prices.hour_of(cast.project.pk) is None
    admin.post(f"{PAGE}hour/", {"usd_per_hour": "2.5", "source": "the invoice"})
    admin.post(f"{PAGE}hour/", {"usd_per_hour": "2.5", "source": "the invoice"})
    assert model_prices.hour_of(cast.project.pk) == 2.5
    assert 'value="2.5"' in admin.get(PAGE).content.decode()
    assert AuditEntry.objects.filter(action="accounts.set_device_price").count() == 1
    assert admin.post(f"{PAGE}hour/", {"usd_per_hour": "-1"}).status_code == 422
    admin.post(f"{PAGE}hour/", {"usd_per_hour": ""})
    assert not DevicePrice.objects.exists()


def test_a_program_does_the_same(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key("admin")

    def ask(method: str, path: str, body: Any = None) -> Any:
        answer = client.generic(
            method,
            f"/api/v1/{path}",
            "" if body is None else json.dumps(body),
            content_type="application/json",
            headers=headers,
        )
        assert answer.status_code < 300, answer.content
        return answer.json() if answer.content else None

    row = ask("POST", "prices", {"model": "m", "price_in": 1, "price_out": 2, "valid_from": "2026-01-31"})
    assert (row["set_by"]["username"] if isinstance(row["set_by"], dict) else row["set_by"]) is not None
    assert [each["id"] for each in ask("GET", "prices")["items"]] == [row["id"]]
    ask("DELETE", f"prices/{row['id']}")
    assert ask("GET", "prices")["items"] == []
    assert len(ask("GET", "prices/listed")) == len(model_prices.listed())
    assert ask("PUT", "device-hour", {"usd_per_hour": 3}) == ask("GET", "device-hour") == {"usd_per_hour": 3}
