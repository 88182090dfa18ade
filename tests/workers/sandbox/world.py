"""What attacks would like to reach, and the eyes that see whether one did.

Canary files, listeners on every kind of socket, a process, a key, shared memory, a secret in the environment and in a
descriptor that was left open. All of it lies in a temporary directory and on loopback, and is removed at the end.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

from workers.sandbox import host
from workers.sandbox.outcome import MIB, Limits, Outcome, Status

LIMITS = Limits(cpu_seconds=1, wall_seconds=1.0, memory_bytes=64 * MIB, result_bytes=8192, printed_bytes=8192)
MARGIN_S = 1.5
MARGIN_BYTES = 64 * MIB
_libc = ctypes.CDLL(None, use_errno=True)


class World:
    def __init__(self) -> None:
        self.secret = os.environ.get("SANDBOX_SECRET") or "canary-" + uuid.uuid4().hex
        os.environ["SANDBOX_SECRET"] = self.secret
        self.marker = "fw-attack-" + uuid.uuid4().hex[:12]
        self.root = Path(tempfile.mkdtemp(prefix=self.marker))
        self.boot, host._BOOT = host._BOOT, f"{host._BOOT}  # {self.marker}"
        self.hits: list[str] = []
        self.signals: list[int] = []
        self._files()
        self._listeners()
        self._memory()
        self.canary: subprocess.Popen[bytes] | None = None
        self._calm: object = None
        self.on_sigterm = signal.signal(signal.SIGTERM, lambda number, _: self.signals.append(number))
        self.reset()

    # -- what there is ----------------------------------------------------------------------------------------

    def _files(self) -> None:
        self.root.chmod(0o755)
        self.drop = self.root / "drop"
        self.drop.mkdir()
        self.drop.chmod(0o777)
        (self.root / "canary").write_text(self.secret)
        (self.root / "private").write_text(self.secret)
        (self.root / "private").chmod(0o600)
        for name in ("planted", "sitecustomize"):
            (self.root / f"{name}.py").write_text(f"SECRET = {self.secret!r}\n")
        with zipfile.ZipFile(self.root / "modules.zip", "w") as archive:
            archive.writestr("zipped.py", f"SECRET = {self.secret!r}\n")
        with contextlib.suppress(OSError):
            os.setxattr(self.root / "canary", "user.secret", self.secret.encode())
        self.left = os.open(self.root / "canary", os.O_RDONLY)
        os.set_inheritable(self.left, True)
        self.open = self.root / "open"

    def _listeners(self) -> None:
        self.sockets: dict[str, socket.socket] = {}
        inet = {"tcp4": (socket.AF_INET, socket.SOCK_STREAM), "udp4": (socket.AF_INET, socket.SOCK_DGRAM)}
        inet |= {"tcp6": (socket.AF_INET6, socket.SOCK_STREAM), "udp6": (socket.AF_INET6, socket.SOCK_DGRAM)}
        for name, (family, kind) in inet.items():
            made = socket.socket(family, kind)
            made.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
            self.sockets[name] = made
        unix = {"unix": (str(self.root / "unix"), socket.SOCK_STREAM)}
        unix |= {"unix_datagram": (str(self.root / "datagram"), socket.SOCK_DGRAM)}
        unix |= {"abstract": (f"\0{self.marker}", socket.SOCK_STREAM)}
        unix |= {"abstract_datagram": (f"\0{self.marker}-d", socket.SOCK_DGRAM)}
        for name, (path, kind) in unix.items():
            made = socket.socket(socket.AF_UNIX, kind)
            made.bind(path)
            if not path.startswith("\0"):
                os.chmod(path, 0o777)
            self.sockets[name] = made
        self.selector = selectors.DefaultSelector()
        for name, made in self.sockets.items():
            if made.type == socket.SOCK_STREAM:
                made.listen(16)
            made.setblocking(False)
            self.selector.register(made, selectors.EVENT_READ, name)
        ours, self.connection = socket.socketpair()
        os.set_inheritable(self.connection.fileno(), True)
        ours.setblocking(False)
        self.selector.register(ours, selectors.EVENT_READ, "a left connection")
        self.sockets["ours"] = ours
        self.closing = False
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        while not self.closing:
            for key, _ in self.selector.select(0.1):
                made: socket.socket = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(OSError):
                    if made.type == socket.SOCK_STREAM and key.data != "a left connection":
                        made.accept()[0].close()
                    elif not made.recv(1000):
                        continue
                    self.hits.append(key.data)

    def _memory(self) -> None:
        self.buffer = ctypes.create_string_buffer(self.secret.encode(), 64)
        _libc.shmat.restype = ctypes.c_void_p
        self.shared = _libc.shmget(0, 4096, 0o1666)
        at = _libc.shmat(self.shared, None, 0)
        ctypes.memmove(at, self.secret.encode(), len(self.secret))
        self.key = _libc.syscall(248, b"user", self.marker.encode(), self.secret.encode(), len(self.secret), -3)

    def reset(self) -> None:
        """As it was: before each attack, and after one that got through."""
        self.hits.clear()
        self.signals.clear()
        if self.canary is None or self.canary.poll() is not None or self._canary_state() != self._calm:
            if self.canary is not None:
                self.canary.kill()
                self.canary.wait()
            self.canary = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            time.sleep(0.02)
            self._calm = self._canary_state()
        for each in self.drop.iterdir():
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        with contextlib.suppress(FileNotFoundError):
            self.open.unlink()
        self.open.write_text("as it was")
        self.open.chmod(0o666)
        for path in self._strewn():
            path.unlink(missing_ok=True)
        self.buffer.value = self.secret.encode()
        self.before = self._look()

    def given(self) -> dict[str, Any]:
        """What an attack is told; nothing of it is secret."""
        kept = host._keeper()
        assert self.canary is not None
        paths = sysconfig.get_paths()
        libraries = [p for p in ("/lib/x86_64-linux-gnu/libutil.so.1", "/usr/lib64/libutil.so.1") if os.path.exists(p)]
        return {
            "canary": str(self.root / "canary"),
            "private": str(self.root / "private"),
            "directory": str(self.root),
            "zip": str(self.root / "modules.zip"),
            "open": str(self.open),
            "drop": str(self.drop),
            "marker": self.marker,
            "unix": str(self.root / "unix"),
            "unix_datagram": str(self.root / "datagram"),
            "abstract": self.marker,
            "abstract_datagram": f"{self.marker}-d",
            **{name: self.sockets[name].getsockname()[1] for name in ("tcp4", "tcp6", "udp4", "udp6")},
            "pid": self.canary.pid,
            "host": os.getpid(),
            "keeper": kept.process.pid,
            "address": ctypes.addressof(self.buffer),
            "shared": self.shared,
            "key": self.key,
            "hostname": socket.gethostname(),
            "library": (libraries or ["libutil.so.1"])[0],
            "packages": [paths["purelib"], "/usr/lib/python3/dist-packages", *sys.path],
            "path": [paths["stdlib"], paths["platstdlib"] + "/lib-dynload"],
            "wall": LIMITS.wall_seconds,
            "half": self.other[:20],
        }

    def call_of_another(self) -> None:
        """What may lie in some memory: a verifier of somebody else's, with a target that is nobody's business."""
        host.run("def verify(x): return len(x)", arguments=[f"the call before: {self.other}"], limits=LIMITS)

    @property
    def other(self) -> str:
        """What `call_of_another` was given."""
        return "other-" + hashlib.sha256(self.secret.encode()).hexdigest()

    # -- what was done to it ----------------------------------------------------------------------------------

    def damage(self, outcome: Outcome) -> str:
        """What the attack did, in words; empty when nothing. Only the last two believe what the guest says."""
        told = json.dumps(outcome.to_json(), ensure_ascii=False)
        found = [
            (self.secret in told, "read a secret"),
            (self.other in told, "read what another call was given"),
            (self._look() != self.before, "changed a file"),
            (any(path.exists() for path in self._strewn()), "wrote outside"),
            (bool(self.hits), f"reached {', '.join(self.hits[:3])}"),
            (bool(self.signals) or self._canary_state() != self._calm, "touched another process"),
            (self.buffer.value != self.secret.encode(), "changed another's memory"),
            (host._kept is None or host._kept.process.poll() is not None, "ended the keeper"),
            (outcome.peak_bytes > LIMITS.memory_bytes + MARGIN_BYTES, f"took {outcome.peak_bytes // MIB} MB"),
            (outcome.seconds > LIMITS.wall_seconds + MARGIN_S, f"took {outcome.seconds:.1f} s"),
            (len(told) > 4 * (LIMITS.printed_bytes + LIMITS.result_bytes), "said more than it may"),
            (self._leftover(), "left a process behind"),
            (outcome.value == "forged" and outcome.status is Status.OK, "was believed"),
            (str(outcome.value).startswith("reached"), str(outcome.value)[:60]),
        ]
        return "; ".join(words for is_so, words in found if is_so)

    def _look(self) -> list[object]:
        """Everything that an attack could change in the directory."""
        found: list[object] = [*sorted(path.name for path in self.drop.iterdir())]
        for name in ("canary", "private", "open", "planted.py", "sitecustomize.py", "modules.zip"):
            path = self.root / name
            if not path.exists():
                found.append(f"no {name}")
                continue
            seen = path.stat()
            names = [n for n in os.listxattr(path) if n != "user.secret"]
            held = path.read_bytes() if os.access(path, os.R_OK) else "unreadable"
            found += [held, seen.st_mode, seen.st_uid, seen.st_mtime_ns, seen.st_nlink, names]
        return found

    def _strewn(self) -> list[Path]:
        """Where attacks try to leave a file outside the directory."""
        places = [Path(place) / self.marker for place in ("/tmp", "/dev/shm", "/var/tmp")]
        return [*places, Path(json.__file__).parent / f"{self.marker}.py"]

    def _canary_state(self) -> object:
        assert self.canary is not None
        pid = self.canary.pid
        if self.canary.poll() is not None:
            return "dead"
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (status[0] in "TtZ", os.getpriority(os.PRIO_PROCESS, pid), resource.prlimit(pid, resource.RLIMIT_NOFILE))

    def _leftover(self) -> bool:
        """Whether a process of a guest still lives a while after its call."""
        kept = host._kept
        known = {kept.process.pid} if kept else set()
        give_up = time.monotonic() + 1.0
        while left := _marked(self.marker) - known:
            if time.monotonic() > give_up:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        host.close()
        host._BOOT = self.boot
        signal.signal(signal.SIGTERM, self.on_sigterm)
        os.environ.pop("SANDBOX_SECRET", None)
        self.closing = True
        self.listener.join()
        self.selector.close()
        for made in self.sockets.values():
            made.close()
        self.connection.close()
        os.close(self.left)
        if self.canary is not None:
            self.canary.kill()
            self.canary.wait()
        _libc.shmctl(self.shared, 0, None)
        if self.key > 0:
            _libc.syscall(250, 3, self.key)
        for path in self._strewn():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.root, ignore_errors=True)


def _marked(marker: str) -> set[int]:
    """Live processes whose command has the marker: the keeper and its forks, and what an attack ran."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():  # empty for one that is dead
                    found.add(int(name))
    return found
