"""The processes between us and the guest. They are started clean and never read what a call is about.

    host ── keeper ── watcher ── parent ── guest

The *keeper* is a fresh interpreter with an empty environment that has imported what guests may use; it forks for each
call, and knows nothing of any. The *watcher* keeps the time, takes what comes out, and says how the call ended: it is
outside every layer, and the host believes only it. The *parent* takes the account and the namespaces, and waits. The
*guest* puts on the other layers and runs the code (`guest.play`).

The host sends two descriptors with each call: the request, which only the guest reads, and a pipe for the answer. So
there is no stream that two calls share, and nothing of one call in the memory of the next.

Whoever dies takes what is below along: the host's end of the socket closes, or the parent's death is signalled.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from workers.sandbox import guest, layers

SETUP_S = 10.0
"""For forking and putting on the layers; the call's own time begins after it."""
READY = b"ready"
_base_bytes = 0
"""Address space of the keeper, on top of which a guest has its memory."""


def main(handle: int) -> None:
    """Serve calls until the host is gone."""
    global _base_bytes
    for name in guest.MODULES:
        importlib.import_module(name)
    sys.path[:] = []
    sys.meta_path.append(guest.NotHere)
    with contextlib.suppress(OSError):
        os.chdir("/")
    layers.forget_keys()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    _base_bytes = int(_read("/proc/self/statm").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    keeper = os.getpid()
    host = socket.socket(fileno=handle)
    host.send(READY)
    while True:
        message, handles, _, _ = socket.recv_fds(host, 4096, 2)
        if not message:
            os._exit(0)
        with contextlib.suppress(OSError):  # no process to be had: the host sees the answer's pipe end
            if os.fork() == 0:
                try:
                    host.close()
                    Watcher(json.loads(message), *handles).watch(keeper)
                finally:
                    os._exit(1)
        for each in handles:
            os.close(each)


class Watcher:
    """Runs one call and tells the host how it ended."""

    def __init__(self, asked: dict[str, Any], request: int, answer: int) -> None:
        self.asked = asked
        self.request, self.answer = request, answer
        self.result, self.printed = bytearray(), bytearray()
        self.said = bytearray()
        """What the parent and the guest tell while the guest is put together: JSON, one a line."""

    def watch(self, keeper: int) -> None:
        layers.die_with_parent()
        if os.getppid() != keeper:
            return
        layers.adopt_orphans()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.started = time.monotonic()
        self.entered: float | None = None
        control, printed, result = os.pipe(), os.pipe(), os.pipe()
        self.parent = os.fork()
        if self.parent == 0:
            _parent(self.asked, self.request, printed[1], result[1], control[1])
        for handle in (self.request, control[1], printed[1], result[1]):
            os.close(handle)
        self.inputs = {control[0]: self.said, printed[0]: self.printed, result[0]: self.result}
        ended = self._until_it_ends()
        cpu_seconds, peak_bytes = self._end_all()
        self._take_rest()
        seconds = time.monotonic() - (self.entered or self.started)
        self._answer(ended, seconds=round(seconds, 4), cpu_seconds=round(cpu_seconds, 4), peak_bytes=peak_bytes)

    def _until_it_ends(self) -> str:
        """Wait. Returns `ended`, or why it is to be ended: `wall`, `printed`, `result`, `setup`, `host`."""
        poller = select.poll()
        for handle in self.inputs:
            poller.register(handle, select.POLLIN)
        poller.register(self.answer, 0)  # an error here: nobody waits for the answer any more
        gone = os.pidfd_open(self.parent)
        poller.register(gone, select.POLLIN)
        while True:
            if self.entered is None and b'"entered"' in self.said:
                self.entered = time.monotonic()
            wall = self.asked["wall_seconds"]
            deadline = self.started + SETUP_S if self.entered is None else self.entered + wall
            left = deadline - time.monotonic()
            if left <= 0:
                return "setup" if self.entered is None else "wall"
            for handle, event in poller.poll(left * 1000 + 1):
                if handle == self.answer:
                    return "host"
                if handle == gone:
                    return "ended"
                if event & select.POLLIN:
                    self.inputs[handle] += os.read(handle, 65536)
                else:
                    poller.unregister(handle)
            if over := self._over():
                return over

    def _over(self) -> str:
        for name in ("printed", "result"):
            if len(getattr(self, name)) > self.asked[f"{name}_bytes"]:
                return name
        return ""

    def _end_all(self) -> tuple[float, int]:
        """End the parent, and with it the guest; then whatever else was left to us. Returns processor time and peak."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.parent, signal.SIGTERM)  # it ends the guest, and counts what that used
        cpu_seconds, peak_kib = 0.0, 0
        give_up = time.monotonic() + 1.0
        while True:
            try:
                pid, _, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return cpu_seconds, peak_kib * 1024
            if pid:
                cpu_seconds += used.ru_utime + used.ru_stime
                peak_kib = max(peak_kib, used.ru_maxrss)
                continue
            if time.monotonic() > give_up:
                self._kill_children()
            time.sleep(0.0005)

    def _kill_children(self) -> None:
        me = os.getpid()
        for child in _read(f"/proc/{me}/task/{me}/children").split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(child), signal.SIGKILL)

    def _take_rest(self) -> None:
        for handle, into in self.inputs.items():
            os.set_blocking(handle, False)
            with contextlib.suppress(BlockingIOError):
                while (part := os.read(handle, 65536)) and not self._over():
                    into += part

    def _answer(self, ended: str, **measured: Any) -> None:
        told: dict[str, Any] = {}
        for line in self.said.splitlines():
            told |= json.loads(line)
        head = {
            "ended": self._over() or ended,
            "entered": "entered" in told,
            "refused": told.get("refused"),
            "failed": told.get("failed"),
            "status": told.get("status"),
            "printed": bytes(self.printed[: self.asked["printed_bytes"]]).decode("utf-8", "replace"),
            **measured,
        }
        data = json.dumps(head).encode() + b"\n" + self.result[: self.asked["result_bytes"]]
        data = len(data).to_bytes(4) + data
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self.answer, data) :]


def _parent(asked: dict[str, Any], request: int, printed: int, result: int, control: int) -> None:
    """Become another account in other namespaces, fork the guest into them, wait for it. Never returns."""
    try:
        empty, nobody = os.pipe()
        os.close(nobody)
        for number, handle in enumerate(_moved([empty, printed, printed, result, request, control])):
            os.dup2(handle, number)
        layers.close_from(6)
        control = 5
        wanted = asked["layers"]
        watcher = os.getppid()
        if refused := layers.put_on_outer(wanted, watcher):
            _say(control, refused=refused)
            os._exit(0)
        layers.die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            _guest(asked, control)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.closerange(0, control)
        _, status, _ = os.wait4(pid, 0)
        _say(control, status=status)
    except Exception as error:
        _say(control, failed=repr(error))
    finally:
        os._exit(1)


def _guest(asked: dict[str, Any], control: int) -> None:
    os.setsid()  # a signal to its process group reaches itself alone
    layers.die_with_parent()
    layers.no_new_privileges()
    granted = layers.Granted(asked["cpu_seconds"], _base_bytes + asked["memory_bytes"])
    if refused := layers.put_on_inner(asked["layers"], granted):
        _say(control, refused=refused)
        os._exit(0)
    _say(control, entered=True)
    os.close(control)
    guest.play()


def _moved(handles: list[int]) -> list[int]:
    """Copies above the numbers that are about to be overwritten."""
    return [fcntl.fcntl(handle, fcntl.F_DUPFD, 64) for handle in handles]


def _say(control: int, **said: Any) -> None:
    os.write(control, json.dumps(said).encode() + b"\n")


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
