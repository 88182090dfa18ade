"""`python -m workers.policies.vllm_keeper [PLACE]`, which the supervisor starts with FLYWHEEL_SERVE=vllm, once for each
server: vLLM with the base that was chosen in the browser for this place, by the program of `make serve`; started anew
when another base is chosen, and when it ends, after a pause that grows."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from flywheel.server.supervisor import Stop, die_with_parent, raise_stop
from flywheel.system import env

if TYPE_CHECKING:
    from flywheel.agents.models import ChosenBase

log = logging.getLogger(__name__)
T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
READY = b"vLLM is ready"
"""How the program's line begins which says so."""
LOOK_S = 2.0
WELL_S = 300.0
"""A server that lived for so long had started well."""
PAUSE_S, PAUSE_MOST_S = 5.0, 600.0
GRACE_S = 30.0
WORDS_MOST = 4000


class Ended(Exception):
    """The server ended by itself; the message is its last words."""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, raise_stop)
    env.prepare_home()
    with suppress(Stop):
        keep(int((sys.argv[1:] or ["0"])[0]))


def keep(place: int = 0) -> None:
    """Serve what is chosen for this place, for ever, on its GPU where it has one of its own."""
    from flywheel.agents.weights import chosen_bases

    if gpus := env.serve_gpus():
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[place]
    failures = 0
    while True:
        row = _answer(lambda: chosen_bases.chosen(place))
        if row is None:
            time.sleep(LOOK_S)
            continue
        began = time.monotonic()
        try:
            _serve(row)
            failures = 0  # another base was chosen
        except Ended as error:
            failures = 1 if time.monotonic() - began > WELL_S else failures + 1
            pause_s = min(PAUSE_S * 2 ** (failures - 1), PAUSE_MOST_S)
            log.warning("vLLM ended, and starts again in %.0f s: %s", pause_s, error)
            _say(row, "down", problem=str(error).replace("\0", "\ufffd"), failures=failures, again_s=pause_s)
            until = time.monotonic() + pause_s
            while time.monotonic() < until and _is_current(row):
                time.sleep(LOOK_S)


def command(row: "ChosenBase") -> list[str]:
    """The command that serves what is chosen."""
    version = row.version
    words = [sys.executable, "-m", "workers.programs.vllm_server", "--version", str(version)]
    port = urlsplit(env.vllm_urls()[row.place]).port
    return [*words, "--project", version.agent.project.slug, "--port", str(port)]


def _serve(row: "ChosenBase") -> None:
    """Until another base is chosen. Raises Ended."""
    _say(row, "starting")
    with _started(command(row)) as (server, said, words):
        is_ready = False
        while server.poll() is None:
            if not _is_current(row):
                return
            if not is_ready and READY in _read(said):
                is_ready = True
                _say(row, "ready", problem="", failures=0)
            time.sleep(LOOK_S)
        last = _read(words).decode(errors="replace").strip()[-WORDS_MOST:]
        raise Ended(last or f"it ended with code {server.returncode} and said nothing")


@contextmanager
def _started(words: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    """The program, with what it says and its last words; it is asked to end, and ends vLLM, whatever ends this."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as last:
        server = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=last, preexec_fn=die_with_parent
        )
        try:
            yield server, said, last
        finally:
            server.terminate()
            try:
                server.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _read(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), 1 << 20, 0)


def _is_current(row: "ChosenBase") -> bool:
    from flywheel.agents.weights import chosen_bases

    return _answer(lambda: chosen_bases.is_current(row)) is not False


def _say(row: "ChosenBase", state: str, **told: Any) -> None:
    from flywheel.agents.weights import chosen_bases

    _answer(lambda: chosen_bases.report(row, state, **told))


def _answer(ask: Callable[[], T]) -> T | None:
    """The database's answer; None while it is away, which ends no server."""
    from django.db import InterfaceError, OperationalError, connection

    try:
        return ask()
    except (InterfaceError, OperationalError):
        return None
    finally:
        connection.close()


if __name__ == "__main__":
    main()
