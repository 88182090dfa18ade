"""The parts of a rubric: each type with its settings, how they are checked, and how it judges.

A part reads a named place of the attempt (`attempt_places`), and what is wanted there: a value of its own, or a named
key of the task's target. A type is declared once, by `@part(…)` above the function that judges; form, API and rubric
come from `PARTS`.

A type which needs something that is not pure (`python` the sandbox, `judge` an endpoint, `reward_model` its weights)
names its runner and takes it from `case.runners`. A further one is: a field of `Runners`, a type here.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flywheel.core.digests import canonical, read_json
from flywheel.core.traces import Message, Trace, json_schemas
from flywheel.core.traces.json_schemas import pattern
from flywheel.core.verifiers import Runners, Verdict, judge_prompts, part_checks, unscored
from flywheel.core.verifiers.attempt_numbers import number_of
from flywheel.core.verifiers.attempt_places import (
    MISSING,
    PLACES,
    NotJson,
    NotThere,
    TooLong,
    attempt_json,
    dig,
    flat,
    read,
    shown,
)

Kind = Literal["text", "prose", "number", "choice", "json", "code", "flag", "reward_model"]
TEXTS = ("answer", "last_call", "any_call")
EXAMPLE = '''def verify(trace, target):
    """trace: "answer", "calls" [{"tool", "arguments"}], "messages". target: what the task wants."""
    said = trace["answer"].strip()
    return {"score": 1.0 if said else 0.0, "reason": said[:200]}
'''


@dataclass(frozen=True, slots=True)
class Setting:
    label: str
    kind: Kind = "text"
    help: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Value to words; the first is what holds where nothing is said."""
    first: str = ""
    """What a form begins with."""
    is_required: bool = False
    """Whether every part of the type gives it. A choice always has a value and needs no such word."""
    is_frozen: bool = False
    """Whether it is looked up when the part is saved, and asked for in no form."""


@dataclass(frozen=True, slots=True)
class Case:
    """One attempt before the bench."""

    trace: Trace
    target: Mapping[str, Any]
    own: Verdict
    """What the environment's own verifier says of it."""
    difference: Callable[[], tuple[Counter[Any], Counter[Any]]] | None
    """Changes of the state that were wanted and that were made, where the environment keeps a state."""
    runners: Runners
    tokens: int | None = None
    """How many the policy wrote; None where nobody counted them."""
    written: Sequence[Message] = ()
    """The attempt as the model wrote it, for whoever does not read it as its program does."""
    tools: Sequence[Mapping[str, Any]] = ()


class NoTarget(Exception):
    """The task's target has no such key: nothing can be compared."""


Judge = Callable[[Mapping[str, Any], Case], Verdict]
Check = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class PartType:
    label: str
    description: str
    settings: Mapping[str, Setting]
    runner: str
    """The field of `Runners` that it needs, or nothing."""
    check: Check
    """Raises VerifierError where the settings, each right by itself, do not go together; may put them in order."""
    judge: Judge
    only_shapes: bool = False
    """Whether it says nothing of right and wrong, and stands in reward recipes alone."""


PARTS: dict[str, PartType] = {}
"""Every type of part by its name, in the order in which a form offers them."""


def part(
    name: str,
    label: str,
    description: str,
    settings: Mapping[str, Setting],
    *,
    runner: str = "",
    check: Check = part_checks.nothing,
    only_shapes: bool = False,
) -> Callable[[Judge], Judge]:
    """Register the function below it as the type of part of this name."""

    def register(judge: Judge) -> Judge:
        PARTS[name] = PartType(label, description, settings, runner, check, judge, only_shapes)
        return judge

    return register


def _places(*names: str) -> Setting:
    return Setting("Read", "choice", choices={name: PLACES[name] for name in names})


PATH = Setting("Field", help="Inside a call or a JSON answer, such as arguments.to; empty for the whole.")
TARGET = Setting("Wanted: key of the target", help="Such as arguments.day. Or give a value below.")
_VALUE = Setting("Wanted: value", "json", 'As JSON: a text stands in quotes, such as "friday".')


def judge(kind: str, settings: Mapping[str, Any], case: Case) -> Verdict:
    """Return the part's verdict on the attempt. May raise anything where an attempt is beyond what it can judge."""
    try:
        return PARTS[kind].judge(settings, case)
    except NotThere as error:
        lacks = settings.get("must") == "lack" and not isinstance(error, NotJson)
        return Verdict(float(lacks), str(error))
    except TooLong as error:  # what is left out of a mean would make it better
        return Verdict(0.0, str(error))
    except NoTarget as error:
        return unscored(str(error), "target")


def expected_value(settings: Mapping[str, Any], case: Case) -> Any:
    """Return what a part compares with: its own value, or that of the target's key. Raises NoTarget."""
    if "target" not in settings:
        return settings["value"]
    return _of_target(settings["target"], case.target)


def _of_target(path: str, target: Mapping[str, Any]) -> Any:
    found = target if path == "." else dig(target, path)
    if found is MISSING:
        raise NoTarget(f"the task's target has no {path}")
    return found


def _best(verdicts: list[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: -1.0 if verdict.score is None else verdict.score)


@part(
    "environment",
    "Environment's own",
    "What the environment's kind says by itself: the effect of the call, the state that is left behind, the game.",
    {"part": Setting("Only its part", help="Such as tool or outcome; empty for its score.")},
)
def _environment(settings: Mapping[str, Any], case: Case) -> Verdict:
    part = settings.get("part")
    if not part or case.own.score is None:
        return case.own
    score = case.own.parts.get(part)
    if score is None:
        return unscored(f"the environment's own verifier has no part {part!r}", "unscored")
    return Verdict(score, f"{part} is {score:g}")


def same(given: Any, wanted: Any, ignore_case: bool = False) -> bool:
    """Equal as JSON is; of texts neither spaces at their ends nor several in a row count."""
    if isinstance(given, str) and isinstance(wanted, str):
        one, other = " ".join(given.split()), " ".join(wanted.split())
        return one.casefold() == other.casefold() if ignore_case else one == other
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        return given.keys() == wanted.keys() and all(same(given[key], wanted[key], ignore_case) for key in wanted)
    if isinstance(given, list) and isinstance(wanted, list):
        pairs = zip(given, wanted, strict=False)
        return len(given) == len(wanted) and all(same(one, other, ignore_case) for one, other in pairs)
    return isinstance(given, bool) == isinstance(wanted, bool) and bool(given == wanted)


@part(
    "exact",
    "Exact",
    "The same value; spaces at ends and in a row do not count.",
    {
        "read": _places("answer", "last_call", "any_call", "calls", "steps"),
        "path": PATH,
        "target": TARGET,
        "value": _VALUE,
        "ignore_case": Setting("Capitals do not count", "flag"),
    },
    check=part_checks.wanted_value,
)
def _exact(settings: Mapping[str, Any], case: Case) -> Verdict:
    wanted = expected_value(settings, case)
    given = read(settings["read"], settings.get("path", ""), case.trace)
    if settings["read"] == "answer" and not settings.get("path") and not isinstance(wanted, str):
        given = [_value_of(text) for text in given]
    for each in given:
        if same(each, wanted, settings.get("ignore_case", False)):
            return Verdict(1.0, "the wanted value")
    return Verdict(0.0, f"{shown(given[-1])}, wanted {shown(wanted)}")


def _value_of(text: str) -> Any:
    try:
        return flat(read_json(text))
    except (ValueError, RecursionError):
        return text


@part(
    "regex",
    "Regular expression",
    "A pattern that is found, or is not. RE2 runs it: its time grows with the text and nothing else.",
    {
        "read": _places(*TEXTS),
        "path": PATH,
        "pattern": Setting(
            "Pattern", help="RE2's: no look-around, no back-references. (?i) ignores capitals.", is_required=True
        ),
        "must": Setting(
            "It must", "choice", choices={"find": "be found", "match": "match the whole text", "lack": "not be found"}
        ),
    },
    check=part_checks.regex,
)
def _regex(settings: Mapping[str, Any], case: Case) -> Verdict:
    found, must = pattern(settings["pattern"]), settings.get("must", "find")
    if must == "lack":
        return _lacks(settings, case)
    verdicts = []
    for value in read(settings["read"], settings.get("path", ""), case.trace):
        text = _as_text(value)
        match = found.fullmatch(text) if must == "match" else found.search(text)
        said = f"{shown(match.group())} is there" if match else f"nothing like it in {shown(text)}"
        verdicts.append(Verdict(float(bool(match)), said))
    return _best(verdicts)


def _lacks(settings: Mapping[str, Any], case: Case) -> Verdict:
    """Look for what must not be found in every call, in all of one that has no such field, and also across the items of
    a list, as a shell would join them: who names it otherwise has written it all the same."""
    found, path = pattern(settings["pattern"]), settings.get("path", "")
    for each in read(settings["read"], "", case.trace, as_json=bool(path)):
        value = dig(each, path) if path else each
        value = each if value is MISSING else value
        for text in (_as_text(value), json_schemas.utf8(" ".join(_leaves(value)))):
            if match := found.search(text):
                return Verdict(0.0, f"{shown(match.group())} is there")
    return Verdict(1.0, "nothing like it is there")


def _as_text(value: Any) -> str:
    return json_schemas.utf8(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _leaves(value: Any) -> Iterator[str]:
    """All that stands in a value, keys and values, as texts."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


@part(
    "json_schema",
    "JSON schema",
    "JSON of a given shape.",
    {"read": _places(*TEXTS), "path": PATH, "schema": Setting("Schema", "json", is_required=True)},
    check=part_checks.schema,
)
def _json_schema(settings: Mapping[str, Any], case: Case) -> Verdict:
    validator = json_schemas.validator(canonical(settings["schema"]))
    given = read(settings["read"], settings.get("path", ""), case.trace, as_json=True)
    verdicts = []
    for value in given:
        error = next(iter(validator.iter_errors(value)), None)
        where = ".".join(map(str, error.path)) if error else ""
        words = f"{where}: {error.message[:300]}" if error and where else error.message[:300] if error else "it fits"
        verdicts.append(Verdict(float(error is None), words))
    return _best(verdicts)


@part(
    "number",
    "Number",
    "A number that is near the wanted one, or within bounds. In a text it is the last number.",
    {
        "read": _places("answer", "last_call", "any_call", "steps"),
        "path": PATH,
        "target": Setting("Wanted: key of the target", help="Or a value, or bounds."),
        "value": Setting("Wanted: value", "number"),
        "tolerance": Setting("May differ by", "number"),
        "relative": Setting("or by the share", "number", "0.01 is one percent."),
        "least": Setting("At least", "number"),
        "most": Setting("At most", "number"),
    },
    check=part_checks.number,
)
def _number(settings: Mapping[str, Any], case: Case) -> Verdict:
    least, most = settings.get("least"), settings.get("most")
    if "target" in settings or "value" in settings:
        wanted = expected_value(settings, case)
        try:
            middle = number_of(wanted)
        except NotThere as error:
            raise NoTarget(f"what is wanted is no number: {error}") from None
        off = max(settings.get("tolerance", 0.0), settings.get("relative", 0.0) * abs(middle))
        off += 1e-12 * max(1.0, abs(middle))
        least, most = middle - off, middle + off
    verdicts = []
    for value in read(settings["read"], settings.get("path", ""), case.trace):
        try:
            number = number_of(value)
        except NotThere as error:
            verdicts.append(Verdict(0.0, str(error)))
            continue
        fits = (least is None or number >= least) and (most is None or number <= most)
        verdicts.append(Verdict(float(fits), f"{number:g}" + ("" if fits else f" is not {_bounds(least, most)}")))
    return _best(verdicts)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return f"at most {most:g}"
    return f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"


@part(
    "tool_call",
    "Tool call",
    "The wanted calls with the wanted arguments. All calls together are compared without their order, and nothing else "
    "may be called.",
    {
        "read": _places("calls", "any_call", "last_call"),
        "target": Setting(
            "Wanted: key of the target",
            help='Where the call {"tool", "arguments"} stands, or for all calls their list too; . is the whole target.',
        ),
        "value": _VALUE,
        "arguments": Setting(
            "Arguments", "choice", choices={"same": "exactly these", "least": "at least these", "any": "do not count"}
        ),
    },
    check=part_checks.call,
)
def _tool_call(settings: Mapping[str, Any], case: Case) -> Verdict:
    wanted = expected_value(settings, case)
    every = read(settings["read"], "", case.trace)
    how = settings.get("arguments", "same")
    if settings["read"] == "calls":
        taken, missing = _pair(wanted if isinstance(wanted, list) else [wanted], every[0], how)
        if missing is not None:
            return Verdict(0.0, f"the call {shown(missing)} is missing")
        left = [each for at, each in enumerate(every[0]) if at not in taken]
        return Verdict(float(not left), f"{shown(left[0])} is not wanted" if left else "the wanted calls")
    if any(_is_call(call, wanted, how) for call in every):
        return Verdict(1.0, "the wanted call")
    return Verdict(0.0, f"called {shown(every[-1])}, wanted {shown(wanted)}")


def _pair(wanted: list[Any], given: Sequence[Any], how: str) -> tuple[dict[int, int], Any]:
    """For each wanted call one that was made, whatever their order (augmenting paths, Kuhn 1955): who takes which, and
    the first for which there is none."""
    fits = [[at for at, each in enumerate(given) if _is_call(each, call, how)] for call in wanted]
    taken: dict[int, int] = {}

    def place(number: int, seen: set[int]) -> bool:
        for at in fits[number]:
            if at not in seen:
                seen.add(at)
                if at not in taken or place(taken[at], seen):
                    taken[at] = number
                    return True
        return False

    for number, call in enumerate(wanted):
        if not place(number, set()):
            return taken, call
    return taken, None


def _is_call(given: Mapping[str, Any], wanted: Any, how: str) -> bool:
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("tool"), str):
        raise NoTarget(f'what is wanted is no call {{"tool", "arguments"}}: {shown(wanted)}')
    if given["tool"] != wanted["tool"]:
        return False
    arguments, expected = given["arguments"], wanted.get("arguments", {})
    if how == "any":
        return True
    if how == "same":
        return same(arguments, expected)
    return isinstance(arguments, Mapping) and all(
        name in arguments and same(arguments[name], value) for name, value in expected.items()
    )


@part(
    "state",
    "State difference",
    "What was changed, beside what should have been. Something changed that nobody asked for scores 0.",
    {
        "tables": Setting("Only tables", help="With commas; empty for all."),
        "credit": Setting(
            "Counts", "choice", choices={"whole": "all or nothing", "share": "the share of wanted changes"}
        ),
    },
    check=part_checks.state,
)
def _state(settings: Mapping[str, Any], case: Case) -> Verdict:
    if case.difference is None:
        return unscored("this environment keeps no state", "unscored")
    wanted, made = case.difference()
    if tables := set(settings.get("tables", ())):
        wanted, made = (Counter({c: n for c, n in each.items() if c[0] in tables}) for each in (wanted, made))
    extra, missing = made - wanted, wanted - made
    if extra:
        return Verdict(0.0, f"changed what nobody asked for: {shown(' '.join(next(iter(extra))))}")
    if not missing:
        return Verdict(1.0, "the wanted state")
    share = 1 - missing.total() / wanted.total() if settings.get("credit") == "share" else 0.0
    return Verdict(share, f"{missing.total()} of {wanted.total()} wanted changes are missing")


@part(
    "python",
    "Python",
    "verify(trace, target) in the sandbox: no file, no network, limited time and memory.",
    {"source": Setting("Source", "code", first=EXAMPLE, is_required=True)},
    runner="python",
    check=part_checks.python,
)
def _python(settings: Mapping[str, Any], case: Case) -> Verdict:
    if case.runners.python is None:
        return unscored("nothing here may run Python: a worker's sandbox does", "refused")
    return case.runners.python(settings["source"], attempt_json(case.trace), dict(case.target))


def reference(settings: Mapping[str, Any], target: Mapping[str, Any]) -> Any:
    """Return the reference that a judge is shown as right; None where it is shown nothing. Raises NoTarget."""
    return _of_target(settings["target"], target) if settings.get("target") else None


@part(
    "judge",
    "LLM judge",
    "A model reads the attempt and gives a mark by your criteria. Canaries show whether it can be talked round.",
    {
        "criteria": Setting(
            "Criteria", "prose", "What a good answer is, in words that two people apply alike.", is_required=True
        ),
        "endpoint": Setting(
            "Ask",
            "choice",
            "An admin names the upstream under Settings › Gateway.",
            {"upstream": "the project's upstream", "vllm": "this installation's vLLM"},
        ),
        "model": Setting("Model", help="By the name that the server knows.", is_required=True),
        "sees": Setting(
            "It sees", "choice", choices={"answer": "the request and the last answer", "episode": "the whole episode"}
        ),
        "target": Setting("Reference: key of the target", help="Shown as what is right; . is all of it."),
        "top": Setting(
            "Highest mark", "number", "1 is pass or fail; 10 the most. The score is the share of it.", first="1"
        ),
        "votes": Setting(
            "Votes", "number", "How often it is asked: 1, 3, 5, 7 or 9. The middle mark counts.", first="1"
        ),
        "anchors": Setting("What the marks mean", "prose", "A line each: 0 = it is wrong. Empty for pass or fail."),
        "canaries": Setting(
            "Answers that must get 0",
            "prose",
            "Beside the built-in ones; an empty line between two. One that gets more voids the whole run.",
        ),
    },
    runner="judge",
    check=judge_prompts.check,
)
def _judged(settings: Mapping[str, Any], case: Case) -> Verdict:
    if case.runners.judge is None:
        return unscored("nothing here may ask a judge: a worker does", "refused")
    right = reference(settings, case.target)
    return case.runners.judge(settings, attempt_json(case.trace), right, anew=case.runners.anew)
