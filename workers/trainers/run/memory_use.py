"""Memory of the device that a trainer trains on: what it has taken, and what there is."""

import re
from pathlib import Path
from typing import Any

import torch

from workers.processes import model_process

STATUS = Path("/proc/self/status")


def machine() -> dict[str, Any]:
    """The device that this process trains on, and the bytes that a process may take of its memory."""
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        return {"kind": "cuda", "name": about.name, "memory": about.total_memory}
    return {"kind": "cpu", "name": "CPU", "memory": model_process.memory_limit()}


def peak() -> int | None:
    """Bytes at the highest point so far: all that this process holds on a CPU, what torch allocated on a GPU.

    Of a CPU it is the kernel's VmHWM. getrusage's number outlives exec, so it may be that of whoever started this
    process. None where the system does not tell.
    """
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
