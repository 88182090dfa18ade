"""Variants of a task: the same request about something else, in the same or in other words.

    entities(task)                      what can be swapped: spans of the request that the target says too
    make(task, spec, seed=1)            variants, always the same for a seed: entities swapped everywhere at once

An entity is a date, time, address, identifier, number or name. It is swapped in the request, the target and the state
together, keys too, as a whole word, so that what was asked and what is right still belong together. What is ambiguous
is not offered: what stands at two places of the request, or a number at two places of target and state, may be two
things. Where an entity stands within another word it cannot be swapped, and no variant is made. Whether a variant is a
task at all is shown by its proof, as for every task (`environments.prove`).
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from itertools import count, islice
from typing import Any, Final

from flywheel.core.digests import canonical
from flywheel.core.envs.environment import Task
from flywheel.core.errors import FieldError
from flywheel.core.text.normal_form import normalise

TRIES: Final = 20
"""Draws for one variant before it is given up: what is drawn may be there already."""
MAX_VALUES: Final = 500
MOST: Final = 60
"""Entities of a task, the first of its request."""
READ: Final = 8_000
"""Characters of a request in which entities are looked for."""
FIRST: Final = re.findall(
    r"\w+",
    "Adaora Amir Anouk Beata Bjarne Carlota Chidi Dagny Emre Esperanza Farid Fenna Gustav Hana Idris Ilse Jomo Kaisa "
    "Katya Leandro Lotte Malik Mariko Nadia Nikau Oskar Paloma Pavel Quentin Rania Rasmus Saoirse Selim Tamsin Teodor "
    "Ulrike Valeria Wanjiru Yusuf Zofia",
)
LAST: Final = re.findall(
    r"\w+",
    "Abara Bergstrom Castellano Dlamini Eriksen Fontaine Grabowski Haddad Ibarra Jankowski Kowalczyk Lindqvist Moreau "
    "Nakagawa Okonkwo Petrov Quispe Rossi Sandoval Takahashi Ueda Vasquez Weiss Xenakis Yilmaz Zamora",
)
MONTHS: Final = re.findall(
    r"\w+", "January February March April May June July August September October November December"
)
_ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})(?=T\d|\b)", re.ASCII)
_PLAIN: Final = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "time": re.compile(r"\b(?:[01]?\d|2[0-3]):[0-5]\d\b"),
    "id": re.compile(r"\b(?=[A-Za-z]*\d)(?=\w*[A-Za-z])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\b|\b[A-Za-z]+-\d+\b|\b\d{8}\b"),
    "number": re.compile(r"(?<![\w.:-])\d+(?:\.\d+)?(?![\w:-])"),
    "name": re.compile(r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)?\b"),
}


class CannotVary(FieldError):
    """`field` says what is wrong with the specification."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Something that a request names and its target too."""

    text: str
    """As the request has it."""
    kind: str
    forms: tuple[str, ...] = ()
    """How the target writes it, where that differs: `2026-11-13` for November 13."""

    @property
    def is_drawn(self) -> bool:
        """Whether another can be drawn; for a phrase somebody must give some."""
        return self.kind != "name" or self.text.istitle()


@dataclass(frozen=True, slots=True)
class Spec:
    """The things to vary: entities and, where somebody gave some, their values; other wordings of the request."""

    swap: tuple[str, ...] = ()
    """Texts of the entities; each must be one that `entities` finds."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By entity; the others draw from what their kind has."""
    wordings: tuple[str, ...] = ()
    """Templates of the request, each entity as `{text}`; none: its own words."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "values": {name: list(values) for name, values in self.values.items()}}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Spec":
        values = {name: tuple(found) for name, found in row.get("values", {}).items()}
        return cls(tuple(row.get("swap", ())), values, tuple(row.get("wordings", ())))


def entities(task: Task) -> list[Entity]:
    """Find the entities to swap, in the order of the request: the first `MOST` of its first `READ` characters."""
    asked, said = task.prompt[:READ], list(dict.fromkeys(_texts(task.target)))
    numbers = Counter(_PLAIN["number"].findall("\n".join(_texts([task.target, task.state], keys=True))))
    spans = [
        (start, start + len(entity.text), entity)
        for entity in dict.fromkeys((*_dates(asked, said), *_leaves(asked, said), *_plain(asked, said)))
        for start in islice(_places(task.prompt, entity.text), 1)
    ]
    found: list[Entity] = []
    end = 0
    for start, last, entity in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start < end or len(found) == MOST:
            continue  # part of a longer one
        end = last
        is_once = entity.kind != "number" or numbers[entity.text] == 1
        if is_once and len([*islice(_places(task.prompt, entity.text), 2)]) == 1:
            found.append(entity)
    return found


def check(task: Task, spec: Spec) -> None:
    """Raise CannotVary for what no variant can be made of."""
    known = {entity.text: entity for entity in entities(task)}
    if not spec.swap and not spec.wordings:
        raise CannotVary("choose what is swapped, or write another wording", field="swap")
    for text in (*spec.swap, *spec.values):
        if text not in known:
            there = ", ".join(known) or "nothing"
            raise CannotVary(f"{text[:60]!r} is not an entity of this task; {there} is", field="swap")
        if text in spec.swap and not known[text].is_drawn and not spec.values.get(text):
            raise CannotVary(f"{text[:60]!r} needs some: nothing can be drawn for a phrase", field="values")
    for text, values in spec.values.items():
        if len(values) > MAX_VALUES:
            raise CannotVary(f"{text[:60]!r} has {len(values)} values, at most {MAX_VALUES} are taken", field="values")
        like = next((number for number in _numbers([task.target, task.state]) if json.dumps(number) == text), None)
        for value in values:
            if like is not None and _as_number(value, like) is None:
                raise CannotVary(
                    f"{value[:60]!r} cannot stand for the number {like} of the target or state", field="values"
                )
            no_number = known[text].kind == "number" and not _PLAIN["number"].fullmatch(value)
            if not value.strip() or len(value) > 200 or no_number:
                raise CannotVary(f"{value[:60]!r} is no {known[text].kind} to put for {text[:60]!r}", field="values")
            if known[text].kind == "date" and _written(value) is None:
                raise CannotVary(f"{value[:60]!r} is not a date of the form 2026-11-22", field="values")
    _is_whole(task, [known[text] for text in spec.swap])
    for wording in spec.wordings:
        missing = [text for text in known if f"{{{text}}}" not in wording and not _word(text).search(wording)]
        if missing or len(wording) > 4000:
            raise CannotVary(
                f"{wording[:60]!r} does not say {missing[0] if missing else 'it shortly'!r}", field="wordings"
            )


def make(
    task: Task,
    spec: Spec,
    *,
    seed: int,
    taken: Collection[str] = (),
    forbidden: Callable[[Entity, str], bool] = lambda *_: False,
) -> Iterator[Task]:
    """Variants without end, or until nothing new can be drawn; each asks what no other asks.

    `taken` are normalised requests that there are already; `forbidden` says which values an entity may not have.
    Raises CannotVary.
    """
    check(task, spec)
    known = {entity.text: entity for entity in entities(task)}
    seen = {normalise(task.prompt), *taken}
    for number in count():
        for attempt in range(TRIES):
            rng = random.Random(f"variant {seed} {number} {attempt} {canonical(spec.to_json())!r}")
            drawn = {text: _draw(known[text], spec.values.get(text, ()), rng) for text in spec.swap}
            if any(forbidden(known[text], value) for text, value in drawn.items()):
                continue
            words = rng.choice([task.prompt, *(_filled(wording) for wording in spec.wordings)])
            try:
                made = _swapped(task, words, {known[text]: value for text, value in drawn.items()}, f"{number}")
            except _DoesNotFit:
                continue
            if (asked := normalise(made.prompt)) not in seen:
                seen.add(asked)
                yield made
                break
        else:
            return


def _swapped(task: Task, words: str, drawn: Mapping[Entity, str], number: str) -> Task:
    changes = {old: new for entity, value in drawn.items() for old, new in _changes(entity, value).items()}
    return Task(
        id=f"{task.id}-{number}",
        prompt=_changed(words, changes),
        target=_deep(task.target, changes),
        state=_deep(task.state, changes),
        cluster=task.cluster,
        slice=task.slice,
    )


def _is_whole(task: Task, swapped: Sequence[Entity]) -> None:
    """Raise CannotVary where the old text would still stand in what is wanted or given: within another word, say."""
    marks = {old: chr(0xE000 + place) for place, old in enumerate(o for each in swapped for o in _changes(each, None))}
    for where, value in (("target", task.target), ("state", task.state)):
        left = _changed("\n".join(_texts(value, keys=True)), marks)
        if text := next((old for old in marks if _remains(old).search(left)), ""):
            raise CannotVary(f"{text[:60]!r} stands in the {where} within another word, where it stays", field="swap")


class _DoesNotFit(ValueError):
    """A drawn value that cannot stand where the entity stands."""


def _changes(entity: Entity, value: str | None) -> dict[str, str]:
    """By text of the task: what takes its place. A date is one in all its forms."""
    if entity.kind != "date":
        return {entity.text: value or ""}
    own = date.fromisoformat(entity.forms[0])
    when = own if value is None else _written(value)
    assert when is not None, "check looks"
    forms = zip((own.isoformat(), *_shapes(own)), (when.isoformat(), *_shapes(when)), strict=True)
    return dict(reversed(list(forms)))  # May 5 is two of them: the first counts


def _filled(wording: str) -> str:
    """A template with the task's own entities."""
    return re.sub(r"\{([^{}]+)\}", lambda match: match[1], wording)


def _changed(text: str, changes: Mapping[str, str]) -> str:
    """All at once, the longest first, so that nothing that was put in is changed again."""
    if not changes:
        return text
    parts = sorted(changes, key=len, reverse=True)
    one = re.compile("|".join(_word(part).pattern for part in parts))
    return one.sub(lambda match: changes[match[0]], text)


def _deep(value: Any, changes: Mapping[str, str]) -> Any:
    """Raises _DoesNotFit where a number would be none any more, or two keys one."""
    if isinstance(value, str):
        return _changed(value, changes)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        changed = changes.get(json.dumps(value))
        if changed is None:
            return value
        if (number := _as_number(changed, value)) is None:
            raise _DoesNotFit(changed)
        return number
    if isinstance(value, Mapping):
        made = {_changed(name, changes): _deep(inner, changes) for name, inner in value.items()}
        if len(made) < len(value):
            raise _DoesNotFit("two keys become one")
        return made
    return [_deep(inner, changes) for inner in value]


def _as_number(text: str, like: float) -> float | None:
    """The JSON number that a text writes, of the type of another; None where it writes none."""
    try:
        number = json.loads(text) if _PLAIN["number"].fullmatch(text) else None
    except ValueError:
        return None
    return number if type(number) is type(like) else None


def _draw(entity: Entity, values: Sequence[str], rng: random.Random) -> str:
    """Another value than the entity's own."""
    others = [value for value in values if value != entity.text]
    if others:
        return rng.choice(others)
    if entity.kind == "date":
        off = timedelta(days=rng.choice([*range(-60, 0), *range(1, 61)]))
        return (date.fromisoformat(entity.forms[0]) + off).isoformat()
    if entity.kind == "time":
        return f"{rng.randrange(8, 18):02}:{rng.choice((0, 15, 30, 45)):02}"
    if entity.kind == "email":
        host = entity.text.partition("@")[2]
        return f"{rng.choice(FIRST)}.{rng.choice(LAST)}@{host}".lower()
    if entity.kind == "number" and "." not in entity.text and len(entity.text) < 16:
        own = int(entity.text)
        drawn = rng.randrange(max(1, own // 2), own * 2 + 3)
        return str(drawn + (drawn >= own))
    if entity.kind == "name":
        return " ".join(rng.choice(names) for names, _ in zip((FIRST, LAST), entity.text.split(), strict=False))
    # Where the own digits do not begin with a zero these do not either: 012 is no JSON number.
    return re.sub(r"((?<!\d)[1-9])|\d", lambda digit: str(rng.randrange(1 if digit[1] else 0, 10)), entity.text)


def _dates(prompt: str, said: Sequence[str]) -> Iterator[Entity]:
    """Dates of the target, in whatever way the request writes them."""
    for text in dict.fromkeys(match[0] for match in _ISO.finditer("\n".join(said))):
        if (when := _written(text)) is not None:
            shapes = (shape for shape in (text, *_shapes(when)) if _says(prompt, shape))
            yield from (Entity(shape, "date", (text,)) for shape in islice(shapes, 1))


def _leaves(prompt: str, said: Sequence[str]) -> Iterator[Entity]:
    """Whole values of the target that the request says, where something is drawn for them or somebody gives values."""
    for text in said:
        if 2 < len(text) <= 80 and not text.replace(".", "").isdigit() and _says(prompt, text):
            kind = next((kind for kind, shape in _PLAIN.items() if shape.fullmatch(text)), "name")
            if kind != "number" and not _ISO.search(text):
                yield Entity(text, kind)


def _plain(prompt: str, said: Sequence[str]) -> Iterator[Entity]:
    """Words of the request that have the form of an entity and stand in the target."""
    told = "\n".join(said)
    for kind, shape in _PLAIN.items():
        for text in dict.fromkeys(match[0] for match in shape.finditer(prompt)):
            if not _ISO.search(text) and _says(told, text):
                yield Entity(text, kind)


def _shapes(when: date) -> list[str]:
    """Return the forms in which people write a date without saying which form it is."""
    month = MONTHS[when.month - 1]
    return [
        f"{month} {when.day}, {when.year}",
        f"{when.day} {month} {when.year}",
        f"{month} {when.day}",
        f"{when.day} {month}",
        f"{month[:3]} {when.day}",
    ]


def _written(text: str) -> date | None:
    try:
        when = date.fromisoformat(text) if _ISO.fullmatch(text) else None
    except ValueError:
        return None
    return when if when and date.min.year < when.year < date.max.year else None  # others are drawn some months away


@lru_cache(4096)
def _word(text: str) -> "re.Pattern[str]":
    """A whole word: of a date and a time of day also where a T joins them, of a number never a part of another."""
    before, after = r"(?<!\w)", r"(?!\w)"
    if _ISO.fullmatch(text):
        after = r"(?:(?=T\d)|(?!\w))"
    elif _PLAIN["time"].fullmatch(text):
        before, after = r"(?:(?<=\dT)|(?<![\w:]))", r"(?:(?=Z\b)|(?!\w))"
    elif _PLAIN["number"].fullmatch(text):
        before, after = r"(?<![\w.:-])", r"(?!\.\d|[\w:-])"
    return re.compile(before + re.escape(text) + after)


def _says(told: str, text: str) -> bool:
    return any(True for _ in _places(told, text))


def _places(told: str, text: str) -> Iterator[int]:
    """Where it stands as a whole word. Much faster than the pattern's own search, which looks behind every letter."""
    at = told.find(text)
    while at >= 0:
        if _word(text).match(told, at):
            yield at
        at = told.find(text, at + 1)


def _remains(text: str) -> "re.Pattern[str]":
    """A text in other words too, but 3 neither in 13 nor in 2026-11-3."""
    if _PLAIN["number"].fullmatch(text):
        return re.compile(rf"(?<![\w.:-]){re.escape(text)}(?!\.?\d|[:-])")
    ends = r"(?<!\d)" * text[0].isdigit(), r"(?!\d)" * text[-1].isdigit()
    return re.compile(ends[0] + re.escape(text) + ends[1])


def _texts(value: Any, *, keys: bool = False) -> list[str]:
    """Every text and number in it, the keys too where they are wanted."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int | float):
        return [json.dumps(value)]
    if isinstance(value, Mapping):
        return [*(value if keys else ()), *_texts([*value.values()], keys=keys)]
    return [text for each in value for text in _texts(each, keys=keys)]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(inner)
