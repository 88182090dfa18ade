"""The wanted end of the state that an attempt leaves behind: the item `state` of a target.

    {"type": "state", "paths": {"/orders/1001/status": "refunded"}, "gone": ["/orders/1002"], "rest": "same"}
    {"type": "state", "query": "SELECT status FROM orders WHERE id = 1001", "rows": [["refunded"]]}

A path is a JSON Pointer (RFC 6901). `rest` says what holds for all else: `any`, the default, or `same`, as it was in
the beginning; a side effect makes the whole score 0. The query is for worlds that keep an SQLite database; such a state
is read as `{table: {key: row}}`.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.digests import DEEPEST, canonical, is_deep
from flywheel.core.envs.environment import Table
from flywheel.core.envs.replay.spoken_answers import Spoken
from flywheel.core.text.normal_form import COMPARISONS, SPACES
from flywheel.core.verifiers import VerifierError

REST = ("any", "same")
_SETTINGS = ("type", "weight", "paths", "gone", "rest", "query", "rows")


@dataclass(frozen=True, slots=True)
class EndState:
    """The states between which an attempt lies."""

    before: Any
    after: Any
    rows: Mapping[str, Any] = field(default_factory=dict)
    """What each query of the target found in the end: `{"rows": [[…]]}` or `{"error": text}`."""
    compare: str = SPACES
    """Which texts are the same, one of `COMPARISONS`."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place of a state that is not as it was."""

    path: str
    before: Any
    after: Any
    is_gone: bool = False
    is_new: bool = False

    @property
    def line(self) -> str:
        return f"{self.path} is gone" if self.is_gone else f"{self.path} is {_shown(self.after)}"


def check(where: str, item: Mapping[str, Any]) -> None:
    """Raise VerifierError, which names the field, for an item that cannot be judged."""
    if unknown := next((name for name in item if name not in _SETTINGS), ""):
        raise VerifierError(f"{where}.{unknown[:60]}: there is no such setting, only {', '.join(_SETTINGS[1:])}")
    paths, gone = item.get("paths", {}), item.get("gone", [])
    if not isinstance(paths, Mapping) or not isinstance(gone, list):
        field = "paths" if not isinstance(paths, Mapping) else "gone"
        raise VerifierError(f"{where}.{field}: expected {'{path: value}' if field == 'paths' else 'a list of paths'}")
    for path in [*paths, *gone]:
        if not isinstance(path, str) or (path and not path.startswith("/")):
            raise VerifierError(f"{where}.paths: {str(path)[:60]!r} is not of the form /orders/1001/status")
    if is_deep(paths):
        raise VerifierError(f"{where}.paths: lists and objects stand in each other more than {DEEPEST} deep")
    if item.get("rest", "any") not in REST:
        raise VerifierError(f"{where}.rest: expected one of {', '.join(REST)}")
    query = item.get("query")
    if query is not None and (not isinstance(query, str) or not query.strip()):
        raise VerifierError(f"{where}.query: expected a query in SQL, as text")
    rows = item.get("rows")
    if (query is None) != (rows is None) or not isinstance(rows, list | None):
        raise VerifierError(f'{where}.rows: expected the rows that the query should find, such as [["refunded"]]')
    if not paths and not gone and query is None and item.get("rest") != "same":
        raise VerifierError(f'{where}.paths: no condition on the state; give paths, a query, or "rest": "same"')


def judge(item: Mapping[str, Any], state: EndState) -> Spoken:
    """The share of what is wanted that holds; whether all else has stayed is `side_effect`'s question."""
    checks: list[str] = []
    for path, wanted in item.get("paths", {}).items():
        value = at(state.after, path)
        if value is MISSING:
            checks.append(f"there is no {path}, wanted {_shown(wanted)}")
        else:
            is_right = same(value, wanted, state.compare)
            checks.append("" if is_right else f"{path} is {_shown(value)}, wanted {_shown(wanted)}")
    checks += ["" if at(state.after, path) is MISSING else f"{path} is still there" for path in item.get("gone", [])]
    if query := item.get("query"):
        checks.append(_query_problem(state.rows.get(query), item["rows"], state.compare))
    wrong = [problem for problem in checks if problem]
    share = 1 - len(wrong) / len(checks) if checks else 1.0
    return Spoken(share, "; ".join(wrong) or "the wanted state")


def side_effect(item: Mapping[str, Any], state: EndState) -> str:
    """The first change beyond those that the item wants, where all else has to stay; empty where there is none."""
    if item.get("rest", "any") != "same":
        return ""
    named = {*item.get("paths", {}), *item.get("gone", [])}
    above = {outer for path in named for outer in _outer(path)}
    found = changes(state.before, state.after, compare=state.compare)
    return next((each.line for each in found if not _is_wanted(each, named, above)), "")


def is_veto(item: Mapping[str, Any]) -> bool:
    """Whether it wants nothing but that nothing changes: who does nothing at all has earned no share by it."""
    return item["type"] == "state" and not any(item.get(name) for name in ("paths", "gone", "query"))


def queries(items: Any) -> list[str]:
    return [item["query"] for item in items if item["type"] == "state" and item.get("query")]


def changes(before: Any, after: Any, path: str = "", depth: int = 0, compare: str = SPACES) -> Iterator[Change]:
    """Yield all that differs, place by place, texts compared as one of `COMPARISONS` says."""
    if depth < DEEPEST and isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            inner = f"{path}/{_escaped(str(key))}"
            if key not in after:
                yield Change(inner, before[key], None, is_gone=True)
            elif key not in before:
                yield Change(inner, None, after[key], is_new=True)
            else:
                yield from changes(before[key], after[key], inner, depth + 1, compare)
    elif depth < DEEPEST and isinstance(before, list) and isinstance(after, list):
        for place, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from changes(old, new, f"{path}/{place}", depth + 1, compare)
        for place in range(len(before), len(after)):
            yield Change(f"{path}/{place}", None, after[place], is_new=True)
        for place in range(len(after), len(before)):
            yield Change(f"{path}/{place}", before[place], None, is_gone=True)
    elif not same(before, after, compare):
        yield Change(path, before, after)


MISSING = object()


def at(value: Any, path: str) -> Any:
    """The value under a JSON Pointer; MISSING where there is none."""
    for name in path.split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
    return value


def same(one: Any, other: Any, compare: str = SPACES) -> bool:
    """Whether two JSON values are one; 1 and 1.0 are, 1 and true are not, and texts are as `compare` says."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key], compare) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair, compare) for pair in zip(one, other, strict=True))
    if isinstance(one, str) and isinstance(other, str):
        fold = COMPARISONS[compare]
        return fold(one) == fold(other)
    return type(one) is type(other) and bool(one == other)


def tables(state: Any) -> list[Table]:
    """A state as tables for people: each of its parts that holds rows, and what is left as one more.
    None for one that nobody shows."""
    found, rest = [], {}
    if state is None:
        return []
    for name, part in (state if isinstance(state, Mapping) else {"state": state}).items():
        rows = dict(part) if isinstance(part, Mapping) else {}
        if isinstance(part, list):
            rows = {str(place): row for place, row in enumerate(part)}
        if (rows and all(isinstance(row, Mapping) for row in rows.values())) or part in ([], {}):
            columns = tuple(dict.fromkeys(str(column) for row in rows.values() for column in row))
            cells = {str(key): (str(key), *(_cell(row.get(column)) for column in columns)) for key, row in rows.items()}
            found.append(Table(str(name), ("", *columns), cells))
        else:
            rest[str(name)] = (str(name), _cell(part))
    return [*found, Table("values", ("", "value"), rest)] if rest else found


def _is_wanted(change: Change, named: Set[str], above: Set[str]) -> bool:
    """Whether a change is at a named path or within one, or makes what a named path lies in, which was not there."""
    return change.path in named or (change.is_new and change.path in above) or not named.isdisjoint(_outer(change.path))


def _outer(path: str) -> Iterator[str]:
    """The paths that hold this one, the whole state's among them."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _query_problem(found: Any, wanted: list[Any], compare: str) -> str:
    if not isinstance(found, Mapping) or "error" in found:
        return f"the query failed: {str(found.get('error') if isinstance(found, Mapping) else 'no database')[:300]}"
    if same(found["rows"], wanted, compare):
        return ""
    return f"the query finds {_shown(found['rows'])}, wanted {_shown(wanted)}"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else canonical(value).decode()[:2000]


def _shown(value: Any) -> str:
    text = canonical(value).decode()
    return text if len(text) <= 120 else f"{text[:120]}…"
