"""Words of a request, and what they ask for: which acts, which one of several things, which day.

English only. Where the words tell nothing, nothing is told, and who compares with them keeps quiet.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from flywheel.core.detectors.scene import LONG
from flywheel.core.traces import Message

Now = tuple[datetime, datetime] | None
"""From when to when it may be now, where that was told."""
ACTS: dict[str, tuple[str, str]] = {
    "read": (
        "show find list read look lookup search check see tell summarise summarize count get fetch view browse query "
        "retrieve compare explain describe",
        "what when which who where how many whether",
    ),
    "delete": (
        "delete remove cancel erase drop discard clear purge trash wipe destroy revoke unsubscribe void terminate burn",
        "rid clean empty archive withdraw free off call",
    ),
    "create": (
        "create add make schedule book insert register open plan arrange organise organize generate upload",
        "set put new draft file start enter record log write build prepare plot reserve",
    ),
    "update": (
        "update change move rename reschedule postpone delay edit modify set assign reassign mark adjust replace swap "
        "exchange extend shorten",
        "push shift give take transfer correct bring fix complete close reopen turn switch increase decrease raise "
        "lower put hand advance prioritise prioritize amend cover make back forward finish start",
    ),
    "send": (
        "send notify invite post announce publish message",
        "sent mail email write tell let know inform ask share contact thank remind report text forward pass reply",
    ),
    "reply": ("reply respond", "answer back email mail write tell send let thank confirm"),
    "forward": ("forward", "pass share send sent give let need mail email"),
    "pay": (
        "pay refund charge reimburse purchase buy credit compensate",
        "order return money send transfer back settle cost get",
    ),
}
"""Kinds of acts: the verbs that tools have in their names, and what else people say who ask for one."""
_STEM = 5
_EVERYBODY = frozenset(("all", "everybody", "everyone", "bulk", "batch", "broadcast"))
_MANY = re.compile(r"\b(all|every\w*|each|both|whole|team|any|bulk|batch|broadcast)\b", re.IGNORECASE)


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]{2,}", text[:LONG].casefold())


def stems(text: str) -> frozenset[str]:
    """Beginnings of its words without their endings: `moved`, `moving` and `move` are one."""
    return frozenset(_stem(word) for word in words(text))


@lru_cache(maxsize=4096)
def _stem(word: str) -> str:
    return re.sub(r"(?<=\w{3})(ing|ed|es|e|s|y)$", lambda end: "i" if end[0] == "y" else "", word)[:_STEM]


_VERBS = {kind: stems(verbs) for kind, (verbs, _) in ACTS.items()}
_WORDS = {kind: stems(f"{verbs} {more}") for kind, (verbs, more) in ACTS.items()}


def asks_for(texts: Sequence[str], name: str, description: str, known: frozenset[str]) -> bool | None:
    """Whether somebody who says this asks for the tool of this name; None where that cannot be told.

    By the kind of act that its name tells, else by the words of its description that no tool which only reads has
    (`known`).
    """
    said = stems(" ".join(texts))
    parts = words(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition("__")[2].rpartition(".")[2]))
    kinds = [kind for kind, verbs in _VERBS.items() if kind != "read" and stems(" ".join(parts)) & verbs]
    wanted = frozenset().union(*(_WORDS[kind] for kind in kinds)) if kinds else stems(f"{name} {description}") - known
    if not wanted or not any(said & each for each in _WORDS.values()):
        return None
    if _EVERYBODY.intersection(parts) and not any(_MANY.search(text[:LONG]) for text in texts):
        return False
    return bool(said & wanted)


def asks_for_change(text: str) -> bool:
    """Whether it asks, without a condition, for something to be changed."""
    said = stems(text)
    return any(said & verbs for kind, verbs in _VERBS.items() if kind != "read") and not _IF.search(text[:LONG])


_IF = re.compile(r"\b(if|unless|in case|whether)\b", re.IGNORECASE)


# Which one

_SMALL = frozenset(
    words(
        "about all an and any are as at be but by can could do for from had has have he her his if in into is it its "
        "me most my need next not of off on one or our out please she so that the their them then there these they "
        "this to up us was we what when which who will with would you your thing things meeting meetings event events "
        "email emails mail task tasks appointment appointments message messages item items order orders"
    )
)
"""Words that tell no thing from another."""
_UNITS = (
    "second|minute|hour|day|week|weekend|month|quarter|year|night|monday|tuesday|wednesday|thursday|friday|saturday"
)
_UNIT = rf"(?!\s+(?:(?:\d+|few|couple|two|three|name|time|free|available|slot|sunday)|(?:{_UNITS})s?)(?![-\w]))"
_ORDINALS = {
    "last": re.compile(rf"\b(last|latest|most recent|newest){_UNIT}\b", re.IGNORECASE),
    "first": re.compile(rf"\b(first|earliest|oldest){_UNIT}\b", re.IGNORECASE),
    "next": re.compile(rf"\b(next|upcoming){_UNIT}\b", re.IGNORECASE),
}
_FUTURE = re.compile(rf"\b(next|upcoming|future|coming){_UNIT}\b", re.IGNORECASE)
_MONTHS = words("january february march april may june july august september october november december")
_DAYS = words("monday tuesday wednesday thursday friday saturday sunday")
_ON_DATE = re.compile(
    rf"(?<!due )\bon (?:the )?({'|'.join(_MONTHS)}) (\d{{1,2}})(?:st|nd|rd|th)?\b(?! ?:)", re.IGNORECASE
)
_ON_DAY = re.compile(rf"(?<!due )\bon ({'|'.join(_DAYS)})\b", re.IGNORECASE)
_BEFORE = re.compile(r"\bbefore (\d{1,2})(?::(\d{2}))?\b *([ap]m)?", re.IGNORECASE)
_AFTER = re.compile(r"\bafter (\d{1,2})(?::(\d{2}))?\b *([ap]m)?", re.IGNORECASE)
_NOW = re.compile(
    r"\b(?:today|current|now)\b[^\n.]{0,40}?(\d{4}-\d{2}-\d{2})"
    r"(?:(?:[T ]|[^\n.]{0,30}?\btime is )(\d{2}:\d{2}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Wish:
    """Which thing a request means."""

    text: str
    ordinal: str
    """`last`, `first` or `next` of several; empty where it says none, or more than one of them."""
    is_future: bool
    """Only what lies ahead is meant."""
    days: frozenset[tuple[int, int]]
    """Months and days on which it lies."""
    weekdays: frozenset[int]
    before: time | None
    """It begins before this time of the day; the later reading where morning or afternoon is not said."""
    after: time | None
    """It begins after this time; the earlier reading."""

    @property
    def is_one(self) -> bool:
        """Exactly one thing is meant."""
        return bool(self.ordinal) and not _MANY.search(self.text)


def telling(text: str) -> frozenset[str]:
    """The words that may tell one thing from another."""
    return frozenset(word for word in words(text) if word.isalpha()) - _SMALL


@lru_cache(maxsize=256)
def wish(text: str) -> Wish:
    text = text[:LONG]
    ordinals = [name for name, pattern in _ORDINALS.items() if pattern.search(text)]
    days = {(_MONTHS.index(month.lower()) + 1, int(day)) for month, day in _ON_DATE.findall(text)}
    weekdays = {_DAYS.index(day.lower()) for day in _ON_DAY.findall(text)}
    ordinal = ordinals[0] if len(ordinals) == 1 else ""
    before, after = _clock(_BEFORE, text, is_late=True), _clock(_AFTER, text, is_late=False)
    return Wish(text, ordinal, bool(_FUTURE.search(text)), frozenset(days), frozenset(weekdays), before, after)


def presumes(text: str) -> bool:
    """Whether it speaks of one thing that there is: the last, the latest, the first."""
    meant = wish(text)
    return meant.is_one and meant.ordinal != "next" and asks_for_change(text)


def _clock(pattern: re.Pattern[str], text: str, *, is_late: bool) -> time | None:
    found = pattern.search(text)
    if found is None or int(found[1]) > 23 or int(found[2] or 0) > 59:
        return None
    hour, half = int(found[1]), (found[3] or "").lower()
    if hour <= 12 and (half == "pm" or (not half and is_late and hour < 8)):
        hour = hour % 12 + 12
    return time(0 if half == "am" and hour == 12 else hour, int(found[2] or 0))


def now(messages: Sequence[Message]) -> Now:
    """From when to when it may be now, by what the agent was told before it said anything."""
    for message in messages:
        if message.role == "assistant":
            break
        if found := _NOW.search(message.content[:LONG]):
            try:
                day = date.fromisoformat(found[1])
                clock = time.fromisoformat(found[2]) if found[2] else None
            except ValueError:
                continue
            begin = datetime.combine(day, clock or time())
            return begin, begin if clock else begin + timedelta(days=1)
    return None
