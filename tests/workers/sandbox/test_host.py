"""A call's outcome: what comes back, how it ends, and that limits hold."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, wait_for
from workers.sandbox import host
from workers.sandbox.host import run
from workers.sandbox.outcome import MIB, Limits, Outcome, Status

ROOT = Path(__file__).resolve().parents[3]


def ran(body: str, *arguments: object, limits: Limits | None = None) -> Outcome:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return run(f"def verify(*given):\n{lines}\n", arguments=arguments, limits=limits)


def test_what_is_returned_comes_back() -> None:
    value = {"score": 0.5, "list": [1, None, True, "ä€😀"], "deep": {"a": {"b": []}}}
    outcome = ran("return given[0]", value)
    assert (outcome.status, outcome.value, outcome.reason) == (Status.OK, value, "")
    assert outcome.peak_bytes > MIB
    assert 0 < outcome.seconds < 10


def test_what_is_printed_comes_along() -> None:
    outcome = ran("import sys\nprint('a ünd')\nsys.stderr.write('b')\nreturn 1")
    assert outcome.printed.splitlines() == ["a ünd", "b"]


@pytest.mark.parametrize(
    ("told", "by", "status"),
    [
        (5.0, signal.SIGKILL, Status.TIMEOUT),
        (4.2, signal.SIGKILL, Status.TIMEOUT),
        (4.2, signal.SIGXCPU, Status.TIMEOUT),
        (0.5, signal.SIGKILL, Status.CRASHED),
        (4.2, signal.SIGSEGV, Status.CRASHED),
        (4.2, signal.SIGABRT, Status.CRASHED),
        (4.2, signal.SIGSYS, Status.CRASHED),
    ],
)
def test_what_the_kernel_ends_for_its_processor_time_is_no_crash(told: float, by: int, status: Status) -> None:
    """It may tell of less time afterwards than it has counted."""
    head = {"refused": "", "ended": "ended", "entered": True, "status": by, "cpu_seconds": told}
    head |= {"printed": "", "seconds": 9.9, "peak_bytes": 1}
    assert host._read(json.dumps(head).encode() + b"\n", Limits().to_json()).status is status


def test_code_alone_may_be_run() -> None:
    outcome = run("print(40 + 2)", function=None)
    assert (outcome.status, outcome.value, outcome.printed) == (Status.OK, None, "42\n")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("x = 1\nreturn x / 0", "ZeroDivisionError: division by zero (line 3)"),
        ("raise ValueError('a' * 9000)", "aaa (line 2)"),
        ("raise SystemExit(0)", "SystemExit: 0 (line 2)"),
        ("return object()", "not JSON serializable"),
        ("import numpy", "there is no module 'numpy' in the sandbox; there are abc, array,"),
        ("return open('/etc/hostname').read()", "Operation not permitted"),
    ],
)
def test_what_is_raised_is_told_with_its_line(body: str, reason: str) -> None:
    outcome = ran(body)
    assert outcome.status is Status.RAISED
    assert outcome.value is None
    assert reason in outcome.reason
    assert len(outcome.reason) < 2100


def test_code_that_cannot_be_read_is_told() -> None:
    assert "SyntaxError" in run("def verify(:").reason
    assert run("x = 1").reason == "NameError: the code defines no function 'verify'"
    assert "null bytes" in run("def verify():\n    return '\0'").reason


def test_a_loop_ends_by_processor_time() -> None:
    outcome = ran("while True: pass", limits=Limits(cpu_seconds=1, wall_seconds=60))
    assert (outcome.status, outcome.reason) == (Status.TIMEOUT, "it used more than 1 s of processor time")


def test_a_sleep_ends_by_wall_time() -> None:
    outcome = ran("import time\ntime.sleep(60)", limits=Limits(wall_seconds=0.3))
    assert (outcome.status, outcome.reason) == (Status.TIMEOUT, "it ran longer than 0.3 s")


def test_memory_ends() -> None:
    outcome = ran("return len(bytearray(10 ** 9))", limits=Limits(memory_bytes=32 * MIB))
    assert (outcome.status, outcome.reason) == (Status.MEMORY, "MemoryError (line 2)")
    assert ran("return len(bytearray(20 * 2 ** 20))", limits=Limits(memory_bytes=32 * MIB)).status is Status.OK


def test_output_ends() -> None:
    few = Limits(printed_bytes=100, result_bytes=100)
    for body in ("print('x' * 200)\nreturn 1", "return 'x' * 200", "import sys\nsys.stderr.write('x' * 10 ** 7)"):
        outcome = ran(body, limits=few)
        assert outcome.status is Status.OUTPUT
        assert "more than 100 bytes" in outcome.reason
        assert len(outcome.printed) <= 100
    assert ran("print('x' * 99)\nreturn 1", limits=few).status is Status.OK


@pytest.mark.parametrize("value", ["float('nan')", "float('-inf')", "[1, {'a': float('inf')}]"])
def test_no_nan_comes_back(value: str) -> None:
    assert ran(f"return {value}").status is Status.NAN


def test_a_value_that_is_nested_too_deeply_is_no_answer() -> None:
    body = "value = 1\nfor _ in range({}): value = [value]\nreturn value"
    assert ran(body.format(60)).status is Status.OK
    for levels in (70, 300, 900):
        assert ran(body.format(levels)).status in (Status.CRASHED, Status.RAISED)


def test_text_that_no_database_stores_is_made_storable() -> None:
    outcome = ran("print('\\0 \\ud800')\nreturn {'a\\0': ['\\ud800', 'b\\0c']}")
    assert outcome.value == {"a\u2400": ["?", "b\u2400c"]}
    assert outcome.printed == "\u2400 \\ud800\n"
    json.dumps(outcome.to_json()).encode()


def test_a_large_trace_goes_in() -> None:
    trace = {"steps": [{"text": "word " * 200} for _ in range(20_000)]}  # 20 MB
    outcome = ran("return len(given[0]['steps'])", trace)
    assert (outcome.status, outcome.value) == (Status.OK, 20_000)
    refused = ran("return 1", trace, limits=Limits(input_bytes=MIB))
    assert (refused.status, refused.reason) == (Status.REFUSED, "code and arguments are longer than 1,048,576 bytes")
    assert ran("return 1", trace, limits=Limits(memory_bytes=16 * MIB)).status is Status.MEMORY


def test_what_cannot_be_asked_is_refused() -> None:
    assert run("x" * (300 * 1024)).reason == "the code is longer than 256 kB"
    assert "the arguments are no JSON" in run("", arguments=[object()]).reason
    with pytest.raises(ValueError, match="cpu_seconds=0: it must be from 1 to 120"):
        Limits(cpu_seconds=0)


def test_the_same_call_gives_the_same_answer() -> None:
    body = "import random\nreturn [random.random(), hash('a'), list({'a', 'b', 'c', 'd'})]"
    first = ran(body).value
    host.close()
    assert [ran(body).value for _ in range(3)] == [first] * 3


def test_calls_run_beside_each_other() -> None:
    with ThreadPoolExecutor(8) as pool:
        code = "import time\nbegun = time.monotonic()\ntime.sleep(.5)\nreturn [given[0], begun, time.monotonic()]"
        outcomes = list(pool.map(lambda number: ran(code, number), range(8)))
    numbers, begun, ended = zip(*(outcome.value for outcome in outcomes), strict=True)
    assert numbers == tuple(range(8))
    assert sorted(begun)[1] < min(ended), "the second begins before the first ends"


def test_the_keeper_is_started_again_when_it_is_gone() -> None:
    ran("return 1")
    assert host._kept is not None
    host._kept.process.kill()
    host._kept.process.wait()
    assert ran("return 2").value == 2


def test_a_keeper_that_dies_in_a_call_is_a_crash_not_a_score() -> None:
    ran("return 1")
    kept = host._kept
    assert kept is not None
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(ran("import time\ntime.sleep(30)\nreturn 1")))
    thread.start()
    time.sleep(0.5)
    kept.process.kill()
    thread.join(PATIENCE_S)
    assert found[0].status is Status.CRASHED
    assert found[0].reason == "the process that watches the code was ended"
    assert not _living(kept.process.pid)


def test_whoever_forks_has_a_keeper_of_their_own() -> None:
    ran("return 1")
    assert host._kept is not None
    before = host._kept.process.pid
    pid = os.fork()
    if pid == 0:
        good = ran("return 3").value == 3 and host._kept.process.pid != before
        host.close()
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ran("return 4").value == 4
    assert host._kept.process.pid == before


def test_nothing_is_left_when_the_host_is_killed() -> None:
    code = "import time\ndef verify():\n    time.sleep(60)"
    program = f"""
import threading, time
from workers.sandbox import host
for _ in range(3):
    threading.Thread(target=lambda: host.run({code!r}), daemon=True).start()
while host._kept is None: time.sleep(.01)
print(host._kept.process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        keeper = int(started.stdout.readline())
        wait_for(lambda: len(_living(keeper)) >= 1 + 3 * 3, "three guests are at work")
        started.send_signal(signal.SIGKILL)
    wait_for(lambda: not _living(keeper), "nothing is left")


def _living(keeper: int) -> set[int]:
    """The keeper and what descends from it: guests have left its session, and are found by their parents."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(name)] = int(parent)
    found = {keeper} & parents.keys()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
