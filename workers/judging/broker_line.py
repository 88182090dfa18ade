"""A trainer's line to its worker's broker, which asks for it what needs a key or the network (`trainer_broker`).

The `Runners` here have the interface that those of evals have, so that environments and rubrics are the same; who
answers is on the other side of a Unix socket. Each question is a connection: a line of JSON to the broker, a line back.
What is asked is named by the digest of its frozen settings, never by an address or a key. No Django: trainers have it.

A question without an answer is an attempt without a score, or an episode that broke off. A broker that is gone is the
end of the run (`lost`): nothing would be scored any more.
"""

import functools
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from flywheel.core import digests
from flywheel.core.envs.nemo_gym import GymEpisode
from flywheel.core.envs.worlds.server_world import Server, ServerEpisode, ServerPlayed
from flywheel.core.traces import Message
from flywheel.core.verifiers import GymError, Runners, Verdict, WorldError, judge_prompts, unscored
from workers.judging import attempt_verdicts

VARIABLE = "FLYWHEEL_BROKER"
"""The environment variable with the path of the socket."""
ANSWER_S = 600.0
"""How long an answer is waited for: longer than a judge or a tool server may take, with what is tried again."""
MOST_BYTES = 16 * 2**20
"""Of a question, and of an answer."""
PAUSE_S = 0.05
"""Before a broker whose queue is full is called again."""


class Unanswered(RuntimeError):
    """The broker could not or would not answer this question."""

    def __init__(self, problem: str, cause: str = "") -> None:
        super().__init__(problem)
        self.cause = cause
        """One of `verifiers.CAUSES`, or `teacher`; empty where who was asked did not answer in time."""


class BrokerLine:
    """Safe for many threads."""

    def __init__(self, path: str, answer_s: float = ANSWER_S) -> None:
        self.path, self._answer_s = path, answer_s
        self.lost = ""
        """Why nobody answers any more; empty while somebody does."""

    def ask(self, what: str, **about: Any) -> Any:
        """The answer to a question. Raises Unanswered."""
        if self.lost:
            raise Unanswered(self.lost, "refused")
        try:
            question = json.dumps({"ask": what, **about}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise Unanswered(f"it cannot be written as JSON: {error}", "output") from error
        if len(question) > MOST_BYTES:
            raise Unanswered(f"it is longer than {MOST_BYTES >> 20} MiB", "output")
        try:
            row = json.loads(self._exchange(question))
        except TimeoutError:
            raise Unanswered(f"the worker's broker did not answer within {self._answer_s:g} s") from None
        except (OSError, ValueError, RecursionError) as error:
            self.lost = f"the worker's broker at {self.path} is gone ({error}), so nothing can be asked; resume the run"
            raise Unanswered(self.lost, "refused") from error
        if "said" not in row:
            raise Unanswered(str(row.get("problem")), str(row.get("cause")))
        return row["said"]

    def _exchange(self, question: bytes) -> bytes:
        """Raises OSError, and ValueError for an answer that ends too early."""
        deadline = time.monotonic() + self._answer_s
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(self._answer_s)
            while True:
                try:
                    line.connect(self.path)
                    break
                except BlockingIOError:  # its queue is full
                    if time.monotonic() > deadline:
                        raise TimeoutError from None
                    time.sleep(PAUSE_S)
            line.sendall(question)
            found = bytearray()
            while not found.endswith(b"\n"):
                line.settimeout(max(0.001, deadline - time.monotonic()))
                part = line.recv(65536)
                if not part or len(found) > MOST_BYTES:
                    raise ValueError("it broke off in the middle of an answer")
                found += part
            return bytes(found)


@functools.cache
def _line_at(path: str) -> BrokerLine:
    return BrokerLine(path)


def line() -> BrokerLine | None:
    """This process's line to its worker's broker; None where there is none."""
    path = os.environ.get(VARIABLE)
    return _line_at(path) if path else None


def runners() -> Runners:
    """All that this process can play and judge with: its own sandbox, and the broker where its worker has one."""
    found = line()
    return runners_over(found) if found else attempt_verdicts.RUNNERS


def runners_over(line: BrokerLine) -> Runners:
    """Runners that ask over this line what needs a key or the network."""
    return replace(
        attempt_verdicts.RUNNERS, judge=_Judge(line), gym=_Gym(line), server=_Server(line), simulator=_Simulator(line)
    )


def lost() -> str:
    """Why this process's broker answers nothing any more; empty where it does, or where there is none."""
    found = line()
    return found.lost if found else ""


def server_digest(server: Server, tools: Sequence[Mapping[str, Any]]) -> str:
    """The name of a tool server, with the tools that it must have, between trainer and broker."""
    return digests.digest([asdict(server), list(tools)])


def gym_digest(base_url: str, row: Mapping[str, Any]) -> str:
    """The name of a NeMo Gym server, with the tools of its rows, between trainer and broker."""
    return digests.digest([base_url, row["responses_create_params"]["tools"]])


class _Judge:
    def __init__(self, line: BrokerLine) -> None:
        self._line = line

    def __call__(
        self, settings: Mapping[str, Any], trace: Mapping[str, Any], reference: Any, *, anew: bool = False
    ) -> Verdict:
        part = judge_prompts.part_digest(settings)
        try:
            return Verdict(**self._line.ask("judge", part=part, trace=trace, reference=reference, anew=anew))
        except Unanswered as error:
            return unscored(f"the judge was not heard: {error}", error.cause or "judge")


class _Server:
    def __init__(self, line: BrokerLine) -> None:
        self._line = line

    def play(self, episode: ServerEpisode) -> ServerPlayed:
        about = {name: getattr(episode, name) for name in ("seed", "prompt", "start", "calls")}
        name = server_digest(episode.server, episode.tools)
        try:
            row = self._line.ask("play", server=name, retold=sorted(episode.retold), **about)
        except Unanswered as error:
            raise WorldError(str(error), error.cause or "environment") from None
        return ServerPlayed(**row | {"answers": tuple(row["answers"])})


class _Simulator:
    def __init__(self, line: BrokerLine) -> None:
        self._line = line

    def __call__(self, settings: Mapping[str, Any], messages: Sequence[Message], seed: int) -> str:
        said = [message.to_json() for message in messages]
        try:
            return str(self._line.ask("simulate", model=digests.digest(dict(settings)), messages=said, seed=seed))
        except Unanswered as error:
            raise WorldError(str(error), error.cause or "environment") from None


class _Gym:
    def __init__(self, line: BrokerLine) -> None:
        self._line = line

    def carry_out(self, episodes: Sequence[GymEpisode]) -> list[list[str] | None]:
        return attempt_verdicts.at_once(self._carry_out, episodes)

    def why(self, episode: GymEpisode) -> str:
        try:
            return str(self._line.ask("gym_why", **_gym_question(episode)))
        except Unanswered as error:
            return str(error)

    def verify(self, episode: GymEpisode, response: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._line.ask("gym_verify", **_gym_question(episode), response=response)
        except Unanswered as error:
            raise GymError(str(error)) from None
        return found

    def _carry_out(self, episode: GymEpisode) -> list[str] | None:
        try:
            found: list[str] | None = self._line.ask("gym_play", **_gym_question(episode))
        except Unanswered:
            return None
        return found


def _gym_question(episode: GymEpisode) -> dict[str, Any]:
    return {"gym": gym_digest(episode.base_url, episode.row), "row": episode.row, "calls": episode.calls}
