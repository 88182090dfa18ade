"""The player of a world in the sandbox: it is run there beside nothing but the world's own source.

    play({"source", "keeper", "seed", "start", "state", "number", "calls", "queries", "limits"})

`state` is what an earlier call has left, as it gave it; None begins anew. `number` says how many calls were made before
these. For each call the source is run anew, so that nothing but the state outlives it, and `random` is seeded by the
task's seed and the call's number, so that the same calls always do the same.
"""

import base64
import json
import random
import sqlite3
import traceback
from typing import Any

FILE = "world.py"


class Fault(Exception):
    """The world itself is at fault, and no attempt in it can be judged."""


def play(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        world = World(asked)
        told = [world.call(number, *call) for number, call in enumerate(asked["calls"], asked["number"] + 1)]
        found = {query: world.rows(query) for query in asked["queries"]}
        return {"state": world.packed(), "answers": told, "shown": world.shown(), "rows": found}
    except Fault as fault:
        return {"fault": str(fault), "trace": _trace(fault.__cause__)}


class World:
    def __init__(self, asked: dict[str, Any]) -> None:
        self.seed, self.limits, self.keeper = asked["seed"], asked["limits"], asked["keeper"]
        try:
            self.code = compile(asked["source"], FILE, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise Fault(f"the source cannot be run: {error}") from error
        self.db: sqlite3.Connection | None = None
        self.state: Any = None
        if asked["state"] is None:
            self._begin(asked["start"])
        elif self.keeper == "db":
            self.db = _database(base64.b64decode(asked["state"]))
        else:
            self.state = asked["state"]

    def call(self, number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Carry one call out. What it raises is its answer, and leaves the state as it was before."""
        before = self.packed()
        function = self._functions(number).get(name)
        try:
            assert callable(function), "the text defines it, and running the text does not"
            takes = function.__code__.co_varnames[:1] if hasattr(function, "__code__") else ()
            value = function(self._kept(), **arguments) if takes in (("state",), ("db",)) else function(**arguments)
        except MemoryError:
            raise
        except Exception as error:
            self._back(before)
            text = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            return {"text": f"Error: {text}"[: self.limits["answer"]], "trace": _trace(error)}
        answer = self._text(name, value)
        self._settle(name)
        if len(json.dumps(answer)) > self.limits["answer"]:
            self._back(before)
            text = f"Error: the answer of {name} is longer than {self.limits['answer']:,} bytes"
            return {"text": text, "trace": []}
        return {"text": answer, "trace": []}

    def rows(self, query: str) -> dict[str, Any]:
        """Return what a query finds in the end; it may change nothing."""
        if self.db is None:
            return {"error": "this world keeps a JSON state, which no query reads"}
        try:
            self.db.execute("PRAGMA query_only = ON")
            found = [[_plain(value) for value in row] for row in self.db.execute(query).fetchmany(1001)]
        except sqlite3.Error as error:
            return {"error": str(error)}
        finally:
            self.db.execute("PRAGMA query_only = OFF")
        if len(found) > 1000 or len(json.dumps(found)) > self.limits["answer"]:
            return {"error": "it finds more than is compared; let it count, or name fewer rows"}
        return {"rows": found}

    def packed(self) -> Any:
        if self.db is None:
            return json.loads(json.dumps(self.state))
        self.db.commit()
        return base64.b64encode(self.db.serialize()).decode()

    def shown(self) -> Any:
        """The state as JSON: of a database each table by its key."""
        if self.db is None:
            return self.state
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        found = {name: self._table(name) for (name,) in map(tuple, self.db.execute(names))}
        if len(json.dumps(found)) > self.limits["state"]:
            raise Fault(f"the state is larger than {self.limits['state']:,} bytes")
        return found

    def _table(self, name: str) -> Any:
        assert self.db is not None
        quoted = '"' + name.replace('"', '""') + '"'
        keys = [row[1] for row in self.db.execute(f"PRAGMA table_info({quoted})") if row[5]]
        rows = [dict(row) for row in self.db.execute(f"SELECT * FROM {quoted} ORDER BY 1")]  # noqa: S608 quoted above
        plain = [{column: _plain(value) for column, value in row.items()} for row in rows]
        return {str(row[keys[0]]): row for row in plain} if len(keys) == 1 else plain

    def _begin(self, start: dict[str, Any]) -> None:
        given, extends = start.get("state"), start.get("mode") != "replace"
        if self.keeper == "db":
            self.db = _database(b"")
        if self.db is not None or given is None or extends:
            try:
                reset = self._functions(0)["reset"]
                self.state = reset(self.db, self.seed) if self.db is not None else reset(self.seed)
            except MemoryError:
                raise
            except Exception as error:
                raise Fault(f"reset raised {type(error).__name__}: {error}") from error
        if self.db is not None:
            self._fill(given or {}, extends)
        elif given is not None:
            is_merged = extends and isinstance(self.state, dict) and isinstance(given, dict)
            self.state = {**self.state, **given} if is_merged else given
        elif self.state is None:
            raise Fault("reset returned nothing; it returns the state at the beginning")
        self._settle("reset")

    def _fill(self, given: dict[str, Any], extends: bool) -> None:
        """The task's own rows: in place of those of its tables, or beside them."""
        assert self.db is not None
        for name, rows in given.items():
            quoted = '"' + name.replace('"', '""') + '"'
            try:
                if not extends:
                    self.db.execute(f"DELETE FROM {quoted}")  # noqa: S608 quoted above
                for row in rows.values() if isinstance(rows, dict) else rows:
                    columns = ", ".join('"' + str(each).replace('"', '""') + '"' for each in row)
                    holes = ", ".join("?" * len(row))
                    into = f"INSERT OR REPLACE INTO {quoted} ({columns}) VALUES ({holes})"  # noqa: S608 quoted above
                    self.db.execute(into, list(row.values()))
            except (sqlite3.Error, TypeError, AttributeError) as error:
                raise Fault(f"the task's own state does not fit: {name}: {error}") from error

    def _functions(self, number: int) -> dict[str, Any]:
        """The source, run anew: what one call puts into its globals no other sees."""
        random.seed(f"{self.seed}/{number}")
        space: dict[str, Any] = {"__name__": "world", "__file__": FILE}
        try:
            exec(self.code, space)  # noqa: S102 this is what it is for
        except MemoryError:
            raise
        except Exception as error:
            raise Fault(f"the source raised {type(error).__name__}: {error}") from error
        return space

    def _kept(self) -> Any:
        return self.state if self.db is None else self.db

    def _back(self, packed: Any) -> None:
        if self.db is None:
            self.state = packed
        else:
            self.db.close()
            self.db = _database(base64.b64decode(packed))

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_row)
        except (TypeError, ValueError, RecursionError) as error:
            raise Fault(f"{name} returned {_kind(value)}, which is not JSON: {error}") from error

    def _settle(self, name: str) -> None:
        """Look whether the state is one that can be kept, and give it the shape in which it is: JSON's."""
        if self.db is not None:
            self.db.commit()
            size = len(self.db.serialize())
        else:
            try:
                text = json.dumps(self.state, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise Fault(f"after {name} the state is not JSON: {error}") from error
            self.state, size = json.loads(text), len(text)
        if size > self.limits["state"]:
            raise Fault(f"after {name} the state has {size:,} bytes; {self.limits['state']:,} are the most")


def _database(content: bytes) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    if content:
        db.deserialize(content)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    return db


def _row(value: Any) -> Any:
    if isinstance(value, sqlite3.Row):
        return dict(value)
    raise TypeError(f"there is {_kind(value)} in it")


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


def _trace(error: BaseException | None) -> list[dict[str, Any]]:
    """Where it was raised, in the world's own lines alone."""
    if error is None:
        return []
    if isinstance(error, SyntaxError):
        return [{"line": error.lineno, "function": ""}]
    frames = traceback.extract_tb(error.__traceback__)
    return [{"line": frame.lineno, "function": frame.name} for frame in frames if frame.filename == FILE][-8:]
