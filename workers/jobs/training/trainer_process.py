"""Trainers of run directories: what each can do wherever it runs, the process that one is here, and its last words."""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings

from flywheel.core import recipes
from flywheel.core.network.key_hosts import VLLM_KEY
from workers.judging import broker_line
from workers.processes import model_process
from workers.trainers.run import run_directory

CANCEL_GRACE_S = 60.0
"""How long a trainer may take to save and stop before it is killed."""
SUMMARY = 60
"""Lines within which torchrun's summary ends; what stands before it may be of an earlier start."""
SERVER = ("FLYWHEEL_VLLM_URL", "FLYWHEEL_SERVE", "FLYWHEEL_SERVE_GPUS", VLLM_KEY)
"""What a trainer is told that asks a vLLM server: their addresses, and the key."""
OWN_SERVER = ("VLLM_CPU_", "HF_HOME", "XDG_CACHE_HOME")
"""What one is told that starts a server of its own: how it computes on a CPU, and where it may keep things."""


class Trainer(Protocol):
    """A trainer on a run directory, wherever it runs; the directory says what it has done."""

    @property
    def name(self) -> str: ...

    @property
    def ending(self) -> str: ...

    @property
    def grace_s(self) -> float:
        """Seconds that it may take to save and stop, once it is asked to, before it is ended."""

    def is_alive(self) -> bool: ...

    def stop(self) -> None: ...

    def leave(self) -> None:
        """Let go of it, as its owner does in the end: where it may not live without one, it ends."""


class TrainingFailed(Exception):
    """The trainer said why it failed, or died too often. `kind` is the trainer's own word."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def stop_orphan(place: Path) -> None:
    """End a trainer that a former, now silent, owner left in this directory. Its lock says that it lives."""
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        for _ in range(100):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                _kill_owner(place)
                time.sleep(0.1)
        raise TrainingFailed("locked", f"another trainer holds {place.name} and does not end")
    finally:
        os.close(lock)


def _kill_owner(place: Path) -> None:
    try:
        pid = int((place / "trainer.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if str(place).encode() in command:
            os.killpg(pid, signal.SIGKILL)
    except (OSError, ValueError):
        return


class LocalTrainer:
    """A process of this machine, which ends with this one."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @property
    def name(self) -> str:
        return f"process {self.process.pid}"

    @property
    def ending(self) -> str:
        return model_process.ending(self.process.returncode)

    @property
    def grace_s(self) -> float:
        return CANCEL_GRACE_S

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Have the process ended, if it has not by itself."""
        if self.is_alive():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def leave(self) -> None:
        self.stop()


def told_of_vllm(settings: Mapping[str, Any]) -> Sequence[str]:
    """The environment variables, or how they begin, that a trainer with these settings is told besides."""
    own = OWN_SERVER if settings.get("rollouts") == recipes.COLOCATE else ()
    return (*(SERVER if recipes.asks_server(settings) else ()), *own)


def start(
    module: str,
    place: Path,
    *told: str,
    processes: int = 1,
    gpus: Sequence[str] | None = None,
    broker: str = "",
) -> LocalTrainer:
    """Start this module on a run directory, in a process that ends with this one, or in several that share the work;
    it is told these of our environment variables too, and the path of its broker's socket where it has one, and sees
    these GPUs alone, or those that we see."""
    with (place / "trainer.log").open("ab") as output:
        process = subprocess.Popen(
            run_directory.command(module, place, processes),
            cwd=settings.BASE_DIR,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=_trainer_env(*told)
            | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)})
            | ({broker_line.VARIABLE: broker} if broker else {}),
        )
    return LocalTrainer(process)


def _trainer_env(*told: str) -> dict[str, str]:
    """Return the environment variables that a trainer may know: no database, no keys but what it is told."""
    passed = model_process.environment("FLYWHEEL_SANDBOX_WITHOUT", *told)  # which layers its verifiers may do without
    return {**passed, "FLYWHEEL_SUPERVISED": "1", "PYTHONUNBUFFERED": "1"}


def result_of(place: Path) -> dict[str, Any]:
    """The last words of a trainer in JSON; empty where it did not come so far."""
    try:
        value = json.loads((place / "result.json").read_bytes())
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError):
        return {}


def last_words(place: Path) -> str:
    """The last error that a trainer wrote before it died, else its last line; torchrun ends with a summary of its own,
    in a frame."""
    lines = [line for line in (place / "trainer.log").read_text(errors="replace").splitlines() if line.strip("=- ")]
    errors = [line for line in lines[-SUMMARY:] if line.startswith("ERROR ")]
    return (errors or lines or ["it wrote nothing"])[-1][:500]
