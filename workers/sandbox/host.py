"""Our side of the wire: starts the keeper, hands calls over, and reads answers as what they are, hostile bytes."""

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from flywheel.system import env
from workers.sandbox.layers import ALL
from workers.sandbox.outcome import Limits, Outcome, Status

MISSING = "a layer is missing: "
ROOT = Path(__file__).resolve().parents[2]
CODE_BYTES_MAX = 256 * 1024
DEEP_MAX = 64
"""Levels of lists and dictionaries in what is returned."""
SPENT = (signal.SIGXCPU, signal.SIGKILL)
"""With these the kernel ends what has used up its processor time."""
COUNTED = 0.8
"""Of the processor time that the kernel has counted when it ends a process, what it tells of it afterwards at least."""
_START_S = 30.0
_GRACE_S = 15.0
"""On top of a call's wall time: for setting up, and for ending what must be ended."""
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from workers.sandbox import keeper; keeper.main(int(sys.argv[2]))"
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}


def run(
    code: str,
    *,
    function: str | None = "verify",
    arguments: Sequence[Any] = (),
    limits: Limits | None = None,
    given: Collection[str] | None = None,
) -> Outcome:
    """Call `function` of `code` with JSON arguments, in a process of its own; with None, just run the code.

    May be called from many threads. All layers are on, but for what the operator of this machine gave up by name
    (FLYWHEEL_SANDBOX_WITHOUT). Only tests and the report say otherwise, with the layers in `given`.
    """
    limits = limits or Limits()
    if len(code.encode("utf-8", "replace")) > CODE_BYTES_MAX:
        return Outcome(Status.REFUSED, reason=f"the code is longer than {CODE_BYTES_MAX // 1024} kB")
    try:
        body = json.dumps({"code": code, "function": function, "arguments": list(arguments)}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return Outcome(Status.REFUSED, reason=f"the arguments are no JSON: {error}")
    if len(body) > limits.input_bytes:
        return Outcome(Status.REFUSED, reason=f"code and arguments are longer than {limits.input_bytes:,} bytes")
    on = set(ALL) - env.sandbox_without() if given is None else set(given)
    asked = {**limits.to_json(), "layers": [layer for layer in ALL if layer in on]}
    try:
        answer = _keeper().ask(asked, body, limits.wall_seconds + _GRACE_S)
    except OSError as error:
        return Outcome(Status.REFUSED, reason=f"the sandbox's own process cannot be started: {error}")
    return _read(answer, asked)


class Keeper:
    """The process that forks guests. It ends when its end of the socket closes: with us, however we end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-S", "-s", "-P", "-B", "-c", _BOOT, str(ROOT), str(theirs.fileno())]
            self.process = subprocess.Popen(
                command,
                env=_ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self.socket = ours
        ours.settimeout(_START_S)
        try:
            ready = ours.recv(16)
        except TimeoutError:
            ready = b""
        if not ready:
            self.process.kill()
            assert self.process.stderr is not None
            words = self.process.stderr.read().decode("utf-8", "replace").strip().splitlines()
            self.close()
            raise OSError(words[-1] if words else "it did not answer")
        ours.settimeout(None)

    def ask(self, asked: dict[str, Any], body: bytes, patience_s: float) -> bytes:
        """One call. Returns what the watcher said; empty when it said nothing."""
        request = os.memfd_create("request")
        answer, theirs = os.pipe()
        try:
            with open(request, "wb", closefd=False) as file:
                file.write(body)
            os.lseek(request, 0, os.SEEK_SET)
            socket.send_fds(self.socket, [json.dumps(asked).encode()], [request, theirs])
        except OSError:
            os.close(answer)
            raise
        finally:
            os.close(request)
            os.close(theirs)
        try:
            return _whole(answer, time.monotonic() + patience_s)
        finally:
            os.close(answer)

    def close(self) -> None:
        self.socket.close()
        self.process.wait(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def leave(self) -> None:
        """In a fork of ours: let go of our copies, so that the keeper sees its host end."""
        self.socket.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process.returncode = 0  # it is not our child, and not ours to wait for


_lock = threading.Lock()
_kept: Keeper | None = None


def _keeper() -> Keeper:
    """This process's keeper: one, started at the first call, and again when it is gone."""
    global _kept
    with _lock:
        if _kept is not None and _kept.process.poll() is not None:
            close()
        if _kept is None:
            _kept = Keeper()
        return _kept


def close() -> None:
    """End this process's keeper, if there is one; the next call starts another."""
    global _kept
    kept, _kept = _kept, None
    if kept is not None:
        with contextlib.suppress(OSError):
            kept.close()


def _after_fork() -> None:
    """The keeper is our parent's, and so is the thread that may have held the lock."""
    global _kept, _lock
    _lock = threading.Lock()
    kept, _kept = _kept, None
    if kept is not None:
        kept.leave()


os.register_at_fork(after_in_child=_after_fork)


def _whole(handle: int, deadline: float) -> bytes:
    """The watcher's words, after their length; empty when they do not come. The pipe's end is not waited for: another
    thread may have forked, and its child have a copy of it."""
    said = bytearray()
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if poller.poll(left * 1000 + 1):
            part = os.read(handle, 65536)
            if not part:
                break
            said += part
            if len(said) >= 4 and len(said) - 4 >= int.from_bytes(said[:4]):
                return bytes(said[4:])
    return b""


def _read(answer: bytes, asked: dict[str, Any]) -> Outcome:
    """The watcher's words decide; the guest's bytes are read only when it ended by itself."""
    if not answer:
        return Outcome(Status.CRASHED, reason="the process that watches the code was ended")
    first, _, sent = answer.partition(b"\n")
    head = json.loads(first)
    seen = {name: head[name] for name in ("printed", "seconds", "peak_bytes")}
    status, value, reason = _ending(head, asked) or _returned(sent)
    return Outcome(status=status, value=value, reason=reason, **clean(seen))


def _ending(head: dict[str, Any], asked: dict[str, Any]) -> tuple[Status, None, str] | None:
    """Return the ending that the watcher saw; None where the call ended by itself and well."""
    if head["refused"]:
        layer = head["refused"].partition(":")[0]
        return Status.REFUSED, None, f"{MISSING}{head['refused']}. {GETTING[layer]}"
    match head["ended"]:
        case "wall":
            return Status.TIMEOUT, None, f"it ran longer than {asked['wall_seconds']:g} s"
        case "printed":
            return Status.OUTPUT, None, f"it printed more than {asked['printed_bytes']:,} bytes"
        case "result":
            return Status.OUTPUT, None, f"it returned more than {asked['result_bytes']:,} bytes"
        case "setup":
            return Status.CRASHED, None, "the layers could not be put on in time; the machine is overloaded"
    if not head["entered"] or head["status"] is None:
        return Status.CRASHED, None, f"its process ended before the code was run: {head['failed'] or 'no word of why'}"
    if os.WIFSIGNALED(head["status"]):
        number = os.WTERMSIG(head["status"])
        if number in SPENT and head["cpu_seconds"] >= asked["cpu_seconds"] * COUNTED:
            return Status.TIMEOUT, None, f"it used more than {asked['cpu_seconds']} s of processor time"
        return Status.CRASHED, None, f"its process was ended by signal {number}"
    return None


def _returned(sent: bytes) -> tuple[Status, Any, str]:
    """Read the guest's answer: `{"value"}`, `{"raised", "line"}` or `{"memory", "line"}`, strictly."""
    try:
        told = clean(json.loads(sent.decode("utf-8"), parse_constant=_no_number, parse_float=_finite))
    except _NoNumber:
        return Status.NAN, None, "it returned NaN or infinity"
    except (ValueError, RecursionError):
        return Status.CRASHED, None, "it sent back nothing" if not sent else "what it sent back is no answer"
    if isinstance(told, dict):
        if told.keys() == {"value"}:
            return Status.OK, told["value"], ""
        for status in (Status.RAISED, Status.MEMORY):
            if told.keys() == {status.value, "line"} and isinstance(told[status.value], str):
                where = f" (line {told['line']})" if isinstance(told["line"], int) else ""
                return status, None, told[status.value][-2000:] + where
    return Status.CRASHED, None, "what it sent back is no answer"


class _NoNumber(Exception):
    pass


def _no_number(_: str) -> float:
    raise _NoNumber


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NoNumber
    return number


def clean(value: Any, deep: int = DEEP_MAX) -> Any:
    """The same without what no database stores: NUL and lone surrogates, in keys too. Raises ValueError for what is
    nested so deeply that whoever walks it would stumble."""
    if deep < 0:
        raise ValueError("nested too deeply")
    match value:
        case str():
            return value.replace("\0", "\u2400").encode("utf-8", "replace").decode()
        case list():
            return [clean(each, deep - 1) for each in value]
        case dict():
            return {clean(key): clean(each, deep - 1) for key, each in value.items()}
    return value


GETTING = {
    "account": "Started as root, Flywheel gives each call an unused account; that needs CAP_SETUID and CAP_SETGID and "
    "the numbers 60600 to 61099 in the container's map. Or run it as an ordinary user.",
    "namespaces": "They need user namespaces that an ordinary account may make: user.max_user_namespaces above 0, "
    "kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), and in "
    "a container a seccomp profile that lets unshare and mount pass. Where they cannot be had, an operator may "
    "give them up knowingly: FLYWHEEL_SANDBOX_WITHOUT=namespaces.",
    "limits": "They need the ordinary right to lower one's own resource limits.",
    "landlock": "It needs Linux 5.13 or newer with landlock among its security modules (lsm= on the kernel's command "
    "line).",
    "seccomp": "It needs a kernel with CONFIG_SECCOMP_FILTER, on x86-64 or arm64.",
}
"""How to get what is missing."""
