"""`python -m flywheel.server.supervisor`: PostgreSQL, web, worker, beat, the server of small weights and, where
asked for, vLLM under one foreground process.

It prepares the database, starts the processes, restarts one that dies (with a growing pause) and PostgreSQL when that
dies, says when everything is ready, and on Ctrl-C or SIGTERM stops everything that it started. `--demo` also loads the
stories, by commands of their own (`python -m workers.programs.demo`, then `.agent_demo` and `.releases.release_demo`),
because the web's package knows nothing of the workers'.

Killed with -9 it leaves PostgreSQL running, which the next start adopts; its other children notice that their parent is
gone and end (`PR_SET_PDEATHSIG`).
"""

import argparse
import ctypes
import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from flywheel.core.network.key_hosts import SUFFIX, VLLM_KEY
from flywheel.system import devices, env, postgres
from flywheel.system.data_directory import PostgresError

ROOT = Path(__file__).resolve().parents[2]
STOP_GRACE_S = 20.0
READY_WITHIN_S = 120.0


@dataclass
class Child:
    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    died: int = 0
    """How often it died lately; the pause before a restart grows with it."""
    restart_at: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        # A group of its own, so that Ctrl-C reaches us alone; the same session, since Linux shares the processor evenly
        # among sessions, and what a worker does humbly (`workers.processes.niceness`) would take as much of it as the
        # web.
        self.process = subprocess.Popen(self.command, cwd=ROOT, process_group=0, preexec_fn=die_with_parent)
        self.started = time.monotonic()

    def check(self) -> None:
        """Notice a death, and restart when its pause is over."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            if self.died and time.monotonic() - self.started > 60:
                self.died = 0
            return
        now = time.monotonic()
        if not self.restart_at:
            self.died += 1
            self.restart_at = now + min(0.5 * 2**self.died, 30)
            _say(f"{self.name} ended with code {code}; it starts again in {self.restart_at - now:.0f} s")
        elif now >= self.restart_at:
            self.restart_at = 0.0
            self.start()

    def stop(self, deadline: float) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Database:
    """The embedded PostgreSQL. It outlives us, so it is no child; its death is noticed all the same."""

    EVERY_S = 2.0

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.look_at = 0.0

    def start(self) -> None:
        os.environ["DATABASE_URL"] = postgres.start(self.data_dir).url

    def check(self, running: list[Child]) -> None:
        """Start it again when it is gone. Its address may be a new one, of which the children must hear."""
        if time.monotonic() < self.look_at:
            return
        if postgres.running(self.data_dir) is None:
            _say("PostgreSQL is gone; it starts again")
            known = os.environ["DATABASE_URL"]
            try:
                self.start()
            except PostgresError as error:  # no space on the disk: there may be some again soon
                _say(str(error))
            if os.environ["DATABASE_URL"] != known:
                for child in running:
                    if child.process is not None:
                        child.process.terminate()
        self.look_at = time.monotonic() + self.EVERY_S


class Stop(Exception):
    """Somebody asked for an end."""


def children() -> list[Child]:
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "workers.celery", "--quiet"]
    calm = ["--loglevel", "WARNING"]
    found = [
        Child(
            "web",
            [python, "-m", "gunicorn", "flywheel.wsgi", "--config", "python:flywheel.server.gunicorn_settings"],
        ),
        Child("worker", [*celery, "worker", "--concurrency", "3", *calm]),
        Child("beat", [*celery, "beat", *calm]),
    ]  # fmt: skip
    if env.served_mb():
        found.append(Child("weights", [python, "-m", "workers.policies.small_weights"]))
    if env.serve() == "vllm":
        places = range(len(env.vllm_urls()))
        found += [
            Child(f"vllm {place}", [python, "-m", "workers.policies.vllm_keeper", str(place)]) for place in places
        ]
    if env.grpc_port() is not None:
        found.append(Child("grpc", [python, "manage.py", "otlp_grpc"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flywheel.server.supervisor", description=__doc__.splitlines()[0])
    parser.add_argument("--demo", action="store_true", help="load the story into the project `demo`")
    parser.add_argument("--workbench", default="", help="with --demo: a folder with WorkBench's recorded runs")
    options = parser.parse_args()
    try:
        _run(options.demo, options.workbench)
    except (env.BadSetting, PostgresError) as error:
        sys.exit(f"flywheel: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"flywheel: {' '.join(map(str, error.cmd))} failed with code {error.returncode}; nothing was lost")


def _run(demo: bool, workbench: str) -> None:
    home = env.prepare_home()
    with _only_one(home):
        signal.signal(signal.SIGTERM, raise_stop)
        signal.signal(signal.SIGINT, raise_stop)
        database = None if env.database_url() else Database(home / "postgres")
        running: list[Child] = []
        story = Child("story", [sys.executable, "-m", "workers.programs.demo"])
        try:
            _check_ports()
            if env.serve():
                _share_with_vllm()
            if database is not None:
                database.start()
            python = sys.executable
            subprocess.run([python, "manage.py", "prepare", *(["--demo"] if demo else [])], cwd=ROOT, check=True)
            for child in children():
                child.start()
                running.append(child)
            if demo:  # it loads its libraries while the others start, and waits for them before it sends anything
                story.start()
            logins = subprocess.run(
                [python, "manage.py", "prepare", "--logins"], cwd=ROOT, check=True, capture_output=True, text=True
            )
            _wait_until_ready(running)
            if story.process is not None and (code := story.process.wait()):
                raise subprocess.CalledProcessError(code, story.command)
            print(f"Flywheel is ready: http://{env.bind()}:{env.port()}")
            print(logins.stdout, end="", flush=True)
            if demo:  # nobody waits for the second story, whose agent answers as long as we run
                more = ["--workbench", workbench] if workbench else []
                running.append(Child("help desk", [sys.executable, "-m", "workers.programs.agent_demo", *more]))
                running.append(Child("releases", [sys.executable, "-m", "workers.programs.releases.release_demo"]))
                for child in running[-2:]:
                    child.start()
            while True:
                time.sleep(0.5)
                if database is not None:
                    database.check(running)
                for child in running:
                    child.check()
        except Stop:
            _say("stopping")
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _stop([story, *running])
            if database is not None:
                postgres.stop(database.data_dir)


def _stop(running: list[Child]) -> None:
    for child in running:
        if child.process is not None and child.process.poll() is None:
            child.process.terminate()
    deadline = time.monotonic() + STOP_GRACE_S
    for child in running:
        child.stop(deadline)


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """One supervisor per home: two would fight over the port and the worker."""
    with (home / "supervisor.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"flywheel: another Flywheel runs with FLYWHEEL_HOME={home}; stop it or choose another")
        yield


def _check_ports() -> None:
    import socket

    if env.grpc_port() is not None and importlib.util.find_spec("grpc") is None:
        raise env.BadSetting(
            "FLYWHEEL_GRPC_PORT wants the extra `grpc`: pip install -c constraints.txt -e '.[train,grpc]'"
        )
    if env.serve() and not env.vllm_url().startswith("http://127.0.0.1:"):
        raise env.BadSetting(
            f"FLYWHEEL_SERVE starts vLLM on this machine's loopback, and FLYWHEEL_VLLM_URL={env.vllm_url()!r} names "
            "another: leave one of them out, or choose a port with http://127.0.0.1:PORT"
        )
    family = socket.AF_INET6 if ":" in env.bind() else socket.AF_INET
    for name, port in {"FLYWHEEL_PORT": env.port(), "FLYWHEEL_GRPC_PORT": env.grpc_port()}.items():
        if port is None:
            continue
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((env.bind(), port))
            except OSError as error:
                raise env.BadSetting(
                    f"{name}={port} on {env.bind()} cannot be used ({error.strerror}): choose a free one"
                ) from None


def _share_with_vllm() -> None:
    """Tell the children that vLLM's key may go to its servers, and which GPUs are left beside its own. Raises
    BadSetting."""
    bound = os.environ.get(f"{VLLM_KEY}{SUFFIX}", "")
    own = [urlsplit(url).netloc for url in env.vllm_urls()]
    os.environ[f"{VLLM_KEY}{SUFFIX}"] = ",".join([*([bound] if bound else []), *own])
    if wanted := env.serve_gpus():
        there = devices.present()
        if missing := [name for name in wanted if name not in there]:
            raise env.BadSetting(
                f"FLYWHEEL_SERVE_GPUS names {', '.join(missing)}, and this machine has "
                f"{'the GPUs ' + ', '.join(there) if there else 'no GPU'}"
            )
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices.gpus())


def _wait_until_ready(running: list[Child]) -> None:
    address = "127.0.0.1" if env.bind() in ("0.0.0.0", "::") else env.bind()  # noqa: S104 it compares, it does not bind
    url = f"http://{f'[{address}]' if ':' in address else address}:{env.port()}/readyz"
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        for child in running:
            child.check()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise env.BadSetting(f"not ready after {READY_WITHIN_S:.0f} s; {url} says what is missing")


def raise_stop(number: int, frame: FrameType | None) -> None:
    raise Stop


def die_with_parent() -> None:
    """Called in a child before it becomes another program: end when the process that started it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _say(text: str) -> None:
    print(f"flywheel: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
