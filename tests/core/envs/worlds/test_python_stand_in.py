"""Functions that stand in for tools in a replay: which settings are taken, and who is needed to play."""

from typing import Any

import pytest

from flywheel.core import envs
from flywheel.core.envs import Task, kinds
from flywheel.core.envs.replay.episode_replay import ERROR, MARK
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import VerifierError, WorldError

TOOLS: list[dict[str, Any]] = [{"name": "find", "parameters": {}}, {"name": "shop.order", "parameters": {}}]
SOURCE = '''
NAMES = {"order": "shop.order"}

def reset(seed: int) -> dict:
    return {"orders": []}

def order(state: dict, item: str) -> int:
    """Order it."""
    state["orders"].append(item)
    return len(state["orders"])
'''
CONFIG = {"tools": TOOLS, "judged": "end", "unknown": "python", "source": SOURCE}


def built(**config: Any) -> envs.Environment:
    return envs.build("episode", CONFIG | config, {"kind": "episode"})


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"source": None}, "source: expected Python"),
        ({"source": SOURCE + "  x"}, r"source: line \d+: unindent does not match"),
        ({"source": SOURCE.replace("reset", "begin")}, "source: reset.seed. is missing"),
        ({"source": SOURCE.replace('{"order": "shop.order"}', "3")}, "source: line 2: NAMES is a dictionary"),
        ({"source": SOURCE.replace("shop.order", "shop.orders")}, "source: this environment has no tool shop.orders"),
        ({"judged": "next"}, "judged: at the next action nothing is answered"),
        ({"unknown": "stub"}, "source: functions answer with"),
        ({"unknown": "functions"}, "unknown: 'functions' is unknown"),
    ],
)
def test_what_cannot_stand_in_is_refused_by_the_name_of_its_setting(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError, match=problem):
        built(**config)


def test_the_settings_of_a_version_may_bring_functions() -> None:
    kinds.check_new("episode", CONFIG)


def test_the_sandbox_is_needed_only_where_a_function_may_be_asked() -> None:
    verifier = {"kind": "episode"}
    assert kinds.needs("episode", CONFIG, verifier) == {"world"}
    assert kinds.needs("episode", {"tools": TOOLS, "judged": "end"}, verifier) == frozenset()
    assert kinds.needs("world", {"source": SOURCE}, {"kind": "world"}) == {"world"}


def test_without_a_sandbox_nothing_is_answered_in_a_functions_place() -> None:
    """Tell what needs none: recorded results, and tools without a function."""
    recorded = {"tool": "shop.order", "arguments": {"item": "lamp"}, "result": "ordered"}
    task = Task("t", "Order a lamp", {"wanted": []}, {"replies": [recorded]})

    def answered(*calls: tuple[str, dict[str, Any]]) -> list[str]:
        env = built()
        made = Message("assistant", "", tuple(ToolCall(f"c{n}", *call) for n, call in enumerate(calls)))
        return [message.content for message in env.respond(task, [*env.reset(task, 0), made], 0)]

    assert answered(("shop.order", {"item": "lamp"}), ("find", {})) == ["ordered", MARK + ERROR]
    with pytest.raises(WorldError, match="only a worker has"):
        answered(("shop.order", {"item": "rug"}))
