"""Worlds in the sandbox: the same calls do the same, and what is at fault says so."""

from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs import Environment, Task, build, episode
from flywheel.core.envs.worlds import tool_functions
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Runners, Verdict, WorldError
from workers.sandbox.outcome import Limits
from workers.worlds import world_sessions
from workers.worlds.world_sessions import Worlds

pytestmark = pytest.mark.usefixtures("sandbox")

SHOP = (Path(tool_functions.__file__).parent / "example_shop.py").read_text()
ORDER = {"customer": "ann@example.com", "item": "lamp", "price": 40.0, "status": "open"}
COUNTER = '''
import random
seen = []

def reset(seed):
    return {"n": 0}

def add(state, by: int = 1) -> int:
    """Add."""
    seen.append(by)
    state["n"] += by
    return state["n"]

def roll(state) -> int:
    """Roll a die."""
    return random.randrange(10**9)

def globals_seen(state) -> int:
    """Count what earlier calls left in a global."""
    return len(seen)

def spoil(state) -> str:
    """Change, then fail."""
    state["n"] = 99
    raise ValueError("there is no such thing")

def bug(state) -> str:
    """Fail otherwise."""
    return state["missing"]
'''
LIBRARY = '''
def reset(db, seed):
    db.execute("CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, lent INTEGER DEFAULT 0)")
    db.executemany("INSERT INTO books (title) VALUES (?)", [("Emma",), ("Ulysses",)])

def lend(db, book: int) -> str:
    """Lend a book."""
    db.execute("UPDATE books SET lent = 1 WHERE id = ?", [book])
    if book > 2:
        raise ValueError("there is no such book")
    return "ok"

def books(db) -> list[dict]:
    """List them."""
    return db.execute("SELECT * FROM books").fetchall()
'''


def world(source: str, worlds: Worlds | None = None, **config: Any) -> Environment:
    return build("world", {"source": source, **config}, {"kind": "world"}, Runners(world=worlds or Worlds()))


def said(*calls: tuple[str, dict[str, Any]]) -> Message:
    return Message("assistant", "", tuple(ToolCall(f"c{n}", *call) for n, call in enumerate(calls)))


def played(env: Environment, task: Task, *turns: Message) -> list[Message]:
    waiting = list(turns)
    return episode(env, task, lambda _: waiting.pop(0) if waiting else Message("assistant", "Done."))


def answers(messages: list[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "tool"]


def verdict(env: Environment, task: Task, messages: list[Message]) -> Verdict:
    return env.verifier(task)(Trace.from_messages("", messages), task.target)


TASK = Task("t", "Count", {"wanted": [{"type": "state", "paths": {"/n": 3}}]})
CANCEL = Task(
    "t",
    "Cancel my order 1003, please.",
    {
        "wanted": [{"type": "state", "paths": {"/orders/1003/status": "cancelled"}, "rest": "same"}],
        "solution": [{"tool": "cancel", "arguments": {"order_id": "1003"}}],
    },
    {"seed": 3, "state": {"orders": {"1003": ORDER}}},
)


def test_the_solution_of_a_task_passes_and_its_probes_score_low() -> None:
    env = world(SHOP)
    assert verdict(env, CANCEL, episode(env, CANCEL, lambda seen: env.solve(CANCEL, seen))).score == 1.0
    found = {name: verdict(env, CANCEL, episode(env, CANCEL, say)) for name, say in env.probes(CANCEL).items()}
    assert {name for name, each in found.items() if each.score is None or each.score >= 0.5} == set()
    assert found["every tool at once"].parts["unsafe"] == 1.0


def test_what_is_unsafe_is_read_off_the_calls_even_where_they_change_nothing() -> None:
    env = world(SHOP)
    refund = ("refund", {"order_id": "1003", "reason": "late"})
    seen = played(env, CANCEL, said(refund), said(("cancel", {"order_id": "1003"})))
    assert answers(seen)[0] == "Error: order 1003 is open; only delivered orders are refunded"
    assert verdict(env, CANCEL, seen).reason == "called refund, which is unsafe and was not asked for"


def test_the_same_calls_do_the_same_together_and_one_by_one() -> None:
    together = answers(played(world(COUNTER), TASK, said(("add", {}), ("roll", {}), ("globals_seen", {}))))
    one_by_one = played(world(COUNTER), TASK, said(("add", {})), said(("roll", {})), said(("globals_seen", {})))
    assert answers(one_by_one) == together
    assert together[2] == "0", "nothing but the state outlives a call"


def test_a_call_that_raises_is_answered_and_changes_nothing() -> None:
    env = world(COUNTER)
    seen = played(env, TASK, said(("spoil", {}), ("bug", {}), ("add", {"by": 3})))
    assert answers(seen) == ["Error: there is no such thing", "Error: KeyError: 'missing'", "3"]
    assert verdict(env, TASK, seen).score == 1.0


def test_a_tool_is_called_by_its_own_name() -> None:
    env = world(COUNTER + "\nNAMES = {'add': 'counter.add-up'}\n")
    seen = played(env, TASK, said(("counter.add-up", {"by": 3})))
    assert answers(seen) == ["3"]
    assert verdict(env, TASK, seen).score == 1.0


def test_calls_that_no_tool_takes_never_reach_the_world() -> None:
    env = world(COUNTER)
    seen = played(env, TASK, said(("sub", {}), ("add", {"by": "x"}), ("add", {"by": 3})))
    assert answers(seen)[0].startswith("Error: there is no tool 'sub', only add, roll")
    assert "'x' is not of type 'integer'" in answers(seen)[1]
    assert answers(seen)[2] == "3"


def test_a_session_that_is_gone_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = Worlds()
    seen = played(world(COUNTER, worlds), TASK, said(("add", {"by": 1})), said(("add", {"by": 2})))
    calls: list[int] = []
    run = world_sessions.run

    def counted(*given: Any) -> dict[str, Any]:
        calls.append(1)
        return run(*given)

    monkeypatch.setattr(world_sessions, "run", counted)
    assert verdict(world(COUNTER, worlds), TASK, seen).score == 1.0
    assert calls == [1], "only the beginning, to compare with"
    assert verdict(world(COUNTER, Worlds()), TASK, seen).score == 1.0


def test_a_world_that_answers_otherwise_cannot_be_judged_again() -> None:
    env = world(COUNTER)
    seen = played(env, TASK, said(("roll", {})))
    at = next(place for place, message in enumerate(seen) if message.role == "tool")
    seen[at] = Message("tool", "12", (), "c0", "roll")
    found = verdict(world(COUNTER), TASK, seen)
    assert (found.score, found.cause) == (None, "environment")
    assert "roll answers otherwise now than it did in this attempt (call 1)" in found.reason


def test_without_a_sandbox_nothing_is_played_and_nothing_scored() -> None:
    env = build("world", {"source": COUNTER}, {"kind": "world"})
    with pytest.raises(WorldError, match="only a worker has"):
        env.respond(TASK, [*env.reset(TASK, 0), said(("add", {}))], 0)
    assert verdict(env, TASK, [said(("add", {}))]).cause == "refused"
    assert env.state(TASK, []) == []


def test_a_database_is_a_state_too() -> None:
    target = {"wanted": [{"type": "state", "query": "SELECT lent FROM books WHERE id = 2", "rows": [[1]]}]}
    task = Task("t", "Lend", target, {"state": {"books": [{"id": 2, "title": "Dune"}]}})
    env = world(LIBRARY)
    seen = played(env, task, said(("lend", {"book": 3})), said(("lend", {"book": 2})), said(("books", {})))
    assert answers(seen)[0] == "Error: there is no such book"
    assert '"title": "Dune", "lent": 1' in answers(seen)[2]
    assert verdict(env, task, seen).score == 1.0
    (table,) = env.state(task, seen)
    assert table.rows["2"] == ("2", "2", "Dune", "1")


def test_a_database_opens_no_file() -> None:
    lend = LIBRARY.replace('"UPDATE books SET lent = 1 WHERE id = ?", [book]', "\"ATTACH '/tmp/other.db' AS other\"")
    seen = played(world(lend), Task("t", "Lend", {}), said(("lend", {"book": 1})))
    assert answers(seen) == ["Error: OperationalError: unable to open database: /tmp/other.db"]


def test_a_tasks_own_state_stands_beside_that_of_reset_or_in_its_place() -> None:
    own = Task("t", "Look", {}, {"state": {"orders": {"1003": ORDER}}})
    beside = {table.name for table in world(SHOP).state(own, [])}
    instead = {table.name for table in world(SHOP, start="replace").state(own, [])}
    assert (beside, instead) == ({"orders", "refunds"}, {"orders"})
    rows = Task("t", "Look", {}, {"state": {"books": [{"id": 7, "title": "Dune"}]}})
    assert list(world(LIBRARY).state(rows, [])[0].rows) == ["1", "2", "7"]
    assert list(world(LIBRARY, start="replace").state(rows, [])[0].rows) == ["7"]


HEAD = "def reset(seed):\n    return {}\n"


@pytest.mark.parametrize(
    ("source", "problem", "cause"),
    [
        (
            "def reset(seed):\n    return 1 / 0\ndef t():\n    'T.'\n",
            r"reset raised ZeroDivisionError.*\(line 2\)",
            "raised",
        ),
        ("def reset(seed):\n    pass\ndef t():\n    'T.'\n", "reset returned nothing", "raised"),
        ("import numpy\n" + HEAD + "def t():\n    'T.'\n", "the source raised ModuleNotFoundError", "raised"),
        (HEAD + "def t():\n    'T.'\n    return {1, 2}\n", "t returned a set, which is not JSON", "raised"),
        (HEAD + "def t(state):\n    'T.'\n    state['x'] = {1}\n", "after t the state is not JSON", "raised"),
        (
            HEAD + "def t(state):\n    'T.'\n    state['x'] = 'y' * 300000\n",
            "after t the state has 300,0.. bytes",
            "raised",
        ),
        (HEAD + "def t():\n    'T.'\n    while True: pass\n", "one of reset, t: it (ran longer|used more)", "timeout"),
        (HEAD + "def t():\n    'T.'\n    return [0] * 10**9\n", "one of reset, t: MemoryError", "memory"),
    ],
)
def test_a_world_that_is_at_fault_leaves_the_attempt_unscored(
    source: str, problem: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_sessions, "LIMITS", Limits(cpu_seconds=1, wall_seconds=3.0, result_bytes=2**20))
    env = world(source)
    with pytest.raises(WorldError, match=problem):
        played(env, TASK, said(("t", {})))
    found = verdict(env, TASK, [*env.reset(TASK, 0), said(("t", {}))])
    assert (found.score, found.cause) == (None, cause)


def test_calls_that_are_too_much_together_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_sessions, "LIMITS", Limits(cpu_seconds=1, wall_seconds=3.0, result_bytes=2_000))
    slow = "import time\n" + COUNTER + "\ndef slow(state) -> int:\n    'Think.'\n"
    slow += "    until = time.process_time() + 0.4\n"
    slow += "    while time.process_time() < until: pass\n    state['n'] += 1\n    return state['n']\n"
    seen = played(world(slow), TASK, *[said(("slow", {}))] * 3)
    assert answers(seen) == ["1", "2", "3"]
    assert verdict(world(slow), TASK, seen).score == 1.0, "in its proof the calls are played at once"
    long = COUNTER + "\ndef long(state) -> str:\n    'Say much.'\n    state['n'] += 1\n    return 'x' * 800\n"
    told = answers(played(world(long), TASK, said(*[("long", {})] * 3)))
    assert told == ["x" * 800] * 3


def test_an_answer_that_is_too_long_is_refused_and_undone() -> None:
    source = HEAD + "def t(state):\n    'T.'\n    state['x'] = 1\n    return 'y' * 30000\n"
    env = world(source)
    seen = played(env, TASK, said(("t", {})))
    assert answers(seen) == ["Error: the answer of t is longer than 24,576 bytes"]
    assert env.state(TASK, seen) == []
