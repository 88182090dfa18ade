"""The oracle of the second story: it knows what each customer wants, and finds the first move that is another.

fault = judge(customer, messages_of_the_agent)      None where the customer got what they wanted
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.traces import Message, tooling
from workers.reference.helpdesk.helpdesk_customers import Customer, Move
from workers.reference.helpdesk.helpdesk_shop import TOOLS


@dataclass(frozen=True, slots=True)
class Fault:
    place: int
    """Of the message among the agent's own."""
    bucket: str
    corrected: dict[str, Any]
    """As `core.traces.corrections` has it."""


def judge(customer: Customer, spoken: Sequence[Message]) -> Fault | None:
    """Hold the agent's messages, in order, against what the customer wants."""
    for place, move in enumerate(customer.wants):
        if place >= len(spoken):
            return Fault(len(spoken) - 1, "incomplete_execution", _corrected(move, None))
        if not _fits(move, spoken[place]):
            return Fault(place, _bucket(move, spoken[place]), _corrected(move, spoken[place]))
    return None


def _fits(move: Move, message: Message) -> bool:
    made = _calls(message)
    if move.kind == "calls":
        wanted = [(name, dict(arguments)) for name, arguments in move.calls]
        return len(made) == len(wanted) and all(each in made for each in wanted)
    if made:
        return False
    words = message.content.lower()
    if move.kind == "ask":
        return "?" in words
    if move.kind == "refuse":
        return "can't" in words
    return all(fact.lower() in words for fact in move.facts)


def _bucket(move: Move, message: Message) -> str:
    """File the fault where a reviewer would."""
    made = _calls(message)
    if not made:
        is_written = any(f"{tool['name']}(" in message.content for tool in TOOLS)
        return "format_error" if is_written else "incomplete_execution"
    names, wanted = [name for name, _ in made], [name for name, _ in move.calls]
    if any(tooling.find(TOOLS, name) is None for name in names):
        return "hallucinated_api"
    if move.kind == "refuse":
        return "unsafe_action"
    if move.kind == "ask":
        return "wrong_arguments"
    if set(names) == set(wanted):
        if len(made) < len(wanted):
            return "incomplete_execution"
        return "retrieval_failure" if "search_help" in names else "wrong_arguments"
    return "bad_planning" if "refund_order" in names else "wrong_tool"


def _corrected(move: Move, message: Message | None) -> dict[str, Any]:
    calls = [{"tool": name, "arguments": dict(arguments)} for name, arguments in move.calls]
    if len(calls) > 1:
        return {"calls": calls, "order": "any"}
    if calls:
        return calls[0]
    if move.kind == "refuse" and message is not None and (made := _calls(message)):
        return {"avoid": [name for name, _ in made], "text": move.text}
    return {move.kind: move.text}


def _calls(message: Message) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in tooling.calls_of(message)]
