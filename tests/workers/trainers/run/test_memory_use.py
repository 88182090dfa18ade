"""What a trainer tells of its memory is its own, not that of whoever started it."""

import subprocess
import sys

import numpy as np

from workers.processes import model_process
from workers.trainers.run import memory_use

LARGE = 800 * 2**20
CHILD = "from workers.trainers.run import memory_use; print(memory_use.peak())"


def test_peak_is_the_process_s_own_and_stays_when_memory_is_given_back() -> None:
    held = np.ones(LARGE, dtype=np.uint8)
    del held
    peak = memory_use.peak()
    assert peak is not None
    assert peak > LARGE
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert 0 < int(child.stdout) < LARGE


def test_machine_s_memory_is_what_a_process_may_take() -> None:
    assert memory_use.machine() == {"kind": "cpu", "name": "CPU", "memory": model_process.memory_limit()}
