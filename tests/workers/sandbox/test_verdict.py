"""A finite number in the declared range, or none with its cause; never 0 by default."""

import pytest

from workers.sandbox.outcome import Limits, Status
from workers.sandbox.verdict import Scored, score


def scored(returned: str, **asked: float) -> Scored:
    return score(f"def verify(trace, target):\n    return {returned}\n", {"answer": "4"}, {"answer": "4"}, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("returned", "number"),
    [("1", 1.0), ("0.25", 0.25), ("True", 1.0), ("0", 0.0), ("trace == target", 1.0), ("{'score': .5}", 0.5)],
)
def test_a_number_is_a_score(returned: str, number: float) -> None:
    found = scored(returned)
    assert (found.status, found.score) == (Status.OK, number)


def test_a_reason_and_parts_may_come_along() -> None:
    found = scored("{'score': 1, 'reason': 'right\\0', 'parts': {'tool': 1, 'unknown': None}}")
    assert (found.score, found.reason, found.parts) == (1.0, "right\u2400", {"tool": 1.0, "unknown": None})


@pytest.mark.parametrize(
    ("returned", "status"),
    [
        ("1 / 0", Status.RAISED),
        ("float('nan')", Status.NAN),
        ("'1.0'", Status.NAN),
        ("[1.0]", Status.NAN),
        ("{'score': 1, 'parts': {'a': 'b'}}", Status.NAN),
        ("{'score': 1, 'parts': [1]}", Status.NAN),
        ("{'score': 1, 'status': 'ok'}", Status.NAN),
        ("1.5", Status.RANGE),
        ("-0.001", Status.RANGE),
        ("10 ** 400", Status.RANGE),
        ("None", Status.UNSCORED),
        ("{'score': None, 'reason': 'no answer to judge'}", Status.UNSCORED),
        ("{}", Status.UNSCORED),
        ("bytearray(10 ** 10)", Status.MEMORY),
        ("'x' * 10 ** 6", Status.OUTPUT),
    ],
)
def test_what_is_no_score_is_unscored_with_its_cause(returned: str, status: Status) -> None:
    found = scored(returned)
    assert (found.status, found.score) == (status, None)
    assert found.reason


def test_time_that_runs_out_is_unscored() -> None:
    found = score("def verify(*a):\n    while True: pass", {}, limits=Limits(cpu_seconds=1))
    assert (found.status, found.score) == (Status.TIMEOUT, None)


def test_another_range_may_be_declared() -> None:
    assert scored("-1", low=-1, high=2).score == -1.0
    assert scored("2.5", low=-1, high=2).reason == "the score is 2.5, which is not from -1 to 2"


PAIR = """
def program(trace, target): return trace["program"]
def verify(trace, target, ran): return {"score": ran["printed"] == "42\\n", "reason": ran["status"]}
"""


@pytest.mark.parametrize(
    ("program", "number", "reason"),
    [
        ("print(42)", 1.0, "ok"),
        ("print(41)", 0.0, "ok"),
        ("1 / 0", 0.0, "raised"),
        ("import os\nos.write(3, b'{\"value\": 1.0}')\nos._exit(0)", 0.0, "ok"),
        ("import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and 'sealed' in o])", 0.0, "ok"),
    ],
)
def test_a_program_of_the_models_is_run_in_a_process_of_its_own(program: str, number: float, reason: str) -> None:
    found = score(PAIR, {"program": program}, {"sealed": "42"})
    assert (found.score, found.reason) == (number, reason)


def test_a_program_may_be_a_function_with_arguments_or_nothing() -> None:
    code = """
def program(trace, target): return trace["asked"]
def verify(trace, target, ran): return 0 if ran is None else ran["value"]
"""
    asked = {"code": "def half(n): return n / 2", "function": "half", "arguments": [1]}
    assert score(code, {"asked": asked}).score == 0.5
    assert score(code, {"asked": None}).score == 0.0
    assert score(code, {"asked": {"codes": 1}}).status is Status.RAISED
    assert score(code, {"asked": {"code": "", "arguments": 3}}).status is Status.RAISED
    assert score(code, {}).reason == "program(): KeyError: 'asked' (line 2)"
