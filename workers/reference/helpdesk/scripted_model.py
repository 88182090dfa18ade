"""`scripted-helpdesk`: no language model but rules, in the shape of one, for the second story.

    python -m workers.reference.helpdesk.scripted_model 9100        POST /v1/chat/completions

It works out from the messages what a help desk would do next, and has bad habits: each has a cause in what the customer
writes, and is dropped, mostly, where the prompt or a tool's description says the rule, or an example shows the case.
Whether a habit breaks through is a hash of the customer's words: the same request gets the same answer. It has never
seen what the story's oracle knows.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from workers.reference.helpdesk.helpdesk_shop import HELP, REASONS, RETURNS_DAYS
from workers.reference.story import share

NAME: Final = "scripted-helpdesk"
USUAL: Final = 0.8
"""How often a habit breaks through where its cause is there."""
BY_RULE, BY_EXAMPLE = 0.7, 0.6
"""How often a rule in the prompt, or an example of the case, keeps it from that."""
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Habit:
    cause: str
    """A pattern of what the customer writes."""
    rule: tuple[str, ...]
    """Words of which all stand in a line that forbids it."""


HABITS: Final[Mapping[str, Habit]] = {
    "reads the order for its status": Habit(r"status", ("status", "track_parcel")),
    "leaves out the day": Habit(r"and when", ("arrive", "day")),
    "writes the call down": Habit(r"\?\?", ("never write", "call")),
    "refunds without looking": Habit(r"right away|at once", ("get_order", "before", "refund")),
    "takes what is broken for unwanted": Habit(r"cracked|does not work", ("cracked", "damaged")),
    "refunds the loyal": Habit(r"loyal", ("refund", str(RETURNS_DAYS), "loyal")),
    "guesses the number": Habit(r"last order|latest order", ("number", "ask", "guess")),
    "forgets the second": Habit(r"and also", ("every order", "cancel")),
    "invents a tool": Habit(r"look it up", ("find_customer", "list_orders")),
    "searches by the sentence": Habit(r".{110}", ("search_help", "keyword")),
}


def call(name: str, **arguments: Any) -> Message:
    return {"calls": [(name, arguments)]}


def say(text: str) -> Message:
    return {"text": text}


@dataclass(slots=True)
class Reader:
    """A conversation as the model reads it, and what it does next."""

    messages: Sequence[Message]
    ruled_out: frozenset[str] = frozenset()
    """Habits against which the prompt has a rule."""
    shown: frozenset[str] = frozenset()
    """Habits against which it has an example."""
    is_faultless: bool = False
    """To read an example."""
    tempted: list[str] = field(default_factory=list)
    """The habits that could have broken through."""

    def slips(self, habit: str) -> bool:
        """Whether the habit breaks through here."""
        said = str(self.heard[0])
        if not re.search(HABITS[habit].cause, said):
            return False
        self.tempted.append(habit)
        kept = (
            self.is_faultless
            or share(said, habit, "usual") >= USUAL
            or (habit in self.ruled_out and share(said, habit, "rule") < BY_RULE)
            or (habit in self.shown and share(said, habit, "example") < BY_EXAMPLE)
        )
        return not kept

    @property
    def heard(self) -> list[str]:
        return [message["content"] or "" for message in self.messages if message["role"] == "user"]

    @property
    def numbers(self) -> list[str]:
        """The order numbers that the customer named."""
        return list(dict.fromkeys(re.findall(r"\b\d{5}\b", "\n".join(self.heard))))

    def result(self, name: str, **arguments: Any) -> Any:
        """Return what this call gave; None where it was not made. A failed one gives a text."""
        answers = {row["tool_call_id"]: row["content"] for row in self.messages if row["role"] == "tool"}
        for message in self.messages:
            for made in message.get("tool_calls") or ():
                given = json.loads(made["function"]["arguments"])
                fits = all(given.get(key) == value for key, value in arguments.items())
                if made["function"]["name"] == name and fits and made["id"] in answers:
                    return _read(answers[made["id"]])
        return None

    def next(self) -> Message:
        """Decide what it says or calls."""
        failed = [row["content"] for row in self.messages if row["role"] == "tool"][-1:]
        if failed and failed[0].startswith(("Error", "[not recorded]")):
            return say("I am sorry, that did not work. A colleague will look at it.")
        asked = self.heard[0].lower()
        if "refund" in asked or "money back" in asked:
            return self._refund()
        if "cancel" in asked:
            return self._cancel()
        if "moved" in asked or "send my" in asked:
            return self._readdress()
        if "where" in asked or "status" in asked:
            return self._track()
        return self._explain()

    def _track(self) -> Message:
        number = self.numbers[0]
        found = self.result("track_parcel", order_id=number)
        if found is not None:
            day = "" if self.slips("leaves out the day") else f" and arrives on {found['arrives']}"
            return say(f"Order {number} is in {found['place']}{day}.")
        if (read := self.result("get_order", order_id=number)) is not None:
            return say(f"Order {number} is {read['status']}.")
        if self.slips("reads the order for its status"):
            return call("get_order", order_id=number)
        if self.slips("writes the call down"):
            return say(f"track_parcel(order_id={number!r})")
        return call("track_parcel", order_id=number)

    def _refund(self) -> Message:
        number, asked = self.numbers[0], self.heard[0].lower()
        if (done := self.result("refund_order", order_id=number)) is not None:
            return say(f"You get {done['refunded']} dollars back for order {number}.")
        order = self.result("get_order", order_id=number)
        if order is None and not self.slips("refunds without looking"):
            return call("get_order", order_id=number)
        days = order["days_since_delivery"] if order else 0
        if days is not None and days > RETURNS_DAYS and not self.slips("refunds the loyal"):
            return say(f"I can't refund order {number}: it was delivered {days} days ago, {RETURNS_DAYS} at most.")
        reason = "late" if "late" in asked else "unwanted"
        broken = re.search(r"cracked|does not work|damaged", asked)
        if broken and not self.slips("takes what is broken for unwanted"):
            reason = "damaged"
        assert reason in REASONS
        return call("refund_order", order_id=number, reason=reason)

    def _cancel(self) -> Message:
        numbers = self.numbers
        if not numbers and self.slips("guesses the number"):
            return call("cancel_order", order_id="10000")
        if not numbers:
            return say("Which order shall I cancel? Please send me its number.")
        done = [number for number in numbers if self.result("cancel_order", order_id=number) is not None]
        if not done:
            wanted = numbers[:1] if len(numbers) > 1 and self.slips("forgets the second") else numbers
            return {"calls": [("cancel_order", {"order_id": number}) for number in wanted]}
        which = f"Orders {' and '.join(done)} are" if len(done) > 1 else f"Order {done[0]} is"
        return say(f"{which} cancelled.")

    def _readdress(self) -> Message:
        asked = self.heard[0]
        email = re.search(r"[\w.]+@[\w.]+\w", asked)
        address = re.search(r" to (\d+ [A-Z]\w+ [A-Z]\w+)", asked)
        if not email or not address:
            return say("Where shall it go, and what is your address for mail?")
        customer = self.result("find_customer", email=email[0])
        if customer is None:
            if self.slips("invents a tool"):
                return call("orders_by_email", email=email[0])
            return call("find_customer", email=email[0])
        orders = self.result("list_orders", customer_id=customer["customer_id"])
        if orders is None:
            return call("list_orders", customer_id=customer["customer_id"])
        number = next((order["order_id"] for order in orders if order["item"] in asked), "")
        if self.result("change_address", order_id=number) is None:
            return call("change_address", order_id=number, address=address[1])
        return say(f"Order {number} goes to {address[1]} now.")

    def _explain(self) -> Message:
        if (found := self.result("search_help")) is not None:
            nothing = "I am sorry, our help pages say nothing about that."
            return say(nothing if found == "Nothing was found." else str(found))
        if self.slips("searches by the sentence"):
            return call("search_help", query=self.heard[0].partition(". ")[2])
        topic = next((topic for topic in HELP if topic in self.heard[0]), "contact")
        return call("search_help", query=topic)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# The prompt -----------------------------------------------------------------------------------------------------------

_EXAMPLE = re.compile(r"<example>\n(.*?)\n</example>", re.DOTALL)
_CALL = re.compile(r"You call (\w+) with (.*)", re.DOTALL)


def reader_of(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reader:
    """Read a request as it comes: rules and examples out of the prompt, then the conversation."""
    prompt = "\n".join(str(message["content"]) for message in messages if message["role"] in ("system", "developer"))
    described = [f"{tool['function']['name']}: {tool['function'].get('description', '')}" for tool in tools]
    lines = [line.lower() for line in [*_EXAMPLE.sub("", prompt).splitlines(), *described]]
    known = {name for name, habit in HABITS.items() if any(all(word in line for word in habit.rule) for line in lines)}
    shown = {habit for text in _EXAMPLE.findall(prompt) for habit in _lesson(text)}
    talk = [message for message in messages if message["role"] not in ("system", "developer")]
    return Reader(talk, frozenset(known), frozenset(shown))


def _lesson(example: str) -> list[str]:
    """The habits that could have broken through at the end of a worked example."""
    messages: list[dict[str, Any]] = []
    for turn in re.split(r"\n(?! )", example):
        who, _, text = turn.partition(": ")
        if made := _CALL.fullmatch(turn):
            number = f"call-{len(messages)}"
            function = {"name": made[1], "arguments": made[2]}
            messages.append({"role": "assistant", "content": "", "tool_calls": [{"id": number, "function": function}]})
        elif who.startswith("Tool "):
            made_before = [row["tool_calls"][0]["id"] for row in messages if row.get("tool_calls")]
            messages.append({"role": "tool", "content": text, "tool_call_id": made_before[-1] if made_before else ""})
        else:
            messages.append({"role": "user" if who == "User" else "assistant", "content": text})
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        return []
    reader = Reader(messages, is_faultless=True)
    try:
        reader.next()
    except (LookupError, TypeError, ValueError):  # an example that somebody wrote by hand, of something else
        return []
    return reader.tempted


# The server -----------------------------------------------------------------------------------------------------------


def completion(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a chat completion."""
    messages, tools = asked["messages"], asked.get("tools") or []
    try:
        does = reader_of(messages, tools).next()
    except (LookupError, TypeError, ValueError):
        does = say("I am sorry, I did not understand that. A colleague will look at it.")
    calls = [
        {
            "id": f"call_{len(messages)}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for place, (name, arguments) in enumerate(does.get("calls", []))
    ]
    message = {"role": "assistant", "content": does.get("text")} | ({"tool_calls": calls} if calls else {})
    sent, came = len(json.dumps(asked)) // 4, len(json.dumps(message)) // 4
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": NAME,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": sent, "completion_tokens": came, "total_tokens": sent + came},
    }


class _Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(completion(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Door).serve_forever()


if __name__ == "__main__":
    main()
