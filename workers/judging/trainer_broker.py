"""A worker's broker for one training run: it asks for the trainer what needs a key or the network.

The trainer has neither, and asks over a Unix socket in a directory that only this user can enter (`broker_line`). The
broker is no proxy. What may be asked is frozen when it starts: the judges, tool servers, simulators and gyms of the
run's own environment versions, and its teacher, each found by the digest of its settings. An address, a key, a
criterion or the name of a tool that is not among them is refused, whoever asks; the attempt is all that the trainer
says itself.

Questions are answered by a bounded number of threads, the others wait. What was paid for is settled before its answer
goes out, so that whoever is killed then pays nothing twice. No Django: who answers, and who settles, is handed in.
"""

import contextlib
import json
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flywheel.core import digests
from flywheel.core.envs import Environment
from flywheel.core.envs.nemo_gym import GymEpisode, NemoGym
from flywheel.core.envs.replay import model_stand_in
from flywheel.core.envs.replay.model_stand_in import ModelStandIn
from flywheel.core.envs.worlds.own_world import innermost
from flywheel.core.envs.worlds.server_stand_in import ServerStandIn
from flywheel.core.envs.worlds.server_world import Server, ServerEpisode, ServerWorld
from flywheel.core.envs.worlds.stand_ins import stand_in_of
from flywheel.core.envs.wrappers.mixed_environment import Mixed
from flywheel.core.traces import Message, openai_messages
from flywheel.core.verifiers import Gym, GymError, Runners, WorldError, judge_prompts
from workers.judging.broker_line import MOST_BYTES, gym_digest, server_digest
from workers.judging.hosted_teacher import HostedTeacher, TeacherError
from workers.judging.llm_judge import Judge

log = logging.getLogger(__name__)

AT_ONCE = 32
"""Questions that are answered at once. Judges and servers have limits of their own."""
WAITING = 1024
"""Questions that wait to be taken, at most."""
PREFIX = "flywheel-broker-"
"""Of the directories with sockets."""
NAME, ASIDE = "s", "n"
"""Of the socket, and of one that nobody listens to yet: short, as paths of sockets must be."""
PAID = ("judge", "simulate", "read")
"""Questions whose answers somebody is paid for."""
READ_S = 60.0
"""How long a question, or the taking of an answer, may take to come."""
LONGEST_PATH = 100
"""Bytes of a socket's path; Linux takes 107, macOS 103."""
Question = Mapping[str, Any]


class Refusal(Exception):
    """It is no question about this run's environments."""


class Broker:
    """Listens from when it is made until `close`."""

    def __init__(
        self,
        runners: Runners,
        environments: Iterable[Environment],
        judges: Iterable[Mapping[str, Any]],
        settle: Callable[[], object] = lambda: None,
        counts: Mapping[str, int] | None = None,
        teacher: HostedTeacher | None = None,
    ) -> None:
        """`judges`: the settings of the parts that are judges. The `runners` need a judge only where there are some.
        `teacher`: of the run, where somebody else serves it. `settle` keeps what was paid for so far; the `counts`
        begin at what an earlier owner has left."""
        self._runners, self._settle = runners, settle
        self._judges = {judge_prompts.part_digest(settings): settings for settings in judges}
        self._servers: dict[str, tuple[Server, tuple[Mapping[str, Any], ...]]] = {}
        self._simulators: dict[str, Mapping[str, Any]] = {}
        self._gyms: dict[str, NemoGym] = {}
        self._teachers = {teacher.digest: teacher} if teacher else {}
        for env in environments:
            for each in env.parts.values() if isinstance(env, Mixed) else (env,):
                self._know(each)
        self._answers: dict[str, Callable[[Question], Any]] = {
            "judge": self._judge,
            "play": self._play,
            "simulate": self._simulate,
            "gym_play": self._gym_play,
            "gym_why": self._gym_why,
            "gym_verify": self._gym_verify,
            "read": self._read_tokens,
            "room": self._room,
        }
        self._counts = Counter(counts or {})
        self._lock = threading.Lock()
        _sweep()
        self._place = Path(tempfile.mkdtemp(prefix=PREFIX))  # of mode 0700
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if len(os.fsencode(self.path)) > LONGEST_PATH:
                raise OSError(f"the path {self.path} is too long for a socket; set a shorter TMPDIR")
            aside = self._place / ASIDE
            self._socket.bind(str(aside))
            self._socket.listen(WAITING)
            os.rename(aside, self.path)  # so that a socket of this name without a listener is a dead worker's
        except OSError:
            self.close()
            raise
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="broker")
        self._thread = threading.Thread(target=self._listen, name="broker", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """The path of its socket."""
        return str(self._place / NAME)

    @property
    def counts(self) -> dict[str, int]:
        """The number of questions by their kind, and of those that were `unanswered`."""
        with self._lock:
            return dict(self._counts)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and os.path.exists(self.path)

    def close(self) -> None:
        """Hear nobody any more. Who waits for an answer finds the line broken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who listens
        self._socket.close()
        if hasattr(self, "_pool"):
            self._thread.join()
            self._pool.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self._place, ignore_errors=True)

    def _know(self, env: Environment) -> None:
        """Let this environment's own be asked."""
        found, stand_in = innermost(env), stand_in_of(env)
        world = stand_in.world if isinstance(stand_in, ServerStandIn) else found
        if isinstance(world, ServerWorld):
            tools = tuple(world.tools)
            self._servers[server_digest(world.server, tools)] = world.server, tools
        if isinstance(stand_in, ModelStandIn):
            self._simulators[digests.digest(dict(stand_in.settings))] = stand_in.settings
        if isinstance(found, NemoGym):
            row = {"responses_create_params": {"tools": openai_messages.definitions(found.tools)}}
            self._gyms[gym_digest(found.base_url, row)] = found

    def _listen(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
                self._pool.submit(self._serve, line)
            except (OSError, RuntimeError):  # it was closed
                return

    def _serve(self, line: socket.socket) -> None:
        with line:
            line.settimeout(READ_S)
            try:
                question = _read(line)
                if question is not None:
                    line.sendall(self._answered(question))
            except OSError as error:  # who asked is gone, or slow
                log.info("a question of a trainer was left: %s", error)

    def _answered(self, content: bytes) -> bytes:
        """The answer as a line of JSON; whatever happens, there is one. What it took is settled by then."""
        kind, answer = self._answer(content)
        with self._lock:
            self._counts[kind] += 1
        if kind in PAID:
            try:
                self._settle()
            except Exception as error:  # it may be asked again, and paid again: nobody may learn from it
                answer = _problem(error)
        return answer + b"\n"

    def _answer(self, content: bytes) -> tuple[str, bytes]:
        """The kind of a question, and what is answered to it, as JSON."""
        kind = "unread"
        try:
            question = json.loads(content)
            if not isinstance(question, dict) or question.get("ask") not in self._answers:
                raise Refusal("it asks for nothing that is known here")
            kind = question["ask"]
            answer = json.dumps({"said": self._answers[kind](question)}).encode()
            if len(answer) >= MOST_BYTES:
                raise WorldError(f"the answer is longer than {MOST_BYTES >> 20} MiB", "output")
        except Exception as error:
            with self._lock:
                self._counts["unanswered"] += 1
            return kind, _problem(error)
        return kind, answer

    def _judge(self, question: Question) -> dict[str, Any]:
        settings = _frozen_one(self._judges, question, "part", "judge")
        trace, reference, judge = _get(question, "trace", dict), question.get("reference"), self._runners.judge
        if judge is None:
            raise Refusal("no judge can be asked here")
        if isinstance(judge, Judge):
            judge.recall([(settings, trace, reference)])
        return asdict(judge(settings, trace, reference, anew=question.get("anew") is True))

    def _play(self, question: Question) -> dict[str, Any]:
        server, tools = _frozen_one(self._servers, question, "server", "tool server")
        if self._runners.server is None:
            raise Refusal("no tool server can be asked here")
        calls = _calls(question, tools)
        episode = ServerEpisode(
            server,
            tools,
            _get(question, "seed", int),
            _get(question, "prompt", str),
            question.get("start"),
            calls,
            frozenset(_get(question, "retold", list)),
        )
        played = self._runners.server.play(episode)
        beginning = getattr(played, "beginning", None)
        return {"answers": played.answers, "state": played.state, "rows": played.rows, "beginning": beginning}

    def _simulate(self, question: Question) -> str:
        settings = _frozen_one(self._simulators, question, "model", "simulator")
        if self._runners.simulator is None:
            raise Refusal("no simulator can be asked here")
        said = [Message.from_json(row) for row in _get(question, "messages", list)]
        if not model_stand_in.is_question(said):
            raise Refusal("a simulator is asked for the answer to a call and for nothing else")
        return self._runners.simulator(settings, said, _get(question, "seed", int))

    def _read_tokens(self, question: Question) -> dict[str, Any]:
        teacher: HostedTeacher = _frozen_one(self._teachers, question, "teacher", "teacher")
        tokens = _get(question, "tokens", list)
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in tokens):
            raise Refusal("tokens: whole numbers are wanted")
        found = teacher.read(tokens)
        return {"logprobs": found.logprobs, "texts": found.texts}

    def _room(self, question: Question) -> int | None:
        teacher: HostedTeacher = _frozen_one(self._teachers, question, "teacher", "teacher")
        return teacher.room()

    def _gym_play(self, question: Question) -> list[str] | None:
        gym, episode = self._gym(question)
        (found,) = gym.carry_out([episode])
        return found

    def _gym_why(self, question: Question) -> str:
        gym, episode = self._gym(question)
        return gym.why(episode)

    def _gym_verify(self, question: Question) -> Mapping[str, Any]:
        gym, episode = self._gym(question)
        return gym.verify(episode, _get(question, "response", dict))

    def _gym(self, question: Question) -> tuple[Gym, GymEpisode]:
        env, row = _frozen_one(self._gyms, question, "gym", "NeMo Gym server"), _get(question, "row", dict)
        if self._runners.gym is None or gym_digest(env.base_url, row) != question["gym"]:
            raise Refusal("its row is not of this run's environments")
        return self._runners.gym, GymEpisode(env.base_url, row, _calls(question, env.tools))


def _sweep() -> None:
    """Remove the sockets that killed workers of this user have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{NAME}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(1.0)
            try:
                line.connect(str(left))
            except ConnectionRefusedError:
                shutil.rmtree(left.parent, ignore_errors=True)
            except OSError:
                continue  # another user's, gone by now, or so busy that it lives


def _read(line: socket.socket) -> bytes | None:
    """A question, or None where none came."""
    found = bytearray()
    while not found.endswith(b"\n"):
        part = line.recv(65536)
        if not part or len(found) > MOST_BYTES:
            return None
        found += part
    return bytes(found)


def _problem(error: Exception) -> bytes:
    match error:
        case WorldError():
            problem, cause = str(error), error.cause
        case GymError():
            problem, cause = str(error), "environment"
        case TeacherError():
            problem, cause = str(error), "teacher"
        case Refusal():
            problem, cause = f"the worker's broker refuses: {error}", "refused"
        case _:
            log.warning("a question of a trainer could not be answered", exc_info=error)
            problem, cause = f"the worker's broker raised {type(error).__name__}: {str(error)[:300]}", "raised"
    return json.dumps({"problem": problem, "cause": cause}).encode()


def _frozen_one(frozen: Mapping[str, Any], question: Question, name: str, words: str) -> Any:
    """The setting that this run has under the digest that is asked for. Raises Refusal."""
    if (found := frozen.get(_get(question, name, str))) is None:
        raise Refusal(f"the {words} that is asked is none of this run's")
    return found


def _get(question: Question, name: str, kind: type[Any]) -> Any:
    found = question.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise Refusal(f"{name}: a value of another kind is wanted")
    return found


def _calls(
    question: Question, tools: Iterable[Mapping[str, Any]]
) -> tuple[tuple[str, Mapping[str, Any], str | None], ...]:
    """The calls of an episode, all of them of these tools. Raises Refusal."""
    names = {tool["name"] for tool in tools}
    found: list[tuple[str, Mapping[str, Any], str | None]] = []
    for row in _get(question, "calls", list):
        name, arguments, said = row if isinstance(row, list) and len(row) == 3 else (None, None, None)
        if name not in names or not isinstance(arguments, dict) or not isinstance(said, str | None):
            raise Refusal("a call is of no tool of this environment")
        found.append((str(name), arguments, said))
    return tuple(found)
