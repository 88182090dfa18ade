"""The filter bar: `bucket:wrong_tool version:6 -env:dev latency:>2 "meet Bako"`. `grammar.py` says how it is written.

Here is what it means: a field and a value become a condition on trajectories, words without a field are looked for by
`said`. A field or value that does not exist is a problem with a suggestion, as is text without a word, never dropped
silently; several values mean any of them. Rollouts are left out unless a field asks for them, such as `source:`.
"""

import functools
import operator
import re
from dataclasses import dataclass, field, replace

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.search import full_text, grammar, ranges
from flywheel.trajectories.search.fields import FIELDS, HAS, KEYED, Problem, nearest
from flywheel.trajectories.search.grammar import And, Node, Not, Or, Words
from flywheel.trajectories.search.project_scope import narrowed

__all__ = ["FIELDS", "HAS", "Query", "Term", "contains_text", "looks_like_an_id", "parse", "settled"]

_ID = re.compile(r"[0-9a-fA-F-]{16,64}")
_TIMES = ("started", "after", "before")


@dataclass(frozen=True, slots=True)
class Term:
    """One part as it was written, and the bar without it: a chip and what its cross leads to."""

    text: str
    without: str


@dataclass(slots=True)
class Query:
    text: str
    where: Q = field(default_factory=Q)
    terms: list[Term] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    further: str = ""
    """The bar as a term can be added to it that has to hold too: what "or" joins is in parentheses, quotes closed."""
    counts_tokens: bool = False
    walks: bool = False
    """Whether it may look at one trajectory after the other for attributes: `walk_limit.py` says for how long."""

    def apply(self, rows: QuerySet[Trajectory], project: int | None = None) -> QuerySet[Trajectory]:
        """The rows that match; none at all while the query has a problem. Where all rows are of one project, saying
        its key makes them found faster."""
        if self.problems:
            return rows.none()
        if self.counts_tokens:
            rows = rows.alias(all_tokens=Coalesce(F("tokens_in"), 0) + Coalesce(F("tokens_out"), 0))
        return rows.filter(self.where if project is None else narrowed(self.where, project))


def parse(text: str) -> Query:
    text = " ".join(text.replace("\0", "").split())
    query = Query(text)
    try:
        read = grammar.parse(text)
    except grammar.Unreadable as error:
        query.problems.append(str(error))
        query.further = text
        return query
    parts = read.parts
    query.terms = [Term(part, " ".join((*parts[:at], *parts[at + 1 :]))) for at, part in enumerate(parts)]
    query.further = grammar.show(And((read.node,)))
    query.where = _condition(read.node, query)
    asked = {leaf.field for leaf in grammar.terms_of(read.node) if isinstance(leaf, grammar.Term)}
    query.counts_tokens = "tokens" in asked
    query.walks = _walks(read.node)
    if not asked & {"source", "trace", "run", "reward"}:
        query.where &= ~Q(source__in=Source.ATTEMPTS)
    return query


def looks_like_an_id(text: str) -> str:
    """The trace id that somebody pasted into the bar, or an empty string."""
    text = text.strip().removeprefix("trace:")
    return text.replace("-", "").lower() if _ID.fullmatch(text) else ""


def settled(text: str) -> str:
    """The filter with times that are counted from now (`after:7d`) written out, so that it means the same later."""
    query = parse(text)
    if query.problems:
        return query.text
    return grammar.show(_settled(grammar.parse(query.text).node))


def _settled(node: Node) -> Node:
    match node:
        case And(parts) | Or(parts):
            return type(node)(tuple(_settled(part) for part in parts))
        case Not(part):
            return Not(_settled(part))
        case grammar.Term() if node.field in _TIMES:
            values = [replace(each, text=ranges.settled(each.text, timezone.now())) for each in node.values]
            if node.field != "started":
                values = [replace(each, text=each.text.removeprefix(">=")) for each in values]
            return replace(node, values=tuple(values))
    return node


def contains_text(words: Words) -> Q:
    """Trajectories that say this: all that is free text goes through here. Raises Problem for text without a word."""
    if (found := full_text.says(words.text)) is None:
        raise Problem(
            f"{grammar.show(words)} holds no letter and no digit, and only words are looked for. Leave it out."
        )
    return found


def _condition(node: Node, query: Query) -> Q:
    """Return the condition on a row; problems with the query are added to its `problems`."""
    match node:
        case And(parts):
            return functools.reduce(operator.and_, [_condition(part, query) for part in parts], Q())
        case Or(parts):
            return functools.reduce(operator.or_, [_condition(part, query) for part in parts])
        case Not(part):
            return ~_condition(part, query)
    try:
        return contains_text(node) if isinstance(node, Words) else _term(node, query)
    except Problem as problem:
        query.problems.append(str(problem))
        return Q()


def _walks(node: Node, *, is_negated: bool = False) -> bool:
    match node:
        case And(parts) | Or(parts):
            return any(_walks(part, is_negated=is_negated) for part in parts)
        case Not(part):
            return _walks(part, is_negated=not is_negated)
        case grammar.Term(field="attr"):
            return is_negated or any(set(value.text) > {"*"} for value in node.values)
    return False


def _term(term: grammar.Term, query: Query) -> Q:
    known, written = FIELDS.get(term.field), grammar.show(term)
    if known is None or (term.key and term.field not in KEYED):
        name = f"{term.field}.{term.key}" if term.key else term.field
        hint = nearest(term.field, FIELDS) if known is None else f"{term.field} takes no key."
        quoted = grammar.quote(written)
        raise Problem(f"There is no field {name}. {hint} To look for the text itself, write {quoted} in quotes.")
    if term.field in KEYED and not term.key:
        raise Problem(f"{term.field}: needs a key. Write {known.help}.")
    values = [value for value in term.values if value.text]
    if not values:
        raise Problem(f"{written} has no value. {known.help}.")
    conditions = [known.condition(term.key, value) for value in values]
    return functools.reduce(operator.or_, conditions)
