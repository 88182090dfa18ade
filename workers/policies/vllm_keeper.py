"""`python -m workers.policies.vllm_keeper`, which the supervisor starts with FLYWHEEL_SERVE=vllm: vLLM with the base
that was chosen in the browser, started anew when another is, and when it ends, after a pause that grows."""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flywheel.server.supervisor import Stop, raise_stop
from flywheel.system import env
from workers.programs import vllm_server
from workers.programs.vllm_server import CannotServe

if TYPE_CHECKING:
    from flywheel.evals.models import ChosenBase

log = logging.getLogger(__name__)
T = TypeVar("T")
LOOK_S = 2.0
WELL_S = 300.0
"""A server that lived for so long had started well."""
PAUSE_S, PAUSE_MOST_S = 5.0, 600.0
RANK = 64
"""The greatest rank of an adapter."""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, raise_stop)
    env.prepare_home()
    with suppress(Stop):
        keep()


def keep() -> None:
    """Serve what is chosen, for ever."""
    from flywheel.evals.serving import chosen_base

    failures = 0
    while True:
        row = _asked(chosen_base.chosen)
        if row is None:
            time.sleep(LOOK_S)
            continue
        began = time.monotonic()
        try:
            _serve(row)
            failures = 0  # another base was chosen
        except CannotServe as error:
            failures = 1 if time.monotonic() - began > WELL_S else failures + 1
            pause_s = min(PAUSE_S * 2 ** (failures - 1), PAUSE_MOST_S)
            log.warning("%s", error)
            _say(row, "down", problem=str(error).replace("\0", "\ufffd"), failures=failures, again_s=pause_s)
            until = time.monotonic() + pause_s
            while time.monotonic() < until and _is_current(row):
                time.sleep(LOOK_S)


def _serve(row: "ChosenBase") -> None:
    """Until another base is chosen. Raises CannotServe when the server ends by itself."""
    from flywheel.agents import artifacts
    from flywheel.evals.serving.loaded_adapters import ServerError, base_name

    weights, url = row.version.weights, env.vllm_url()
    assert weights is not None
    try:
        base = artifacts.local(weights)
    except (artifacts.ArtifactError, OSError) as error:
        raise CannotServe(str(error)) from error
    name = base_name(weights.digest)
    _say(row, "starting")
    with tempfile.TemporaryDirectory(prefix="flywheel-tokenizer-") as aside, tempfile.TemporaryFile() as log:
        words = vllm_server.command(base, name, url, RANK, vllm_server.reading(base, Path(aside)))
        with vllm_server.started(words, vllm_server.environment(base), log) as server:
            is_ready = False
            while server.poll() is None:
                if not _is_current(row):
                    return
                if not is_ready and vllm_server.answers(url):
                    is_ready = True
                    with suppress(ServerError):
                        vllm_server.load_live()
                    _say(row, "ready", problem="", failures=0)
                time.sleep(LOOK_S)
            what = "vLLM ended" if is_ready else "vLLM did not start: it ended"
            raise CannotServe(f"{what}{vllm_server.how(server.returncode)}. {vllm_server.last_words(log)}")


def _is_current(row: "ChosenBase") -> bool:
    from flywheel.evals.serving import chosen_base

    return _asked(lambda: chosen_base.is_current(row)) is not False


def _say(row: "ChosenBase", state: str, **told: Any) -> None:
    from flywheel.evals.serving import chosen_base

    _asked(lambda: chosen_base.report(row, state, **told))


def _asked(ask: Callable[[], T]) -> T | None:
    """What the database says; None while it is away, which ends no server."""
    from django.db import Error, connection

    try:
        return ask()
    except Error:
        return None
    finally:
        connection.close()


if __name__ == "__main__":
    main()
