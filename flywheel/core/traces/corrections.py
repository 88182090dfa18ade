"""A correction: what an agent should have done at a step where it went wrong, in one of six forms.

{"tool": name, "arguments": {…}}                            one call
{"calls": [{"tool", "arguments"}, …], "order": "given"}     two or more calls, from this step on; or in "any" order
{"text": answer}                                            these words and no call
{"refuse": text}                                            a refusal; the text may be empty, as in the next two
{"ask": text}                                               a question back
{"avoid": [tool, …], "text": answer}                        no call of these tools, or none at all, and these words
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flywheel.core.digests import canonical
from flywheel.core.errors import FieldError
from flywheel.core.traces import Message, ToolCall, fingerprint, tooling

FORMS: Final = ("tool", "calls", "text", "refuse", "ask", "avoid")
ORDERS: Final = ("given", "any")
MOST_CALLS: Final = 50
_KEYS = {
    "tool": {"tool", "arguments"},
    "calls": {"calls", "order"},
    "text": {"text"},
    "refuse": {"refuse"},
    "ask": {"ask"},
    "avoid": {"avoid", "text"},
}
STOCK: Final[Mapping[str, str]] = {
    "refuse": "I can't help with that.",
    "ask": "Could you tell me more?",
    "avoid": "Done.",
}
"""What is said where a correction leaves the words open."""
_NO_FORM = (
    'expected {"tool": name, "arguments": {…}}, {"calls": [two or more], "order": "given" or "any"}, {"text": answer}, '
    '{"refuse": text}, {"ask": text} or {"avoid": [tool, …], "text": answer}'
)


def form_of(corrected: Any) -> str:
    """Return the correction's form, one of FORMS, by its keys alone; empty where they are those of none."""
    keys = set(corrected) if isinstance(corrected, Mapping) else set()
    if keys == {"calls"}:
        return "calls"
    return next((form for form, wanted in _KEYS.items() if keys == wanted), "")


def problems(corrected: Any, tools: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    """List the problems of a correction under the agent's tools, each with its field; empty when there are none.

    The fields of one call are those of its arguments (`day`); of several, they name the call
    too (`calls.1.arguments.day`).
    """
    form = form_of(corrected)
    if not form:
        return [FieldError(_NO_FORM, field="corrected")]
    try:
        canonical(corrected)
    except (ValueError, TypeError, RecursionError):
        where = "arguments" if form == "tool" else form
        return [FieldError("must be plain JSON, without NaN, infinity or half characters", field=where)]
    if form == "tool":
        return _call_problems(corrected, tools)
    if form == "calls":
        return _calls_problems(corrected, tools)
    texts = [name for name in ("text", "refuse", "ask") if name in corrected]
    found = [FieldError("must be a text", field=name) for name in texts if not isinstance(corrected[name], str)]
    if form == "text" and not found and not corrected["text"].strip():
        found.append(FieldError("write the answer that would have been right", field="text"))
    return found + (_avoid_problems(corrected["avoid"]) if form == "avoid" else [])


def _calls_problems(corrected: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    calls, order = corrected["calls"], corrected.get("order", "given")
    if not isinstance(calls, list):
        return [FieldError("must be a list of calls", field="calls")]
    found = []
    if len(calls) < 2:
        found.append(FieldError('expected two or more calls; one alone is {"tool", "arguments"}', field="calls"))
    if len(calls) > MOST_CALLS:
        return [FieldError(f"{len(calls)} calls are too many, at most {MOST_CALLS} are kept", field="calls")]
    if order not in ORDERS:
        found.append(FieldError('expected "given" or "any"', field="order"))
    for at, call in enumerate(calls):
        if form_of(call) != "tool":
            found.append(FieldError('expected {"tool": name, "arguments": {…}}', field=f"calls.{at}"))
            continue
        for problem in _call_problems(call, tools):
            inside = problem.field if problem.field in ("tool", "arguments") else f"arguments.{problem.field}"
            found.append(FieldError(problem.problem, field=f"calls.{at}.{inside}"))
    return found


def _call_problems(call: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    name, arguments = call["tool"], call["arguments"]
    if not isinstance(name, str) or not name:
        return [FieldError("name the tool that should have been called", field="tool")]
    if not isinstance(arguments, dict):
        return [FieldError("must be an object", field="arguments")]
    if not tools:
        return []
    tool = tooling.find(tools, name)
    if tool is None:
        names = ", ".join(str(each["name"]) for each in tools)
        return [FieldError(f"{name!r} is unknown; use one of {names}", field="tool")]
    try:
        return tooling.schema_problems(tool, arguments, patterns=False)
    except Exception:
        # The schema came with the trajectory and may be none at all. It then says nothing about the arguments; the
        # proof of a task, against the environment's own tools, still does.
        return []


def _avoid_problems(avoid: Any) -> list[FieldError]:
    """A tool to avoid need not be one that the agent has: it may have made it up."""
    if not isinstance(avoid, list) or not all(isinstance(name, str) and name for name in avoid):
        return [FieldError("must be a list of names of tools, empty for any call", field="avoid")]
    return [FieldError("names a tool twice", field="avoid")] if len(set(avoid)) < len(avoid) else []


def calls(corrected: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the calls that should have been made, as `{"tool", "arguments"}`; empty for the forms without calls."""
    if "tool" in corrected:
        return [{"tool": corrected["tool"], "arguments": corrected["arguments"]}]
    return list(corrected.get("calls", ()))


def text(corrected: Mapping[str, Any]) -> str:
    """Return the words that should have been written; a stock sentence where they are left open, empty beside calls."""
    form = form_of(corrected)
    words = corrected.get("text" if form == "avoid" else form, "") if form not in ("tool", "calls") else ""
    return words if words.strip() else STOCK.get(form, words)


def message(corrected: Mapping[str, Any], *, first_id: str = "call-0") -> Message:
    """Return what the agent should have said and called, all calls in one message and native.

    Ids count up from the number at the end of `first_id`.
    """
    stem, _, number = first_id.rpartition("-")
    start = int(number) if stem and number.isdecimal() else 0
    stem = stem if stem and number.isdecimal() else first_id
    made = tuple(
        ToolCall(first_id if at == 0 else f"{stem}-{start + at}", call["tool"], call["arguments"])
        for at, call in enumerate(calls(corrected))
    )
    return Message("assistant", text(corrected), made)


def summary(corrected: Mapping[str, Any]) -> str:
    """The correction in a few words, for lists: `search_flights`, `search_flights and 2 more`, `refuse`."""
    form, made = form_of(corrected), calls(corrected)
    if made:
        more = f" and {len(made) - 1} more" if len(made) > 1 else ""
        return f"{made[0]['tool']}{more}{' in any order' if corrected.get('order') == 'any' else ''}"
    if form == "avoid":
        return f"no {', '.join(corrected['avoid']) or 'call'}"
    return {"text": "answer", "refuse": "refuse", "ask": "ask back"}.get(form, "")


def same(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether two corrections want the same: calls in any order are compared without it, white space around words is
    left out, and tools to avoid are a set."""
    return _meaning(one) == _meaning(other)


def _meaning(corrected: Mapping[str, Any] | None) -> tuple[Any, ...]:
    if corrected is None:
        return ()
    form, made = form_of(corrected), [_fingerprint(call["tool"], call["arguments"]) for call in calls(corrected)]
    order = corrected.get("order", "given") if form == "calls" else ""
    words = corrected.get("text" if form == "avoid" else form, "") if not made else ""
    return form, order, sorted(made) if order == "any" else made, words.strip(), sorted(corrected.get("avoid", ()))


def _fingerprint(name: str, arguments: Any) -> bytes:
    return fingerprint([name, arguments])


def changes_nothing(corrected: Mapping[str, Any], recorded: Message) -> bool:
    """Whether the correction is what the agent did at the step already. A refusal or question in open words always
    changes something, for nobody can tell whether the recorded words are one."""
    form, made = form_of(corrected), tooling.calls_of(recorded)
    if form in ("tool", "calls"):
        was = [_fingerprint(call.name, call.arguments) for call in made]
        wanted = [_fingerprint(call["tool"], call["arguments"]) for call in calls(corrected)]
        return sorted(was) == sorted(wanted) if corrected.get("order") == "any" else was == wanted
    words = str(corrected.get("text" if form == "avoid" else form, "")).strip()
    is_same_text = words == recorded.content.strip()
    if form == "avoid":
        avoided = corrected["avoid"]
        is_avoided = not any(call.name in avoided or not avoided for call in made)
        return is_avoided and (not words or is_same_text)
    return not made and bool(words) and is_same_text
