"""How much memory a process with a model may take, and what is said when it wants more."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from workers.processes import model_process

MAPS = """
import mmap, resource, sys
from pathlib import Path
from workers.processes import model_process as children

def is_mapped():
    with open(sys.argv[1] + "/model.safetensors", "rb") as file:
        try:
            mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()
        except OSError as error:
            return children.is_shortage(error) and "no"
    return "yes"

children.limit_memory()
print(is_mapped())
with children.mapping(Path(sys.argv[1])):
    print(is_mapped())
print(is_mapped())
print(Path("/proc/self/oom_score_adj").read_text())
"""


def test_the_files_of_weights_that_are_being_read_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2**30)
    monkeypatch.setenv("FLYWHEEL_MODEL_MEMORY", "0.5G")
    command = [sys.executable, "-c", MAPS, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[3], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["no", "yes", "no", "1000"], done.stderr


def test_where_nothing_is_limited_reading_weights_limits_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with model_process.mapping(tmp_path):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_share_is_of_what_the_container_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1000000\n")
    monkeypatch.setattr(model_process, "_CGROUPS", tmp_path)
    assert model_process.memory_limit() == 800_000
    for limit in ("max", "9223372036854771712"):
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory" / "memory.limit_in_bytes").write_text(limit)
        assert model_process.memory_limit() > 2**28


def test_memory_that_ran_out_is_recognised_through_what_wraps_it() -> None:
    wrapped = RuntimeError("the model does not load")
    wrapped.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    assert model_process.is_shortage(wrapped)
    assert model_process.is_shortage(MemoryError())
    assert not model_process.is_shortage(RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"))


def test_an_abort_names_the_setting() -> None:
    assert (
        model_process.ending(-6) == "killed by SIGABRT, as when it needs more memory than FLYWHEEL_MODEL_MEMORY allows"
    )
