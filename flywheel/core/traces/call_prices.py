"""Prices of model calls: dollars for a million tokens in, out, and read from the provider's cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEAREST = 10_000.0
"""Dollars for a million tokens, at most."""


@dataclass(frozen=True, slots=True)
class Price:
    price_in: float
    price_out: float
    price_cached: float | None = None
    """Of prompt tokens that were read from a cache; None where they cost what the others do."""
    origin: str = ""
    """Who named it: `version:KEY`, `table:KEY`, `list:MODEL@DATE`."""

    def cost(self, tokens_in: int | None, tokens_out: int | None, tokens_cached: int | None = None) -> float | None:
        """Dollars for one call; None when a count is unknown, which is not free.

        Cached tokens are among those that came in: readers of formats that count them apart (Langfuse, Inspect) add
        them. Where they are more than those nonetheless, the sender counts them apart.
        """
        if tokens_in is None or tokens_out is None:
            return None
        cached = tokens_cached or 0
        anew = tokens_in - cached if cached <= tokens_in else tokens_in
        cached_price = self.price_in if self.price_cached is None else self.price_cached
        return (anew * self.price_in + cached * cached_price + tokens_out * self.price_out) / 1e6

    def options(self) -> dict[str, float]:
        """As an engine is given it."""
        named = {"price_in": self.price_in, "price_out": self.price_out, "price_cached": self.price_cached}
        return {name: price for name, price in named.items() if price is not None}

    def to_json(self) -> dict[str, Any]:
        return {"in": self.price_in, "out": self.price_out, "cached": self.price_cached, "origin": self.origin}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Price":
        return cls(row["in"], row["out"], row["cached"], row["origin"])
