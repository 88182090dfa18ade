"""Work that lets everybody else go first."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from workers.processes.niceness import NICENESS, Crowd, humbly


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
def test_the_work_is_nice_and_its_caller_stays_as_it_was() -> None:
    before = niceness()
    assert humbly(niceness) == NICENESS
    assert niceness() == before


def test_an_error_of_the_work_reaches_its_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        humbly(lambda: 1 / 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says how long a thread has waited")
def test_a_crowd_is_felt_by_whoever_has_to_share_a_processor() -> None:
    shared = {min(os.sched_getaffinity(0))}

    def felt() -> float:
        os.sched_setaffinity(0, shared)  # of this thread alone
        crowd, began = Crowd(), time.thread_time()
        while time.thread_time() < began + 0.1:
            pass
        return crowd.share()

    burn = (
        f"import os\nos.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\nprint(flush=True)\nwhile True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with ThreadPoolExecutor(1) as thread:
            share = thread.submit(felt).result()
        other.kill()
    assert 0.25 < share < 1
