"""Processes of our own that hold models: what they may know, and how they ended."""

import os
import signal

_KEPT = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
_FAMILIES = ("CUDA_", "NVIDIA_", "NCCL_", "PYTORCH_", "TORCH_", "OMP_", "MKL_")


def environment(*also: str) -> dict[str, str]:
    """What a process may know that computes: no database, no keys. `also`: how names begin that are told, too."""
    begin = (*_FAMILIES, *also)
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(begin)}


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + (", as when memory runs out" if -code == signal.SIGKILL else "")
