"""Processes of our own that hold models: what they may know, how much memory they may take, and how they ended.

The limit is on private memory that can be written (RLIMIT_DATA). One on addresses (RLIMIT_AS) would stop CUDA, which
reserves as many as the machine's and the GPU's memory together have. It is each process's own, so several of them may
still take more than there is: then the kernel ends one of these first, before the database or anybody else's program.
"""

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

from flywheel.system import env

_KEPT = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "FLYWHEEL_MODEL_MEMORY"}
_FAMILIES = ("CUDA_", "NVIDIA_", "NCCL_", "PYTORCH_", "TORCH_", "OMP_", "MKL_")
_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory")
"""How torch says it, beside Python's MemoryError."""
_CGROUPS = Path("/sys/fs/cgroup")


def environment(*also: str) -> dict[str, str]:
    """Return the variables of a computing process: no database, no keys. `also`: prefixes of further names to pass."""
    memory_limit()  # a setting that cannot be used is refused here, where somebody hears of it
    begin = (*_FAMILIES, *also)
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(begin)}


def limit_memory() -> None:
    """Take no more memory than one process with a model may, and be the first to go when the machine has none left.

    For the process itself, before it loads anything.
    """
    go_first()
    _limit(memory_limit())


def go_first(process: int | str = "self") -> None:
    """Have the kernel end this process, and what it starts from now on, before others when memory runs out."""
    with contextlib.suppress(OSError):  # no Linux, or it has ended
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """While libraries and a model are loaded: what they make stays, and looking for garbage in it takes a quarter of
    the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def mapping(directory: Path) -> Iterator[None]:
    """While the weights of a directory are read. Their files are mapped, which the limit counts as memory; it is the
    files' own, and given back whenever somebody needs it."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        yield
        return
    _limit(limit + sum(path.stat().st_size for path in directory.glob("*.safetensors")))
    try:
        yield
    finally:
        _limit(limit)


def _limit(size: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (size if most == resource.RLIM_INFINITY else min(size, most), most))


def memory_limit() -> int:
    """Bytes that one process with a model may take. Raises BadSetting."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return env.model_memory(min([machine, *_cgroup_limits()]))


def _cgroup_limits() -> Iterator[int]:
    """Bytes that the container or service around this process may take, and those around that, where one says so."""
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        if controllers not in ("", "memory"):
            continue
        root, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
        place = Path(path.lstrip("/"))
        for group in (place, *place.parents):
            with contextlib.suppress(OSError, ValueError):  # seen from within a container; or it says "max"
                yield int((root / group / name).read_text())


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that this process got no more memory. A GPU's is another matter."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def shortage() -> str:
    """Describe the shortage. This lifts the limit: whoever got no more memory has none left to say so, and ends."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    allowed = memory_limit() / 2**30
    return f"it needed more than the {allowed:.1f} GB of memory that FLYWHEEL_MODEL_MEMORY allows"


_AS_WHEN: dict[int, str] = {
    signal.SIGKILL: ", as when memory runs out",
    signal.SIGABRT: ", as when it needs more memory than FLYWHEEL_MODEL_MEMORY allows",
}


def ending(code: int) -> str:
    """Say in words how a process ended."""
    if code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + _AS_WHEN.get(-code, "")
