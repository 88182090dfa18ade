"""One turn of an attempt by a team's own program: its HTTP address is called, or its command started.

Nothing here is tried again but what never reached the program. A command runs with the worker's rights, where the
operator allows that at all: with none of the worker's environment but what `KEPT` names, in a process group of its own
that is killed with it, and with bounded output.
"""

import contextlib
import http.client
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flywheel.core.network.http_exchange import LinkLocal, NotReached, exchange
from flywheel.core.network.http_replies import TooLong
from flywheel.edge.refusals import Refused
from flywheel.evals.attempts.program_answers import answer_of, printed

CONNECT_S = 5.0
GOES = 5
PAUSE_S = 0.5
NOT_REACHED = {429, 502, 503}
"""Statuses by which a server, or what stands before it, says that the program never began."""
OUTPUT_MAX = 2 * 2**20
"""Bytes that a command may write."""
INPUT_MAX = 30_000
"""Characters of a variable, which the system limits; the whole is in the input."""
SHOWN = 500
KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Broken(Exception):
    """The program gave no answer. `is_away`: it was never reached."""

    reason: str
    is_away: bool = False

    def __str__(self) -> str:
        return self.reason


def call(url: str, work: Mapping[str, Any], limit_s: float, stopped: threading.Event) -> dict[str, Any]:
    """Send the work to a program's address, and return its answer (`attempt_lifecycle.answer`). Raises Broken."""
    deadline = time.monotonic() + limit_s
    body = json.dumps(work).encode()
    for go in range(1, GOES + 1):
        try:
            return _posted(url, body, work["traceparent"], deadline, limit_s)
        except Broken as broken:
            pause = PAUSE_S * 2 ** (go - 1)
            if not broken.is_away or go == GOES or time.monotonic() + pause > deadline or stopped.wait(pause):
                raise
    raise AssertionError("unreachable")


def _posted(url: str, body: bytes, traceparent: str, deadline: float, limit_s: float) -> dict[str, Any]:
    try:
        reply, content = _exchanged(url, body, traceparent, deadline, limit_s)
    except ValueError as error:  # UnicodeError too: of a host that is none, or a path beyond ASCII
        raise Broken(f"{url!r} is no address that can be called: {error}") from error
    return _read(reply, content)


def _exchanged(
    url: str, body: bytes, traceparent: str, deadline: float, limit_s: float
) -> tuple[http.client.HTTPResponse, bytes]:
    if deadline <= time.monotonic():
        raise Broken(f"timed out: no answer within {limit_s:g} s")
    try:
        headers = {"Content-Type": "application/json", "traceparent": traceparent}
        return exchange("POST", url, body, headers, connect_s=CONNECT_S, deadline=deadline)
    except NotReached as error:
        raise Broken(f"its address cannot be reached: {error}", is_away=True) from error
    except LinkLocal as error:
        raise Broken("its address is link-local, where clouds keep credentials; no program runs there") from error
    except TimeoutError as error:
        raise Broken(f"timed out: no answer within {limit_s:g} s") from error
    except TooLong as error:
        raise Broken(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"crashed: the connection broke off ({error or type(error).__name__})") from error


def _read(reply: http.client.HTTPResponse, content: bytes) -> dict[str, Any]:
    shown = content[:SHOWN].decode(errors="replace")
    if reply.status != 200:
        moved = f" to {reply.headers['Location'][:200]}, which is not followed" if "Location" in reply.headers else ""
        is_away = reply.status in NOT_REACHED
        raise Broken(f"{'' if is_away else 'crashed: '}its address answered {reply.status}{moved}: {shown}", is_away)
    try:
        return answer_of(json.loads(content))
    except Refused as error:
        raise Broken(f"its answer cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Broken(f"its answer is not JSON ({error}): {shown}") from error


def start(
    command: Sequence[str], work: Mapping[str, Any], place: Path, limit_s: float, stopped: threading.Event
) -> dict[str, Any]:
    """Start a program's command, with the work as JSON on its input, and return its answer. Raises Broken."""
    try:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=_environment(work, place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Broken(f"{command[0]!r} cannot be started: {error}") from error
    try:
        out, err = _talk(process, json.dumps(work).encode(), limit_s, stopped)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
    if process.returncode:
        how = f"exit code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise Broken(f"crashed: {how}: {err[-SHOWN:].decode(errors='replace').strip()}".removesuffix(": "))
    try:
        return printed(out.decode(errors="replace"))
    except Refused as error:
        raise Broken(f"its output cannot be read: {error}") from error


def _talk(
    process: "subprocess.Popen[bytes]", given: bytes, limit_s: float, stopped: threading.Event
) -> tuple[bytes, bytes]:
    """Write its input, and read its two outputs until it ends. Raises Broken."""
    deadline = time.monotonic() + limit_s
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=_feed, args=(process.stdin, given), daemon=True).start()
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Broken(f"timed out: it did not end within {limit_s:g} s")
            if stopped.is_set():
                raise Broken("stopped", is_away=True)
            ready = selector.select(min(LOOK_S, left))
            if not ready and process.poll() is not None:
                break  # a child of its own holds the pipe
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                if not piece:
                    selector.unregister(key.fileobj)
                    continue
                key.data.extend(piece)
                if len(key.data) > OUTPUT_MAX:
                    raise Broken(f"it wrote more than {OUTPUT_MAX >> 20} MiB")
    try:
        process.wait(max(0.001, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Broken(f"timed out: it did not end within {limit_s:g} s") from None
    return bytes(out), bytes(err)


def _feed(pipe: IO[bytes], given: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it reads no input
        pipe.write(given)
        pipe.close()


def _environment(work: Mapping[str, Any], place: Path) -> dict[str, str]:
    """Return the environment of the program."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {
        "HOME": str(place),
        "FLYWHEEL_ATTEMPT": work["attempt"],
        "FLYWHEEL_INPUT": work["input"].replace("\0", "")[:INPUT_MAX],
        "FLYWHEEL_TOOLS_URL": work["tools_url"],
        "FLYWHEEL_MCP_URL": work["mcp_url"],
        "FLYWHEEL_TIME_LIMIT_S": f"{work['time_limit_s']:g}",
        "FLYWHEEL_SEED": str(work["seed"]),
        "OPENAI_BASE_URL": work["base_url"],
        "OPENAI_API_KEY": work["api_key"],
        "OPENAI_MODEL": work["model"],
        "TRACEPARENT": work["traceparent"],
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": work["traces_url"],
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"Authorization=Bearer%20{work['api_key']}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
