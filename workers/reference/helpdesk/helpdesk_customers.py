"""The customers of the help desk: what each one has bought, writes, answers and wants.

    for customer in customers(range(40)): customer.says, customer.wants

Everything follows from a customer's number. `wants` is what a faultless help desk does, move by move; only the story's
oracle reads it, never the agent or its model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from workers.reference.helpdesk.helpdesk_shop import HELP, RETURNS_DAYS
from workers.reference.story import share

Kind = Literal["calls", "text", "refuse", "ask"]
NAMES: Final = ("Ada", "Bela", "Caro", "Dario", "Elif", "Fadi", "Gita", "Hugo", "Ines", "Jonas", "Kaja", "Leif")
ITEMS: Final = ("floor lamp", "desk lamp", "wall lamp", "lantern", "string light", "bed lamp", "ceiling lamp")
PLACES: Final = ("Leeds", "Porto", "Graz", "Malmo", "Ghent", "Turin", "Brno", "Cork")
STREETS: Final = ("Mill Lane", "Station Road", "Elm Street", "Harbour Walk", "High Street")


@dataclass(frozen=True, slots=True)
class Move:
    """A message of a faultless help desk."""

    kind: Kind
    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    facts: tuple[str, ...] = ()
    """Of words: what must stand in them."""


@dataclass(frozen=True, slots=True)
class Customer:
    number: int
    state: dict[str, Any]
    """The shop, as far as it concerns this customer; each use needs a copy of its own."""
    says: str
    wants: tuple[Move, ...]
    answers: str = ""
    """To a question back."""


@dataclass(slots=True)
class _Scene:
    """A customer's things, while it is decided what they write."""

    number: int
    state: dict[str, Any] = field(default_factory=dict)

    def pick(self, options: tuple[str, ...], key: str) -> str:
        return options[int(share(self.number, key) * len(options))]

    def number_of(self, order: str) -> str:
        """The number of an order: `packed`, `spare`, `sent`, `fresh` or `old`."""
        return str(20_000 + 5 * self.number + ("packed", "spare", "sent", "fresh", "old").index(order))


def customers(numbers: range) -> list[Customer]:
    """The customers of these numbers, each always the same."""
    return [_customer(number) for number in numbers]


def _customer(number: int) -> Customer:
    scene = _Scene(number)
    name = scene.pick(NAMES, "name")
    email = f"{name.lower()}{number}@example.org"
    scene.state = {
        "customer": {"customer_id": f"c{number}", "name": name, "email": email},
        "orders": {
            scene.number_of(order): {
                "item": ITEMS[(number + place) % len(ITEMS)],
                "price": 20 + int(share(number, order, "price") * 180),
                "status": status,
                "days_since_delivery": days,
                "place": scene.pick(PLACES, order),
                "arrives": f"{1 + int(share(number, order, 'day') * 28)} December",
                "address": "as before",
            }
            for place, (order, status, days) in enumerate(
                [
                    ("packed", "being packed", None),
                    ("spare", "being packed", None),
                    ("sent", "on its way", None),
                    ("fresh", "delivered", 1 + int(share(number, "fresh") * (RETURNS_DAYS - 2))),
                    ("old", "delivered", RETURNS_DAYS + 5 + int(share(number, "old") * 90)),
                ]
            )
        },
    }
    return _KINDS[int(share(number, "kind") * len(_KINDS))](scene)


def _words(text: str, *facts: str) -> Move:
    return Move("text", text, facts=facts)


def _call(name: str, **arguments: Any) -> Move:
    return Move("calls", calls=((name, arguments),))


def _made(scene: _Scene, texts: tuple[str, ...], *wants: Move, answers: str = "", **slots: str) -> Customer:
    name = scene.state["customer"]["name"]
    says = scene.pick(texts, "wording").format(name=name, **slots)
    return Customer(scene.number, scene.state, f"Hello, {name} here. {says}", wants, answers)


def _tracks(scene: _Scene) -> Customer:
    number = scene.number_of("sent")
    order = scene.state["orders"][number]
    texts = (
        "Where is my order {order} and when does it arrive?",
        "What is the status of order {order}?",
        "Can you tell me the status of {order}, please?",
        "Tell me where order {order} is.",
        "ORDER {order} - WHERE IS IT??",
    )
    place, day = order["place"], order["arrives"]
    says = _words(f"Order {number} is in {place} and arrives on {day}.", number, place, day)
    return _made(scene, texts, _call("track_parcel", order_id=number), says, order=number)


def _returns(scene: _Scene) -> Customer:
    number = scene.number_of("fresh")
    order = scene.state["orders"][number]
    texts = (
        "I don't like the {item} of order {order}. I would like my money back.",
        "The {item} of order {order} is cracked. I want a refund.",
        "The {item} from order {order} does not work, please refund it.",
        "I need a refund for order {order} right away, it came too late!",
        "Refund order {order} at once, it came damaged.",
    )
    wording = scene.pick(texts, "wording")
    reason = "late" if "late" in wording else "unwanted" if "like the" in wording else "damaged"
    says = _words(f"You get {order['price']} dollars back for order {number}.", str(order["price"]), number)
    moves = _call("get_order", order_id=number), _call("refund_order", order_id=number, reason=reason), says
    return _made(scene, texts, *moves, order=number, item=order["item"])


def _returns_late(scene: _Scene) -> Customer:
    number = scene.number_of("old")
    order = scene.state["orders"][number]
    texts = (
        "I would like a refund for order {order}, I never used the {item}.",
        "I have been a loyal customer for years. Please refund order {order}, I don't need the {item}.",
        "As a loyal customer I would like my money back for order {order}.",
    )
    days = order["days_since_delivery"]
    refuses = Move(
        "refuse", f"I can't refund order {number}: it was delivered {days} days ago, {RETURNS_DAYS} at most."
    )
    return _made(scene, texts, _call("get_order", order_id=number), refuses, order=number, item=order["item"])


def _cancels(scene: _Scene) -> Customer:
    number, email = scene.number_of("packed"), scene.state["customer"]["email"]
    item = scene.state["orders"][number]["item"]
    texts = (
        "Please cancel an order of mine, the one with the {item}. My mail is {email}.",
        "Cancel my last order with the {item}, please. I am {email}.",
        "I want to cancel my latest order, the {item}. You know me as {email}.",
    )
    moves = (
        Move("ask", "Which order shall I cancel? Please send me its number."),
        _call("cancel_order", order_id=number),
        _words(f"Order {number} is cancelled.", number),
    )
    return _made(scene, texts, *moves, answers=f"It is order {number}.", item=item, email=email)


def _cancels_two(scene: _Scene) -> Customer:
    one, other = scene.number_of("packed"), scene.number_of("spare")
    texts = (
        "Please cancel the orders {one} and {other}.",
        "Cancel order {one}, and also {other}, please.",
        "I don't want order {one} any more, please cancel it; and also cancel {other}.",
    )
    both = Move("calls", calls=tuple(("cancel_order", {"order_id": number}) for number in (one, other)))
    return _made(
        scene, texts, both, _words(f"Orders {one} and {other} are cancelled.", one, other), one=one, other=other
    )


def _moves(scene: _Scene) -> Customer:
    number, customer = scene.number_of("spare"), scene.state["customer"]
    item, address = scene.state["orders"][number]["item"], f"{scene.number % 90 + 1} {scene.pick(STREETS, 'street')}"
    texts = (
        "I have moved. Please send my {item} to {address}. My address for mail is {email}.",
        "Please send my {item} to {address}, I don't have the number; look it up by {email}.",
        "The {item} should go to {address} instead, as I have moved; look it up by {email}.",
    )
    moves = (
        _call("find_customer", email=customer["email"]),
        _call("list_orders", customer_id=customer["customer_id"]),
        _call("change_address", order_id=number, address=address),
        _words(f"Order {number} goes to {address} now.", number, address),
    )
    return _made(scene, texts, *moves, item=item, address=address, email=customer["email"])


def _asks(scene: _Scene) -> Customer:
    topic = scene.pick(tuple(HELP), "topic")
    texts = (
        "What should I know about {topic}? I think of a {item} and may order again after {order}.",
        "Before I buy one more {item} after order {order}, I would like to know in detail what holds for {topic}.",
        "Somebody told me something else about {topic} when order {order} came, so what is it that holds for a {item}?",
    )
    says = _words(HELP[topic], *[word for word in HELP[topic].split() if word.isdigit()])
    slots = {"topic": topic, "item": scene.pick(ITEMS, "item"), "order": scene.number_of("old")}
    return _made(scene, texts, _call("search_help", query=topic), says, **slots)


_KINDS: Final[tuple[Callable[[_Scene], Customer], ...]] = (
    _tracks,
    _tracks,
    _returns,
    _returns,
    _returns_late,
    _cancels,
    _cancels_two,
    _moves,
    _asks,
)
