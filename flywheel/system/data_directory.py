"""The data directory of our PostgreSQL, and which processes work on it."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"
SOCKET_PATH_MAX = 107
"""Bytes that sockaddr_un.sun_path holds before its NUL."""

Owner = tuple[int, int]
"""Uid and gid."""


class PostgresError(Exception):
    """The embedded server cannot do what was asked; the message says why and what to do."""


@dataclass(frozen=True)
class DataDirectory:
    """`data_dir`: cluster/ (PGDATA), lock, socket/, socket_dir, pg_hba.conf, pg_ident.conf, log."""

    root: Path

    @property
    def cluster(self) -> Path:
        return self.root / "cluster"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    def prepare(self) -> None:
        if sys.platform != "linux":
            raise PostgresError("The embedded PostgreSQL needs Linux; elsewhere set DATABASE_URL.")
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            owner = self.root.stat().st_uid
            if os.geteuid() not in (0, owner):
                raise PostgresError(f"{self.root} belongs to uid {owner}, but this is uid {os.geteuid()}.")
            if stat.S_IMODE(self.root.stat().st_mode) != 0o700:
                self.root.chmod(0o700)
            os.close(os.open(self.lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        except OSError as error:
            raise PostgresError(f"Cannot use the data directory {self.root}: {error}") from error

    def try_lock(self) -> int | None:
        """Return a descriptor that holds the lock: no process of a server that we started is alive."""
        try:
            lock = os.open(self.lock, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PostgresError(f"Cannot use the data directory {self.root}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def socket_dir(self) -> Path | None:
        """Return the socket's directory if it is there and is nobody else's to write or to search."""
        try:
            path = Path((self.root / "socket_dir").read_text())
            found = path.lstat()
            safe = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
            return path if safe and found.st_uid == self.root.stat().st_uid else None
        except OSError:
            return None

    def listener(self) -> int | None:
        """Return the process that listens on the socket: a postmaster, for nobody else can write there."""
        if (socket_dir := self.socket_dir()) is None:
            return None
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(5)
                probe.connect(str(socket_dir / SOCKET))
                credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
        pid, _, _ = struct.unpack("3i", credentials)
        return int(pid) or None  # 0 is a process of another namespace

    def forget_socket_dir(self) -> None:
        """Leave nothing in /tmp. With the lock held."""
        if path := self.socket_dir():
            shutil.rmtree(path, ignore_errors=True)
        (self.root / "socket_dir").unlink(missing_ok=True)

    def make_socket_dir(self, owner: Owner) -> Path:
        """Make a fresh private directory whose path is short enough for a socket. With the lock held."""
        self.forget_socket_dir()
        path = self.root / "socket"
        if _can_hold_socket(path):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(mode=0o700)
        else:
            runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
            is_ours = runtime.is_dir() and runtime.stat().st_uid == os.geteuid() == owner[0]
            # Else /tmp, not TMPDIR: that may be long again, or out of the server's reach.
            base = runtime if is_ours and _can_hold_socket(runtime / "flywheel-12345678") else "/tmp"  # noqa: S108
            path = Path(tempfile.mkdtemp(prefix="flywheel-", dir=base))
        os.chown(path, *owner)
        self.write("socket_dir", str(path), owner)
        return path

    def write(self, name: str, text: str, owner: Owner) -> None:
        """Replace a file of the data directory as one act, following no link."""
        handle, path = tempfile.mkstemp(dir=self.root, prefix=f"{name}.")
        with open(handle, "w") as file:
            file.write(text)
            os.fchown(file.fileno(), *owner)
        os.replace(path, self.root / name)

    def give_to(self, owner: Owner) -> None:
        """Make `owner` own of everything here; the root last, for a walk that gets interrupted."""
        if self.root.stat().st_uid == owner[0]:
            return
        for _, directories, files, here in os.fwalk(self.root, topdown=False):
            for name in directories + files:
                os.chown(name, *owner, dir_fd=here, follow_symlinks=False)
        os.chown(self.root, *owner)

    def postmaster(self) -> int | None:
        """Return the process that postmaster.pid names, if it is in truth a server on this cluster."""
        try:
            pid = int((self.cluster / "postmaster.pid").read_text().split("\n")[0])
        except (OSError, ValueError):
            return None
        return pid if self.is_served_by(pid) else None

    def is_served_by(self, pid: int) -> bool:
        try:
            exe = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
            return Path(exe).name == "postgres" and os.path.samefile(f"/proc/{pid}/cwd", self.cluster)
        except OSError:
            return False

    def end_what_nobody_can_reach(self) -> None:
        """Stop a server that has lost its socket, and backends that work on for a dead postmaster."""
        if pid := self.postmaster():
            if self.is_ready() and ((where := self.socket_dir()) is None or not (where / SOCKET).exists()):
                kill(pid, signal.SIGINT)
            return
        for pid in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
            if self.is_served_by(pid) and self.is_orphan(pid):
                kill(pid, signal.SIGKILL)  # recovery follows anyhow

    def is_ready(self) -> bool:
        try:
            return "ready" in (self.cluster / "postmaster.pid").read_text()
        except OSError:
            return False

    def is_orphan(self, pid: int) -> bool:
        """Is this server process a child (its title says so) whose postmaster is gone?"""
        try:
            is_child = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres: ")
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return False
        return is_child and not self.is_served_by(int(parent))

    def log_tail(self) -> str:
        try:
            return self.log.read_bytes()[-2000:].decode(errors="replace")
        except OSError:
            return f"(no log in {self.log})"


def _can_hold_socket(path: Path) -> bool:
    # libpq takes a comma for the end of a host, and knows no way to quote it.
    return len(os.fsencode(path / SOCKET)) <= SOCKET_PATH_MAX and "," not in str(path)


def kill(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
