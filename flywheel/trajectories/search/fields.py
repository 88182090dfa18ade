"""The fields of the filter bar: what each is called, and what its values mean as a condition on trajectories."""

import difflib
import functools
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import CharField, Exists, Lookup, OuterRef, Q, TextField
from django.db.models import Value as Constant
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce
from django.utils import timezone

from flywheel.edge.numbers import number
from flywheel.trajectories.formats.semantics import attribute_plans
from flywheel.trajectories.formats.semantics.sent_attributes import LONGEST_KEY, LONGEST_VALUE
from flywheel.trajectories.models import Comment, Feedback, Label, ModelCall, Outcome, Source
from flywheel.trajectories.search import ranges
from flywheel.trajectories.search.grammar import Value

_COUNT = {"": 1.0, "k": 1000.0}
_SECONDS = {"": 1000.0, "s": 1000.0, "ms": 1.0, "m": 60_000.0, "h": 3_600_000.0}


class Problem(ValueError):
    """The value is none of the field's; the message says what would be."""


def nearest(text: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(text, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."


@dataclass(frozen=True, slots=True)
class Field:
    condition: Callable[[str, Value], Q]
    """Of a key (empty for most fields) and one value. Raises Problem."""
    help: str


# Kinds of field


class _Like(Lookup):
    """`column LIKE pattern`, with PostgreSQL's own `%` and `_`."""

    lookup_name = "like"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        left, left_params = self.process_lhs(compiler, connection)
        return f"{left} LIKE %s", (*left_params, self.rhs)


class _AnyLike(Lookup):
    """Whether an item of the array is like the pattern. Most rows are told apart by their items in one text, which is
    much cheaper than looking at each.

    As a CASE, which the planner takes for true of every second row, so that it walks a list in its order: of patterns
    it guesses that next to nothing is like them, and would read and sort the whole table.
    """

    lookup_name = "any_like"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        left, left_params = self.process_lhs(compiler, connection)
        somewhere = f"array_to_string({left}, ' ') LIKE %s"
        exactly = f"EXISTS (SELECT 1 FROM unnest({left}) AS item WHERE item LIKE %s)"  # noqa: S608
        params = (*left_params, f"%{self.rhs}%", *left_params, self.rhs)
        return f"CASE WHEN {somewhere} THEN {exactly} ELSE false END", params


class _Sent(Lookup):
    """Whether an item of the array is, or begins like, what a tsquery says (`_sent`): a GIN index of them finds
    beginnings, one of the array itself does not."""

    lookup_name = "sent"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        left, left_params = self.process_lhs(compiler, connection)
        return f"array_to_tsvector({left}) @@ %s::tsquery", (*left_params, self.rhs)


class _SentOften(_Sent):
    """The same of what many rows have. As a CASE, as above: of beginnings the planner guesses that hardly a row has
    them, and would read and sort all that do."""

    lookup_name = "sent_often"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        condition, params = super().as_sql(compiler, connection)
        return f"CASE WHEN {condition} THEN true ELSE false END", params


CharField.register_lookup(_Like)
TextField.register_lookup(_Like)
ArrayField.register_lookup(_AnyLike)
ArrayField.register_lookup(_Sent)
ArrayField.register_lookup(_SentOften)


def _glob(value: Value) -> str:
    """The pattern of LIKE for a value with `*`, or an empty string when it has none."""
    if value.is_exact or "*" not in value.text:
        return ""
    return re.sub(r"([\\%_])", r"\\\1", value.text).replace("*", "%")


def _no_comparison(name: str, value: Value) -> None:
    if not value.is_exact and ranges.COMPARES.fullmatch(value.text):
        raise Problem(f"{name} cannot be compared. To look for {value.text} itself, write it in quotes.")


def _text(name: str, *columns: str, none: bool = False) -> Callable[[str, Value], Q]:
    """Exactly this text, or a glob, in one of the columns; with `none`, that word finds the rows without any."""

    def condition(_: str, value: Value) -> Q:
        _no_comparison(name, value)
        if none and value == Value("none"):
            return Q(**dict.fromkeys(columns, ""))
        pattern = _glob(value)
        lookup, wanted = ("__like", pattern) if pattern else ("", value.text)
        return functools.reduce(operator.or_, [Q(**{f"{column}{lookup}": wanted}) for column in columns])

    return condition


def _items(name: str, column: str) -> Callable[[str, Value], Q]:
    """One of the items of an array."""

    def condition(_: str, value: Value) -> Q:
        _no_comparison(name, value)
        pattern = _glob(value)
        return Q(**{f"{column}__any_like": pattern} if pattern else {f"{column}__contains": [value.text]})

    return condition


def _one_of(name: str, choices: dict[str, Q]) -> Callable[[str, Value], Q]:
    def condition(_: str, value: Value) -> Q:
        if value.text not in choices:
            raise Problem(f"{name}:{value.text} is no value. {nearest(value.text, choices)}")
        return choices[value.text]

    return condition


def _number(name: str, column: str, units: dict[str, float] = _COUNT) -> Callable[[str, Value], Q]:
    def condition(_: str, value: Value) -> Q:
        found = ranges.of_numbers(value.text, units)
        if found is None:
            raise Problem(f"{name}:{value.text} is not a number. Write {name}:>2, {name}:<=2, {name}:1..2.")
        return found.of(column)

    return condition


def _moment(name: str, sign: str = "") -> Callable[[str, Value], Q]:
    def condition(_: str, value: Value) -> Q:
        found = ranges.of_time(sign + value.text, timezone.now())
        if found is None:
            raise Problem(f"{name}:{value.text} is not a time. Write {name}:7d, {name}:24h or {name}:2026-01-31.")
        return found.of("started_at")

    return condition


# Fields of their own


def _tokens(_: str, value: Value) -> Q:
    return _number("tokens", "all_tokens")("", value) & ~Q(tokens_in=None, tokens_out=None)


def _bucket(_: str, value: Value) -> Q:
    is_label, is_proposal = _text("bucket", "label_bucket"), _text("bucket", "proposed_bucket", none=True)
    labelled, proposed = is_label("", value), Q(label="") & is_proposal("", value)
    if not _glob(value) and value != Value("none"):
        # As the indexes say it that hold what is labelled and what waits: a rare bucket is found in them.
        labelled, proposed = labelled & Q(label=Label.FAILURE), proposed & ~Q(proposed_bucket="")
    return labelled | proposed


def _version(_: str, value: Value) -> Q:
    text = value.text.removeprefix("v")
    if (version := number(text)) is not None:
        return Q(version__number=version) | Q(version=None, version_label__in=(text, f"v{text}"))
    return _text("version", "version_label")("", value)


def _run(_: str, value: Value) -> Q:
    if (run := number(value.text.removeprefix("r-"))) is None:
        raise Problem(f"run:{value.text} is no training run. Write its number: run:12.")
    return Q(training_attempt__run=run)


def _metadata(key: str, value: Value) -> Q:
    if pattern := _glob(value):
        written = Coalesce(KeyTextTransform(key, "metadata"), Constant("", output_field=TextField()))
        return Q(_Like(written, pattern), metadata__has_key=key)
    condition = Q(metadata__contains={key: value.text})
    if (whole := number(value.text, least=-(10**15), most=10**15)) is not None:
        condition |= Q(metadata__contains={key: whole})
    if value.text in ("true", "false"):
        condition |= Q(metadata__contains={key: value.text == "true"})
    return condition


_OWN = {
    "agent": "agent", "version": "version", "session_id": "session", "user_id": "user", "environment": "env",
    "tags": "tag", "tool_name": "tool",
}  # fmt: skip
"""The fields that hold what attributes of some names say."""


def own_field(key: str) -> str:
    """The field that holds what an attribute of this name says, such as `env`; empty where none does."""
    return _OWN.get(attribute_plans.fact_of(key), "")


def _attribute(key: str, value: Value) -> Q:
    if own := own_field(key):
        return FIELDS[own].condition("", value)
    if name := attribute_plans.metadata_of(key):
        return _metadata(name, value)
    if attribute_plans.reads(key):
        raise Problem(f"attr.{key}: attributes of this name are read as what a step says, and cannot be filtered by.")
    _no_comparison(f"attr.{key}", value)
    pattern = _glob(value)
    if not pattern:
        return _sent(f"{key}={value.text}")
    if set(pattern) == {"%"}:
        return _sent(key)
    begins, _, rest = value.text.partition("*")
    found = _sent(f"{key}={begins}", begins=True) if begins else _sent(key)
    name = re.sub(r"([\\%_])", r"\\\1", key)
    return found & Q(attributes__any_like=f"{name}={pattern}") if set(rest) - {"*"} else found


def _sent(item: str, *, begins: bool = False) -> Q:
    """Whoever sent this item, or one that begins so."""
    if len(item) > LONGEST_KEY + 1 + LONGEST_VALUE:
        return Q(pk__in=[])
    quoted = item.replace("\\", "\\\\").replace("'", "''")
    return Q(attributes__sent=f"'{quoted}'{BEGINNING}" if begins else f"'{quoted}'")


BEGINNING = ":*"
"""Ends a tsquery for what begins with its word."""


def _feedback(key: str, value: Value) -> Q:
    """Feedback that holds now: by its value, or by its number where a comparison is written: `feedback_said` has it."""
    rows = Feedback.objects.filter(
        project=OuterRef("project"), trace_id=OuterRef("trace_id"), current=True, key__iexact=key
    )
    found = Q(value=value.text)
    if (numbers := ranges.of_numbers(value.text, {"": 1.0})) is not None:
        found = numbers.of("score") if numbers.low != numbers.high else found | numbers.of("score")
    elif value.text.lower() in ("true", "false"):
        found |= Q(value=value.text.lower() == "true")
    return Q(feedback_count__gt=0) & Q(Exists(rows.filter(found)))


def _trace(_: str, value: Value) -> Q:
    begins = value.text.replace("-", "").lower()
    calls = ModelCall.objects.filter(trace_id__startswith=begins).values("trajectory")
    return Q(trace_id__startswith=begins) | Q(pk__in=calls)


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
    "feedback": Q(feedback_count__gt=0),
    "comment": Q(
        Exists(Comment.objects.filter(project=OuterRef("project"), trajectory=OuterRef("pk"), deleted_at=None))
    ),
}

KEYED = ("attr", "meta", "feedback")
"""Fields that take a key of the sender's own."""

FIELDS: dict[str, Field] = {
    "bucket": Field(_bucket, "The category, from a reviewer or a detector: bucket:wrong_tool, bucket:none"),
    "outcome": Field(
        _one_of("outcome", {**{item.value: Q(outcome=item.value) for item in Outcome}, "unknown": Q(outcome=None)}),
        "outcome:success, outcome:failed or outcome:unknown",
    ),
    "version": Field(_version, "A version's number, such as version:6"),
    "agent": Field(_text("agent", "agent__name", "agent_name"), "An agent's name: agent:support, agent:mail*"),
    "tool": Field(_items("tool", "tool_names"), "A tool that was called: tool:email.send, tool:calendar.*"),
    "label": Field(
        _one_of("label", {**{item.value: Q(label=item.value) for item in Label}, "none": Q(label="")}),
        "label:failure, label:pass or label:none",
    ),
    "source": Field(
        _one_of("source", {item.value: Q(source=item.value) for item in Source}),
        "source:production, source:import, source:rollout (of evals) or source:training",
    ),
    "run": Field(_run, "The training run whose attempts these are: run:12"),
    "reward": Field(_number("reward", "training_attempt__reward"), "Of attempts in training: reward:>0.5"),
    "session": Field(_text("session", "session_id", none=True), "A session's id"),
    "user": Field(_text("user", "user_id", none=True), "A user's id"),
    "env": Field(_text("env", "environment", none=True), "The deployment environment, such as env:production"),
    "tag": Field(_items("tag", "tags"), "A tag"),
    "trace": Field(_trace, "A trace id or its start, also of a part; finds rollouts too"),
    "has": Field(_one_of("has", HAS), f"has: takes {', '.join(HAS)}"),
    "latency": Field(_number("latency", "latency_ms", _SECONDS), "Seconds: latency:>2, latency:<500ms"),
    "steps": Field(_number("steps", "step_count"), "steps:>10, steps:3..5"),
    "errors": Field(_number("errors", "error_count"), "errors:>0"),
    "tokens": Field(_tokens, "Tokens in and out: tokens:>2k"),
    "cost": Field(_number("cost", "cost_usd"), "Dollars: cost:>0.01"),
    "score": Field(_number("score", "proposed_score"), "How sure the detector is: score:>0.8"),
    "started": Field(
        _moment("started"), "started:7d (lately), started:2026-01-31, started:>2026-01, started:2026-01..2026-03"
    ),
    "after": Field(_moment("after", ">="), "From then on: after:7d, after:2026-01-31"),
    "before": Field(_moment("before", "<"), "Until then: before:24h, before:2026-01-31"),
    "attr": Field(_attribute, "attr.<key>:<value>, an attribute that was sent: attr.app.release:2026.11-rc7"),
    "meta": Field(_metadata, "meta.<key>:<value>, such as meta.region:eu"),
    "feedback": Field(_feedback, "feedback.<key>:<value>, such as feedback.helpful:true, feedback.score:>0.5"),
}
