"""Worlds of Python, played in the sandbox (`core.envs.worlds.own_world`).

A call of the sandbox begins with the state that the call before has left, and ends with the next one, so no process
lives for as long as an attempt does. States are kept here by what led to them; one that is not here any more is made
again by the same calls. No Django: trainers play with it too.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.core.digests import canonical, digest
from flywheel.core.envs.worlds.own_world import ANSWER_BYTES, STATE_BYTES, Played, WorldEpisode
from flywheel.core.verifiers import WorldError
from workers.sandbox import host
from workers.sandbox.outcome import MIB, Limits, Outcome, Status

AT_ONCE = 20
"""Calls that one guest carries out: their answers and the state fit into what it may send back."""
KEPT_BYTES = 64 * MIB
_SPENT = (Status.TIMEOUT, Status.MEMORY, Status.OUTPUT)
LIMITS = Limits(cpu_seconds=5, wall_seconds=10.0, memory_bytes=256 * MIB, result_bytes=MIB)
_DRIVER = Path(__file__).with_name("world_driver.py").read_text(encoding="utf-8")
_WHOLE = {"state", "answers", "shown", "rows"}
_running = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
"""More guests than there are cores would only take each other's time."""


@dataclass(frozen=True, slots=True)
class _Stand:
    """A world after some calls."""

    state: Any
    """As the driver packs it."""
    shown: Any
    answers: tuple[str, ...]
    size: int


class Worlds:
    """Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stands: OrderedDict[str, _Stand] = OrderedDict()
        self._bytes = 0

    def play(self, episode: WorldEpisode, *, known: int = 0, anew: bool = False) -> Played:
        """The world after the episode's calls. From its first `known` ones it goes on where that is still here; with
        `anew` everything is made again. Raises WorldError."""
        count = len(episode.calls)
        stand: _Stand | None = None
        begin = 0
        for length in () if anew else dict.fromkeys((count, min(known, count))):
            if (stand := self._find(episode, length)) is not None:
                begin = length
                break
        rows: dict[str, Any] = {}
        while stand is None or begin < count or (episode.queries and not rows):
            some = episode.calls[begin : begin + AT_ONCE]
            is_last = begin + len(some) == count
            stand, rows = self._step(episode, stand, begin, some, episode.queries if is_last else ())
            begin += len(some)
            if is_last:
                break
        self._keep(episode, count, stand)
        return Played(stand.answers, stand.shown, rows)

    def _step(
        self,
        episode: WorldEpisode,
        stand: _Stand | None,
        number: int,
        calls: Sequence[tuple[str, dict[str, Any]]],
        queries: Sequence[str],
    ) -> tuple[_Stand, dict[str, Any]]:
        try:
            told = run(episode, stand.state if stand else None, number, calls, queries)
        except WorldError as error:
            if len(calls) < 2 or error.cause not in _SPENT:
                raise
            # The limits are those of one call: what plays well one by one must not fail because it is played at once.
            rows: dict[str, Any] = {}
            for place, call in enumerate(calls, 1):
                stand, rows = self._step(
                    episode, stand, number + place - 1, [call], queries if place == len(calls) else ()
                )
            assert stand is not None
            return stand, rows
        answers = (stand.answers if stand else ()) + tuple(each["text"] for each in told["answers"])
        size = len(canonical([told["state"], told["shown"], answers]))
        return _Stand(told["state"], told["shown"], answers, size), told["rows"]

    def _find(self, episode: WorldEpisode, length: int) -> _Stand | None:
        key = _key(episode, length)
        with self._lock:
            if (found := self._stands.get(key)) is not None:
                self._stands.move_to_end(key)
            return found

    def _keep(self, episode: WorldEpisode, length: int, stand: _Stand) -> None:
        key = _key(episode, length)
        with self._lock:
            if key not in self._stands:
                self._stands[key] = stand
                self._bytes += stand.size
            while self._bytes > KEPT_BYTES and len(self._stands) > 1:
                self._bytes -= self._stands.popitem(last=False)[1].size


def run(
    episode: WorldEpisode,
    state: Any,
    number: int,
    calls: Sequence[tuple[str, dict[str, Any]]],
    queries: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what the driver tells of some calls: `{"state", "answers", "shown", "rows"}`. Raises WorldError."""
    asked = {
        "source": episode.source,
        "keeper": episode.keeper,
        "seed": episode.seed,
        "start": {"state": episode.start, "mode": episode.mode},
        "state": state,
        "number": number,
        "calls": [list(call) for call in calls],
        "queries": list(queries),
        "limits": {"state": STATE_BYTES, "answer": ANSWER_BYTES},
    }
    with _running:
        outcome = host.run(_DRIVER, function="play", arguments=[asked], limits=LIMITS)
    if outcome.status is not Status.OK:
        raise WorldError(_ending(outcome, calls, state), outcome.status.value)
    told = outcome.value
    if not isinstance(told, dict) or not ("fault" in told or told.keys() >= _WHOLE):
        raise WorldError("the world sent back what is no answer", "crashed")
    if "fault" in told:
        lines = [each["line"] for each in told.get("trace", []) if isinstance(each, dict) and each.get("line")]
        raise WorldError(f"{str(told['fault'])[:2000]}{f' (line {lines[-1]})' if lines else ''}", "raised")
    return told


def _ending(outcome: Outcome, calls: Sequence[tuple[str, Any]], state: Any) -> str:
    """Say in whose call the sandbox ended it, as far as that is known."""
    names = list(dict.fromkeys(name for name, _ in calls)) or ["reset"]
    if state is None and "reset" not in names:
        names.insert(0, "reset")
    where = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    return f"{where}: {outcome.reason}"


def _key(episode: WorldEpisode, length: int) -> str:
    return digest([episode.identity, [list(call) for call in episode.calls[:length]]])
