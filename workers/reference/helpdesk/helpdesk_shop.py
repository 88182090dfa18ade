"""The shop of the second story: what it knows of one customer, and the tools that its help desk has.

    shop = Shop(state)
    shop.call("get_order", {"order_id": "20410"})    a result as text; "Error: …" where it could not be done

The state is plain JSON and is changed in place. `TOOLS` are the definitions, as a version keeps them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

RETURNS_DAYS: Final = 30
"""After delivery, in which money is given back."""
HELP: Final[Mapping[str, str]] = {
    "warranty": "Every lamp has a warranty of 24 months. Bulbs have 6 months.",
    "shipping": "Shipping abroad costs 14 dollars and takes 9 days.",
    "gift cards": "Gift cards are valid for 36 months and cannot be paid out.",
    "repairs": "Repairs take 12 days and cost 20 dollars after the warranty.",
}
"""The help pages, by their one keyword."""
REASONS: Final = ("damaged", "late", "unwanted")


def _tool(name: str, about: str, arguments: Mapping[str, Any], *, is_unsafe: bool = False) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": dict(arguments),
        "required": list(arguments),
        "additionalProperties": False,
    }
    definition = {"name": name, "description": about, "parameters": schema}
    return definition | ({"x-unsafe": True} if is_unsafe else {})


_ORDER = {"order_id": {"type": "string", "description": "The order's number, five digits."}}
TOOLS: Final[list[dict[str, Any]]] = [
    _tool("find_customer", "Find a customer.", {"email": {"type": "string"}}),
    _tool("list_orders", "List the orders of a customer.", {"customer_id": {"type": "string"}}),
    _tool("get_order", "Read an order: its item, price and delivery.", _ORDER),
    _tool("track_parcel", "Find out where a parcel is.", _ORDER),
    _tool("refund_order", "Give the money back.", _ORDER | {"reason": {"enum": list(REASONS)}}, is_unsafe=True),
    _tool("cancel_order", "Cancel an order that has not left yet.", _ORDER, is_unsafe=True),
    _tool("change_address", "Send an order elsewhere.", _ORDER | {"address": {"type": "string"}}),
    _tool("search_help", "Search the help pages.", {"query": {"type": "string"}}),
]


class Shop:
    """The tools, carried out over a state `{"customer": {…}, "orders": {number: {…}}}`."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry a call out and return its result as text."""
        does: dict[str, Callable[..., Any]] = {
            "find_customer": self._find_customer,
            "list_orders": self._list_orders,
            "get_order": self._get_order,
            "track_parcel": self._track_parcel,
            "refund_order": self._refund_order,
            "cancel_order": self._cancel_order,
            "change_address": self._change_address,
            "search_help": self._search_help,
        }
        if name not in does:
            return f"Error: there is no tool {name}"
        try:
            return json.dumps(does[name](**arguments))
        except (TypeError, ValueError) as error:
            return f"Error: {error}"

    def _find_customer(self, email: str) -> dict[str, str]:
        customer: dict[str, str] = self.state["customer"]
        if customer["email"] != email:
            raise ValueError(f"nobody has the address {email}")
        return {"customer_id": customer["customer_id"], "name": customer["name"]}

    def _list_orders(self, customer_id: str) -> list[dict[str, str]]:
        if customer_id != self.state["customer"]["customer_id"]:
            raise ValueError(f"there is no customer {customer_id}")
        return [{"order_id": number, "item": order["item"]} for number, order in self.state["orders"].items()]

    def _get_order(self, order_id: str) -> dict[str, Any]:
        order = self._order(order_id)
        return {name: order[name] for name in ("item", "price", "status", "days_since_delivery")}

    def _track_parcel(self, order_id: str) -> dict[str, str]:
        order = self._order(order_id)
        return {"place": order["place"], "arrives": order["arrives"]}

    def _refund_order(self, order_id: str, reason: str) -> dict[str, Any]:
        order = self._order(order_id)
        if reason not in REASONS:
            raise ValueError(f"reason: one of {', '.join(REASONS)} is wanted")
        order["status"] = "refunded"
        return {"refunded": order["price"]}

    def _cancel_order(self, order_id: str) -> dict[str, str]:
        order = self._order(order_id)
        order["status"] = "cancelled"
        return {"status": "cancelled"}

    def _change_address(self, order_id: str, address: str) -> dict[str, str]:
        self._order(order_id)["address"] = address
        return {"address": address}

    def _search_help(self, query: str) -> str:
        return HELP.get(query, "Nothing was found.")

    def _order(self, order_id: str) -> dict[str, Any]:
        order: dict[str, Any] | None = self.state["orders"].get(order_id)
        if order is None:
            raise ValueError(f"there is no order {order_id}")
        return order
