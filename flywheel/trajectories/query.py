"""The filter bar: `bucket:wrong_tool version:6 -env:dev latency:>2 "meet Bako"`.

Terms are joined by "and"; `-` in front turns one around; `a,b` or `(a OR b)` means either. Words without a field are
looked for in the request. A field or value that does not exist is a problem with a suggestion, never dropped silently.
Rollouts are left out unless `source:` or `trace:` asks for them.
"""

import difflib
import functools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from flywheel.trajectories.models import Label, Outcome, Source, Trajectory

_TERM = re.compile(
    r"""(?P<minus>-?)(?:(?P<field>[a-z][a-z_]*(?:\.[\w.-]+)?):(?!//))?
        (?:"(?P<quoted>[^"]*)"|\((?P<either>[^()]*)\)|(?P<bare>[^\s"]\S*)?)""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"(?P<sign>>=|<=|>|<|=)?(?P<value>\d{1,12}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h|k)?")
_RANGE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\.\.(\d{1,12}(?:\.\d{1,9})?)")
_LATELY = re.compile(r"(\d{1,5})(m|h|d|w)")
_LOOKUPS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte", "=": "exact", None: "exact"}
_ID = re.compile(r"[0-9a-fA-F-]{16,64}")


class _Problem(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Term:
    """One term as it was written, and the bar without it: a chip and what its cross leads to."""

    text: str
    without: str


@dataclass(slots=True)
class Query:
    text: str
    where: Q = field(default_factory=Q)
    terms: list[Term] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def apply(self, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
        """The rows that match; none at all while the query has a problem."""
        if self.problems:
            return rows.none()
        return rows.alias(all_tokens=Coalesce(F("tokens_in"), 0) + Coalesce(F("tokens_out"), 0)).filter(self.where)


def parse(text: str) -> Query:
    text = " ".join(text.replace("\0", "").split())
    query = Query(text)
    matches = [match for match in _TERM.finditer(text) if match[0].strip()]
    asks_for_source = False
    for match in matches:
        query.terms.append(Term(match[0], " ".join((text[: match.start()] + text[match.end() :]).split())))
        asks_for_source |= match["field"] in ("source", "trace")
        try:
            condition = _term(match)
        except _Problem as problem:
            query.problems.append(str(problem))
        else:
            query.where &= ~condition if match["minus"] else condition
    if not asks_for_source:
        query.where &= ~Q(source=Source.ROLLOUT)
    return query


def looks_like_an_id(text: str) -> str:
    """The trace id that somebody pasted into the bar, or an empty string."""
    text = text.strip().removeprefix("trace:")
    return text.replace("-", "").lower() if _ID.fullmatch(text) else ""


def _term(match: re.Match[str]) -> Q:
    name = match["field"]
    if name is None:
        words = match["quoted"] or match["either"] or match["bare"]
        return Q(title__icontains=words) if words else Q()
    key, _, rest = name.partition(".")
    if key not in FIELDS or (rest and key != "meta"):
        near = difflib.get_close_matches(key, FIELDS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(FIELDS)}."
        raise _Problem(f'There is no field {name}. {hint} To look for the text itself, write "{match[0]}" in quotes.')
    if match["quoted"] is not None:
        values = [match["quoted"]]
    elif match["either"] is not None:
        values = [value.strip() for value in re.split(r"\bOR\b|,", match["either"])]
    else:
        values = [value.strip() for value in (match["bare"] or "").split(",")]
    if not any(values):
        raise _Problem(f"{name}: has no value. {FIELDS[key].help}.")
    conditions = [_metadata(rest, value) if rest else FIELDS[key].condition(value) for value in values if value]
    return functools.reduce(operator.or_, conditions)


@dataclass(frozen=True, slots=True)
class Field:
    condition: Callable[[str], Q]
    help: str


def _is(column: str, empty: str = "none") -> Callable[[str], Q]:
    return lambda value: Q(**{column: "" if value == empty else value})


def _one_of(column: str, choices: dict[str, Any]) -> Callable[[str], Q]:
    def condition(value: str) -> Q:
        if value not in choices:
            near = difflib.get_close_matches(value, choices, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(choices)}."
            raise _Problem(f"{column}:{value} is no value. {hint}")
        chosen = choices[value]
        return Q(**{f"{column}__isnull": True}) if chosen is None else Q(**{column: chosen})

    return condition


def _number(name: str, column: str, units: dict[str, float] | None = None) -> Callable[[str], Q]:
    scale = units or {"": 1, "k": 1000}

    def condition(value: str) -> Q:
        if between := _RANGE.fullmatch(value):
            low, high = (float(bound) * scale[""] for bound in between.groups())
            return Q(**{f"{column}__gte": low, f"{column}__lte": high})
        match = _NUMBER.fullmatch(value)
        if match is None or (match["unit"] or "") not in scale:
            raise _Problem(f"{name}:{value} is not a number. Write {name}:>2, {name}:<=2, {name}:1..2.")
        return Q(**{f"{column}__{_LOOKUPS[match['sign']]}": float(match["value"]) * scale[match["unit"] or ""]})

    return condition


def _moment(name: str, lookup: str) -> Callable[[str], Q]:
    def condition(value: str) -> Q:
        return Q(**{f"started_at__{lookup}": _when(name, value)})

    return condition


def _when(name: str, value: str) -> datetime:
    if lately := _LATELY.fullmatch(value):
        unit = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[lately[2]]
        return timezone.now() - timedelta(**{unit: int(lately[1])})
    try:
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        raise _Problem(f"{name}:{value} is not a time. Write {name}:7d, {name}:24h or {name}:2026-01-31.") from None


def _version(value: str) -> Q:
    number = value.removeprefix("v")
    if number.isascii() and number.isdigit() and len(number) < 10:
        return Q(version__number=int(number)) | Q(version=None, version_label__in=(number, f"v{number}"))
    return Q(version_label=value)


def _has(value: str) -> Q:
    if value not in HAS:
        near = difflib.get_close_matches(value, HAS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(HAS)}."
        raise _Problem(f"has:{value} is no value. {hint}")
    return HAS[value]


def _metadata(key: str, value: str) -> Q:
    if not key:
        raise _Problem("meta: needs a key. Write meta.region:eu.")
    condition = Q(metadata__contains={key: value})
    if re.fullmatch(r"-?\d{1,15}", value):
        condition |= Q(metadata__contains={key: int(value)})
    return condition


def _trace(value: str) -> Q:
    return Q(trace_id__startswith=value.replace("-", "").lower())


HAS = {
    "intervention": ~Q(interventions=[]),
    "error": Q(error_count__gt=0),
    "label": ~Q(label=""),
    "proposal": ~Q(proposed_bucket=""),
    "outcome": Q(outcome__isnull=False),
    "cost": Q(cost_usd__isnull=False),
    "version": Q(version__isnull=False),
    "session": ~Q(session_id=""),
    "tools": ~Q(tool_names=[]),
}

FIELDS: dict[str, Field] = {
    "bucket": Field(
        lambda value: Q(label_bucket=value) | Q(label="", proposed_bucket="" if value == "none" else value),
        "The bucket that a person or else a detector gave, such as bucket:wrong_tool",
    ),
    "outcome": Field(
        _one_of("outcome", {**{item.value: item.value for item in Outcome}, "unknown": None}),
        "outcome:success, outcome:failed or outcome:unknown",
    ),
    "version": Field(_version, "A version's number, such as version:6"),
    "agent": Field(lambda value: Q(agent__name=value) | Q(agent_name=value), "An agent's name"),
    "tool": Field(lambda value: Q(tool_names__contains=[value]), "A tool that was called, such as tool:email.send"),
    "label": Field(
        _one_of("label", {**{item.value: item.value for item in Label}, "none": ""}),
        "label:failure, label:pass or label:none",
    ),
    "source": Field(
        _one_of("source", {item.value: item.value for item in Source}),
        "source:production, source:import or source:rollout",
    ),
    "session": Field(_is("session_id"), "A session's id"),
    "user": Field(_is("user_id"), "A user's id"),
    "env": Field(_is("environment"), "The deployment environment, such as env:production"),
    "tag": Field(lambda value: Q(tags__contains=[value]), "A tag"),
    "trace": Field(_trace, "A trace id or its beginning; rollouts are found too"),
    "has": Field(_has, f"has: takes {', '.join(HAS)}"),
    "latency": Field(
        _number("latency", "latency_ms", {"": 1000, "s": 1000, "ms": 1, "m": 60_000, "h": 3_600_000}),
        "Seconds: latency:>2, latency:<500ms",
    ),
    "steps": Field(_number("steps", "step_count"), "steps:>10"),
    "errors": Field(_number("errors", "error_count"), "errors:>0"),
    "tokens": Field(_number("tokens", "all_tokens"), "Tokens in and out: tokens:>2k"),
    "cost": Field(_number("cost", "cost_usd"), "Dollars: cost:>0.01"),
    "score": Field(_number("score", "proposed_score"), "How sure the detector is: score:>0.8"),
    "after": Field(_moment("after", "gte"), "after:7d, after:2026-01-31"),
    "before": Field(_moment("before", "lt"), "before:24h, before:2026-01-31"),
    "meta": Field(lambda value: _metadata("", value), "meta.<key>:<value>, such as meta.region:eu"),
}
