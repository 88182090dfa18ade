"""A run directory while its trainer lives: one owner, events, heartbeat, the asking to stop, and the result.

Imports no torch: lock, heartbeat and the watch over the supervisor stand before the libraries load, which takes
seconds. The contract is told in `docs/design/run-directory.md`.
"""

import argparse
import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from workers.processes import model_process
from workers.trainers.run import checkpoints, ranks, run_spec
from workers.trainers.run.run_failures import TrainingError, classify

EXIT_FAILED = 1
EXIT_LOCKED = 75
EXIT_ORPHANED = 76

WORK = "work"
"""Where things are written aside: on the same file system, swept at every start."""
FINAL = "final"

log = logging.getLogger(__name__)


def command(module: str, place: Path, processes: int, wait_lock: int = 10) -> list[str]:
    """The command of a trainer, or of several processes that share the work."""
    shared = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    many = shared if processes > 1 else []
    return [sys.executable, "-m", *many, module, str(place), "--wait-lock", str(wait_lock)]


class Run:
    """A trainer's view of its run directory. `step` is the last finished step. Of several processes only the first
    writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec: run_spec.Spec
        self.step = 0
        self.is_first = ranks.rank() == 0
        self.started = time.monotonic()
        self._asked = False
        self._events = -1

    @property
    def work(self) -> Path:
        return self.path / WORK

    @property
    def cancelled(self) -> bool:
        """Somebody asked to save and stop: a file `CANCEL`, or SIGTERM."""
        return self._asked or (self.path / "CANCEL").exists()

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.started, 3)

    def event(self, event: str, **fields: Any) -> None:
        """Append one line to `events.jsonl`, whole or not at all."""
        if not self.is_first:
            return
        row = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        before = os.fstat(self._events).st_size
        try:
            written = os.write(self._events, line)
            if written < len(line):
                os.write(self._events, line[written:])  # raises what stopped the first write
        except OSError:
            os.ftruncate(self._events, before)
            raise

    def has_told(self, event: str, step: int) -> bool:
        """Whether this event of this step is among those that were appended."""
        lines = (self.path / "events.jsonl").read_bytes().splitlines()
        rows = (json.loads(line) for line in lines if event.encode() in line)
        return any(row["event"] == event and row.get("step") == step for row in rows)

    def warn(self, message: str) -> None:
        log.warning(message)
        self.event("warning", message=message)

    def own(self, trainer: str | None) -> None:
        """Take the directory over: sweep what a crash left, begin the heartbeat, listen for signals. Its spec is this
        trainer's, or for None one of another kind, which is not read here."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        if self.is_first:
            shutil.rmtree(self.work, ignore_errors=True)
            (self.path / "trainer.pid").write_text(f"{os.getpid()}\n")
            self._events = os.open(self.path / "events.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._cut_torn_line()
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        if trainer is not None:
            self.spec = run_spec.read(self.path, trainer)

    def write_result(self, **fields: Any) -> None:
        """The last thing a run writes: whoever finds it may trust that everything else is there."""
        if self.is_first:
            self._write_result(fields)

    def _write_result(self, fields: Mapping[str, Any]) -> None:
        aside = self.path / f"result.json.aside-{ranks.rank()}"
        with aside.open("w") as file:
            json.dump(fields, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self.path / "result.json")
        checkpoints.fsync(self.path)

    def fail(self, error: TrainingError) -> None:
        """Record why, as far as a disk that may be full allows; also what only another process than the first met."""
        if self.is_first:
            shutil.rmtree(self.work, ignore_errors=True)
        why = {"kind": error.kind, "message": error.message}
        with _reported():
            self.event("training_error", **why)
        with _reported():
            self._write_result({"status": "failed", **why, "step": self.step, "seconds": self.seconds})

    def _ask(self, number: int, frame: Any) -> None:
        self._asked = True

    def _cut_torn_line(self) -> None:
        """A machine that lost power may leave half a line; readers only ever take whole ones."""
        content = (self.path / "events.jsonl").read_bytes()
        if content and not content.endswith(b"\n"):
            os.ftruncate(self._events, content.rfind(b"\n") + 1)

    def _beat(self) -> None:
        path, aside = self.path / "heartbeat", self.path / "heartbeat.aside"
        while True:
            try:
                row = {"pid": os.getpid(), "time": datetime.now(UTC).isoformat(), "step": self.step}
                aside.write_text(json.dumps(row))
                aside.rename(path)
            except OSError:  # a full disk is no death: the file's time still says that we live
                _touch(path)
            time.sleep(1)


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        log.error("the failure could not be recorded: %s", problem)


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError:
        log.warning("no heartbeat can be written")


def main(name: str | None, train: Callable[[Run], None], argv: Sequence[str] | None = None) -> int:
    """Run a trainer on a run directory; the exit code says how it went, `result.json` what came of it. Without a name
    it is something else that works as a trainer does, and reads the directory's `spec.json` itself."""
    model_process.limit_memory()
    parser = argparse.ArgumentParser(prog=f"python -m workers.trainers.{name}", description=__doc__)
    parser.add_argument("rundir", type=Path)
    parser.add_argument(
        "--wait-lock",
        type=float,
        default=os.environ.get("FLYWHEEL_WAIT_LOCK", "0"),
        metavar="SECONDS",
        help="how long to wait while another trainer holds the directory",
    )
    options = parser.parse_args(argv)
    path: Path = options.rundir.resolve()
    keep_to_ourselves()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if os.environ.get("FLYWHEEL_SUPERVISED") == "1":
        threading.Thread(target=_watch_supervisor, name="supervisor", daemon=True).start()
    if not path.is_dir():
        log.error("%s is not a run directory", path)
        return EXIT_FAILED
    lock = _lock(path, options.wait_lock) if ranks.rank() == 0 else -1
    if lock is None:
        log.error("another trainer holds %s; wait for it (--wait-lock SECONDS) or stop it", path)
        return EXIT_LOCKED
    if is_complete(path):
        log.info("%s is complete, there is nothing to do", path)
        return 0
    if ranks.rank() == 0:
        (path / "result.json").unlink(missing_ok=True)
    return _carry_out(Run(path), name, train)  # the lock stays with the process until it ends


def keep_to_ourselves() -> None:
    """Silence the libraries' telemetry and hub look-ups, and take one device. They read this when they are imported.
    Where several processes share a run each takes its own of all that are there."""
    os.environ |= dict.fromkeys(
        (
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "HF_DATASETS_OFFLINE",
            "HF_HUB_DISABLE_TELEMETRY",
            "DO_NOT_TRACK",
            "HF_DATASETS_DISABLE_PROGRESS_BARS",
            "HF_HUB_DISABLE_PROGRESS_BARS",
        ),
        "1",
    )
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if ranks.world() > 1:
        return
    # TRL refuses several visible GPUs in one process.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def _carry_out(run: Run, name: str | None, train: Callable[[Run], None]) -> int:
    try:
        run.own(name)
        train(run)
    except Exception as error:
        problem = classify(error)
        if problem.kind == "internal":
            traceback.print_exc()
            if ranks.world() > 1:
                return EXIT_FAILED  # perhaps another process has died: no reason to give the run up
        log.error("%s: %s", problem.kind, problem.message)
        run.fail(problem)
        return EXIT_FAILED
    return 0


def _lock(path: Path, wait_s: float) -> int | None:
    """The descriptor that holds the directory for the life of this process, or None when another has it."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(0.1)


def is_complete(path: Path) -> bool:
    """Whether the run of this directory has come to its end."""
    try:
        return bool(json.loads((path / "result.json").read_bytes())["status"] == "completed")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _watch_supervisor() -> NoReturn:
    """Our stdin is a pipe that the supervisor holds; when it ends the supervisor is dead and nobody owns us."""
    with contextlib.suppress(OSError):  # a stdin that cannot be read is held by nobody either
        while os.read(0, 4096):
            pass
    os._exit(EXIT_ORPHANED)
