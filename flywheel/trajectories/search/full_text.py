"""Full-text search: the words of what was said and done, in PostgreSQL's `tsvector`.

A word is a run of letters and digits, in any language, whatever its case; everything else only separates words. So
`calendar.create_event` is the phrase "calendar create event", for who writes it and for who looks for it. There is no
stemming and there are no stop words: names, ids and numbers are what people look for in an agent's work.

`index` runs when detectors have read a trajectory, so that a moment passes until it is found.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import BooleanField, Exists, F, Func, OuterRef, Q, Value
from psycopg.errors import DataError, ProgramLimitExceeded

from flywheel.core import traces
from flywheel.system.sql import bound
from flywheel.trajectories.models import Words

log = logging.getLogger(__name__)

WORDS = 4_000
"""Of one row. PostgreSQL counts places up to 16,383, and 256 of each word; a phrase is found within one row."""
CHARACTERS = 250_000
"""Of one row: at four bytes each, with their places, they are short of the 1,048,575 bytes that PostgreSQL takes."""
MOST_WORDS = 500_000
"""Of one trajectory, from its beginning on."""
LONGEST = 100
"""Characters of a word; longer runs are encoded data, which nobody looks for."""
PHRASE = 50
"""Words that one search may ask for."""


def says(text: str) -> Q | None:
    """Trajectories in which these words follow one another; `*` at the end stands for the rest of the last word.

    None when there is no word in the text.
    """
    found = _words(text)[:PHRASE]
    if not found:
        return None
    if any(len(word) > LONGEST for word in found):
        return Q(pk__in=[])  # nothing has such a word, and PostgreSQL takes none of 2 kB
    wanted = " <-> ".join(f"'{word}'" for word in found) + (":*" if text.rstrip().endswith("*") else "")
    asked = [_matches(wanted)]
    if len(found) > 1:
        # The planner takes a phrase for as common as its words together, and would look at each trajectory for it.
        # Said twice it is rarer, and is looked for among those that the index says have all of the words.
        asked.append(_matches(wanted.replace("<->", "&")))
    return Q(Exists(Words.objects.filter(*asked, trajectory=OuterRef("pk"))))


def _matches(wanted: str) -> Func:
    query = Func(Value(wanted), template="%(expressions)s::tsquery")
    return Func(F("words"), query, template="%(expressions)s", arg_joiner=" @@ ", output_field=BooleanField())


def index(read: Mapping[int, traces.Trace]) -> None:
    """Make these trajectories, by primary key, searchable as they are now."""
    write({pk: vectors(trace) for pk, trace in read.items()})


def write(found: Mapping[int, Sequence[str]]) -> None:
    """Put these `vectors` of trajectories, by primary key, in the place of those that were there.

    One that PostgreSQL does not take is left without words: it must not keep detectors from all that came after it.
    """
    try:
        with transaction.atomic():
            _replace(found)
    except DatabaseError as error:
        if not isinstance(error.__cause__, DataError | ProgramLimitExceeded):
            raise
        if len(found) == 1:
            log.exception("the words of trajectory %s cannot be stored", *found)
            _replace(dict.fromkeys(found, ()))
            return
        for pk, every in found.items():
            write({pk: every})


def _replace(found: Mapping[int, Sequence[str]]) -> None:
    rows = [(pk, part, vector) for pk, every in found.items() for part, vector in enumerate(every)]
    bound("DELETE FROM trajectories_words WHERE trajectory_id = ANY(%s)", [list(found)])
    if rows:
        bound(_INSERT, [list(column) for column in zip(*rows, strict=True)])


_INSERT = """
INSERT INTO trajectories_words (trajectory_id, part, words)
SELECT pk, part, words::tsvector FROM unnest(%s::bigint[], %s::int[], %s::text[]) AS given (pk, part, words)
"""


def vectors(trace: traces.Trace) -> list[str]:
    """The words of a trajectory and their places, as PostgreSQL writes a `tsvector`; a long one in several parts."""
    words = islice(chain.from_iterable(map(_words, _texts(trace))), MOST_WORDS)
    parts = []
    while some := list(islice(words, WORDS)):
        # Half as many words are never too many characters: those that are longer than any are left out.
        size = WORDS if sum(map(len, some)) <= CHARACTERS else WORDS // 2
        parts += [_vector(some[at : at + size]) for at in range(0, len(some), size)]
    return parts


def _vector(words: Sequence[str]) -> str:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for word, place in zip(words, _PLACES, strict=False):
        places[word].append(place)
    return " ".join(f"'{word}':{','.join(at)}" for word, at in places.items() if len(word) <= LONGEST)


_PLACES = [str(place) for place in range(1, WORDS + 1)]


def _words(text: str) -> list[str]:
    """The words of a text, however they are written. Most are ASCII, which needs no regular expression."""
    text = text.casefold()
    return text.translate(_SEPARATORS).split() if text.isascii() else _WORD.findall(text)


_WORD = re.compile(r"[^\W_]+")
_SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}


def _texts(trace: traces.Trace) -> Iterator[str]:
    """Each text once, however often the history was sent along."""
    seen: set[str] = set()
    for text in chain.from_iterable(map(_step_texts, trace.steps)):
        if text not in seen:
            seen.add(text)
            yield text


def _step_texts(step: traces.Step) -> Iterator[str]:
    for message in (*step.input, *step.output):
        yield message.content
        for call in message.tool_calls:
            yield call.name
            yield from _strings(call.arguments)
    yield step.tool_name
    yield from _strings(step.arguments)
    yield from _strings(step.result)
    yield step.error


def _strings(value: Any) -> Iterable[str]:
    """Yield everything written in a JSON value, its names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif value is not None:
        yield str(value)
