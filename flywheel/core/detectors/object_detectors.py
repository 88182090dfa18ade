"""Right form, wrong object: the id that was acted on is real, and not of the thing that the request means.

Told from rows that the agent was shown before it acted: what the request says (which of several, of whom, on which
day, only what lies ahead) against the row that has the id, and the other rows.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from flywheel.core.detectors.request_words import Now, Wish, asks_for_change, now, telling, wish, words
from flywheel.core.detectors.scene import ID, LONG, LOOKS_UP, MANY, Found, Scene, acts, called, quoted
from flywheel.core.traces.episodes import Call

SHORT_FIELD = 100
"""Characters of a field that may name a thing; a longer one is its content."""
MOST_ROWS = 1_000
"""Things that are remembered of a run."""


@dataclass(frozen=True, slots=True)
class Row:
    """A thing that the agent was shown."""

    ids: frozenset[tuple[str, str]]
    """By the names under which it has them; some may be those of other things."""
    words: frozenset[str]
    when: datetime | None
    shown: str


@dataclass(frozen=True, slots=True)
class Act:
    """A call that changed the thing of a row."""

    call: Call
    row: Row
    id: str
    others: list[Row]
    """The other rows that were shown before."""


def wrong_object(scene: Scene) -> Iterator[Found]:
    changes = list(_acts(scene)) if scene.trace.outcome != "success" else []
    if not changes:
        return
    told = now(scene.episode.messages)
    requests = [(at, each.content) for at, each in enumerate(scene.episode.messages) if each.role == "user"]
    done: dict[tuple[int, str], str] = {}
    given = frozenset(word for act in changes for value in _strings(act.call) for word in words(value))
    for act in changes:
        begun, request = max((each for each in requests if each[0] < act.call.at), default=(-1, ""))
        meant = wish(request)
        if not request or act.id in request:
            continue
        before = done.setdefault((begun, act.call.name), act.id)
        reason = _why(act, meant, before, told, given)
        if reason:
            yield (
                act.call.step,
                0.9,
                f"{called(act.call)} was given {quoted(act.id, 40)}, which is {quoted(act.row.shown)}; {reason}. "
                f"The user had asked {quoted(request)}.",
            )


def nothing_done(scene: Scene) -> Iterator[Found]:
    """Runs in which what was meant was shown, and the agent tried nothing and ended with words."""
    closing, last, calls = scene.episode.closing, scene.episode.last, scene.episode.calls[:MANY]
    requests = [each.content for each in scene.episode.messages if each.role == "user"]
    if len(requests) != 1 or not last or not closing.strip() or "?" in closing or scene.trace.outcome == "success":
        return
    if not asks_for_change(requests[0]) or any(not LOOKS_UP.search(call.name) for call in calls):
        return
    meant, told = wish(requests[0]), now(scene.episode.messages)
    if not (meant.ordinal or meant.is_future or meant.days or meant.weekdays):
        return
    said = telling(meant.text)
    rows = [row for call in calls if call.observation for row in _rows(call.observation.text)]
    for row in rows:
        ahead = not meant.is_future or (told is not None and row.when is not None and row.when >= told[1])
        if said & row.words and ahead and not _misses(row.when, meant, told):
            yield (
                last.step,
                0.85,
                f"It was shown {quoted(row.shown)}, tried nothing, and closed with {quoted(closing)}. "
                f"The user had asked {quoted(meant.text)}.",
            )
            return


def _misses(when: datetime | None, meant: Wish, told: Now) -> str:
    """Say why a thing at this time is not meant; empty where it may be."""
    if when is None:
        return ""
    if meant.days and (when.month, when.day) not in meant.days:
        return "that is another day than the one named"
    if meant.weekdays and when.weekday() not in meant.weekdays:
        return "that is another day of the week than the one named"
    if meant.is_future and told and when < told[0]:
        return "that is past, and what lies ahead was meant"
    if (meant.before and when.time() >= meant.before) or (meant.after and when.time() < meant.after):
        return "that is at another time of the day than was said"
    return ""


def _why(act: Act, meant: Wish, before: str, told: Now, given: frozenset[str]) -> str:
    """Say why this is not the one that is meant; empty where it may be."""
    when = act.row.when
    if (reason := _misses(when, meant, told)) and not (when and _gives(act.call, when)):
        return reason
    if meant.is_one and before != act.id:
        return f"one was meant, and it had acted on {quoted(before, 40)} before"
    said = telling(meant.text) - given
    same = act.row.words & said
    if better := next((row for row in act.others if (row.words & said) > same), None):
        more = sorted((better.words & said) - same)
        return f"{quoted(better.shown)} was shown, too, which fits {quoted(' '.join(more), 60)}"
    fitting = [row.when for row in act.others if row.when and (row.words & said) >= same]
    if when and meant.is_one and _is_beaten(when, fitting, meant, told):
        return f"it is not the {meant.ordinal} one of those shown"
    return ""


def _is_beaten(when: datetime, others: list[datetime], meant: Wish, told: Now) -> bool:
    """Whether another one is the first, last or next rather than this one."""
    if meant.days:
        others = [each for each in others if (each.month, each.day) in meant.days]
    if meant.ordinal == "first":
        return any(each < when for each in others)
    if meant.ordinal == "last":
        is_past = told is not None and when < told[0]
        return any(each > when and not (told and is_past and each >= told[0]) for each in others)
    return told is not None and any(told[1] <= each < when for each in others)


def _gives(call: Call, when: datetime) -> bool:
    """The day is one that the call itself sets."""
    return any(when.date().isoformat() in value for value in _strings(call))


def _strings(call: Call) -> list[str]:
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    return [value for name, value in arguments.items() if isinstance(value, str) and not ID.search(name)]


def _acts(scene: Scene) -> Iterator[Act]:
    """The calls that changed something that a row told of, each with what was shown before it."""
    calls = scene.episode.calls[:MANY]
    if not any(acts(call) for call in calls):
        return
    rows: list[Row] = []
    for call in calls:
        given = call.arguments if acts(call) and isinstance(call.arguments, dict) else {}
        ids = [(name, str(value)) for name, value in given.items() if ID.search(name) and isinstance(value, str | int)]
        wanted = {*ids, ("id", ids[0][1])} if len(ids) == 1 else set()
        mine = [row for row in rows if wanted & row.ids]
        # Several things with one id have it of something else: that of their owner, say.
        if len({row.ids for row in mine}) == 1:
            yield Act(call, mine[0], ids[0][1], [row for row in rows if not wanted & row.ids])
        if call.observation and not acts(call) and len(rows) < MOST_ROWS:
            rows += _rows(call.observation.text)


def _rows(text: str) -> list[Row]:
    """The things in an answer: the objects that have an id, in a list or below one name."""
    if text.lstrip()[:1] not in ("[", "{") or len(text) > LONG:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    for value in found.values() if isinstance(found, dict) else ():
        if isinstance(value, list):
            found = value
            break
    return [row for each in (found if isinstance(found, list) else [found]) if (row := _row(each))]


def _row(value: Any) -> Row | None:
    if not isinstance(value, dict):
        return None
    plain = {str(name): str(each) for name, each in value.items() if isinstance(each, str | int)}
    ids = frozenset((name, each) for name, each in plain.items() if ID.search(name))
    fields = [each for name, each in plain.items() if not ID.search(name) and len(each) <= SHORT_FIELD]
    if not ids or not fields:
        return None
    when = next((found for each in fields if (found := _time(each))), None)
    return Row(ids, frozenset(word for each in fields for word in words(each)), when, " · ".join(fields))


@lru_cache(maxsize=1024)
def _time(text: str) -> datetime | None:
    if not text[:4].isdecimal() or len(text) < 10:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None
