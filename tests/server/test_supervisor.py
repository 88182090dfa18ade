"""`make up`, as a person would start, hurt and stop it."""

import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from flywheel.server import supervisor
from flywheel.system import env, postgres
from flywheel.system.data_directory import PostgresError
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """A supervisor on a free port with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.environment = {
            **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")},
            "FLYWHEEL_HOME": str(home),
            "FLYWHEEL_PORT": str(self.port),
            "PYTHONUNBUFFERED": "1",
        }
        self.output = (home / "output").open("w+")
        self.process = self.start(self.output)

    def start(self, output: object = subprocess.PIPE, **changes: str) -> "subprocess.Popen[str]":
        process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "flywheel.server.supervisor"],
            cwd=ROOT,
            env={**self.environment, **changes},
            stdout=output,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return process

    def said(self) -> str:
        return (self.home / "output").read_text()

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def children(self) -> dict[str, int]:
        """Process ids of the direct children, by what they are."""
        found: dict[str, int] = {}
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            command = Path(f"/proc/{pid}/cmdline").read_text()
            for name in ("gunicorn", "worker", "beat"):
                if name in command.split("\0"):
                    found[name] = int(pid)
        return found

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, what, self.said)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    tmp_path.chmod(0o755)  # as an older version left its home
    (tmp_path / "runs").mkdir(mode=0o755)
    supervisor = Running(tmp_path)
    try:
        supervisor.until(lambda: "Flywheel is ready" in supervisor.said(), "it is ready")
        yield supervisor
    finally:
        supervisor.process.terminate()
        supervisor.process.wait(PATIENCE_S)
        postgres.stop(tmp_path / "postgres")
        supervisor.output.close()


@pytest.mark.worker
def test_it_starts_heals_and_stops_everything_that_it_started(running: Running) -> None:
    assert f"Flywheel is ready: http://127.0.0.1:{running.port}" in running.said()
    assert "username admin, password " in running.said()
    assert running.status("/readyz") == 200
    assert running.status("/account/login/") == 200

    _is_private(running)

    second = running.start()
    assert "another Flywheel runs" in second.communicate(timeout=PATIENCE_S)[0]
    assert second.returncode != 0

    before = running.children()
    assert set(before) == {"gunicorn", "worker", "beat"}
    os.killpg(before["gunicorn"], signal.SIGKILL)
    running.until(lambda: running.children().get("gunicorn") not in (None, before["gunicorn"]), "the web starts again")
    running.until(lambda: running.status("/readyz") == 200, "it is ready again")

    server = postgres.running(running.home / "postgres")
    assert server is not None
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT count(*) FROM accounts_project").fetchone() == (1,)

    os.kill(server.pid, signal.SIGKILL)
    running.until(lambda: "PostgreSQL is gone" in running.said(), "the database is missed")
    running.until(lambda: running.status("/readyz") == 200, "the database starts again")

    started = running.children()
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(PATIENCE_S) == 0
    assert postgres.running(running.home / "postgres") is None
    for pid in started.values():
        assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def _is_private(running: Running) -> None:
    """Nothing that is there can be read by another account, and nothing that will be written."""
    assert stat.S_IMODE(running.home.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    # Not in Python: files of PostgreSQL come and go during the walk.
    wanted = ["find", str(running.home), "-mindepth", "1", "!", "-type", "l", "-perm", "/077"]
    assert subprocess.run(wanted, stdout=subprocess.PIPE, text=True).stdout == ""
    for name, pid in running.children().items():
        assert "\nUmask:\t0077\n" in Path(f"/proc/{pid}/status").read_text(), name


@pytest.mark.parametrize(
    ("code", "starts"),
    [
        ("import flywheel.wsgi", "the web"),
        ("import workers.celery, celery.signals as s; s.worker_init.send(None)", "a worker"),
        ("import workers.celery, celery.signals as s; s.beat_init.send(None)", "beat"),
    ],
)
def test_what_starts_without_a_supervisor_writes_privately_too(code: str, starts: str, tmp_path: Path) -> None:
    told = "import os, sys; os.umask(0o022)\n" + code + "\nprint(oct(os.umask(0)))"
    environment = {**os.environ, "FLYWHEEL_HOME": str(tmp_path), "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "0o77", (starts, done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="wants to be root, to own files of either account")
@pytest.mark.parametrize("uid", [0, 1000])
def test_the_home_is_closed_to_others(uid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)
    try:
        tmp_path.chmod(0o755)
        (tmp_path / "cache").mkdir()
        (tmp_path / "supervisor.lock").touch()
        (tmp_path / "elsewhere").symlink_to(ROOT)
        elsewhere = ROOT.stat().st_mode
        monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path))
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(env, "home", lambda: tmp_path)
        for path in (tmp_path, tmp_path / "cache", tmp_path / "supervisor.lock"):
            os.chown(path, uid, -1)
        assert env.prepare_home() == tmp_path
        (tmp_path / "new").touch()
        modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in tmp_path.iterdir() if not path.is_symlink()}
        assert modes == {"cache": 0o700, "supervisor.lock": 0o600, "new": 0o600}
        assert stat.S_IMODE(tmp_path.stat().st_mode) == (0o711 if uid == 0 else 0o700)
        assert ROOT.stat().st_mode == elsewhere
    finally:
        os.umask(before)


def test_a_port_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = {**os.environ, "FLYWHEEL_HOME": str(tmp_path), "FLYWHEEL_PORT": str(port)}
        done = subprocess.run(
            [sys.executable, "-m", "flywheel.server.supervisor"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode != 0
    assert f"FLYWHEEL_PORT={port}" in done.stderr
    assert "choose a free one" in done.stderr


def test_a_database_that_cannot_start_is_tried_again_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[Path] = []
    server = postgres.Server("postgresql://again", tmp_path, tmp_path, 1)

    def start(data_dir: Path) -> postgres.Server:
        tries.append(data_dir)
        if len(tries) == 2:
            raise PostgresError("no space left")
        return server

    monkeypatch.setattr(postgres, "start", start)
    monkeypatch.setattr(postgres, "running", lambda _: None)
    monkeypatch.setattr(supervisor.Database, "EVERY_S", 0.0)
    monkeypatch.setenv("DATABASE_URL", "")
    database = supervisor.Database(tmp_path)
    database.start()
    child = supervisor.Child("web", ["sleep", "60"])
    child.start()
    assert child.process is not None
    try:
        server = postgres.Server("postgresql://elsewhere", tmp_path, tmp_path, 2)
        database.check([child])
        assert child.process.poll() is None
        assert "no space left" in capsys.readouterr().err
        database.check([child])
        assert os.environ["DATABASE_URL"] == "postgresql://elsewhere"
        assert child.process.wait(PATIENCE_S) == -signal.SIGTERM, "it knows the old address only"
    finally:
        child.process.kill()
        child.process.wait()


@pytest.mark.parametrize("missing", [True, False])
def test_grpc_wants_its_extra_and_a_port_of_its_own(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("FLYWHEEL_PORT", str(free_port()))
        monkeypatch.setenv("FLYWHEEL_GRPC_PORT", str(port))
        if missing:
            monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(env.BadSetting, match="extra `grpc`" if missing else f"FLYWHEEL_GRPC_PORT={port}"):
            supervisor._check_ports()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
