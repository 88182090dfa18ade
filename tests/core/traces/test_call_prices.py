"""What one call costs by the token."""

import pytest

from flywheel.core.traces.call_prices import Price


def test_cached_tokens_are_among_those_that_came_in_unless_they_are_more() -> None:
    price = Price(1.0, 10.0, 0.1)
    assert price.cost(1000, 100) == pytest.approx(0.002)
    assert price.cost(1000, 100, 800) == pytest.approx((200 + 80 + 1000) / 1e6)
    assert price.cost(1000, 100, 4000) == pytest.approx((1000 + 400 + 1000) / 1e6), "counted apart"
    assert Price(1.0, 10.0).cost(1000, 100, 800) == pytest.approx(0.002)


def test_an_unknown_count_is_not_free() -> None:
    assert Price(1.0, 1.0).cost(None, 1) is None
    assert Price(1.0, 1.0).cost(1, None) is None
    assert Price(1.0, 1.0).cost(0, 0) == 0


def test_a_price_survives_a_journal() -> None:
    price = Price(1.0, 2.0, None, "table:7")
    assert Price.from_json(price.to_json()) == price
    assert price.options() == {"price_in": 1.0, "price_out": 2.0}
