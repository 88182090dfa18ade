"""NeMo Gym's resources server over one environment: `/seed_session`, a POST for each tool, `/verify`; and `/reset` and
`/step`, by which its gymnasium agent plays environments that answer in words.

What an answer is worth comes of our verifier and of the policy's own items alone. An attempt that cannot be scored is
answered with status 500 and the cause: a number would be believed. The rows name their tasks; what a row says that is
right is never looked at.
"""

import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.envs import Environment, Task
from flywheel.core.envs.nemo_gym import RESERVED
from flywheel.core.interop.bundle import identity, numbers
from flywheel.core.interop.foreign_attempt import Over, Session, TooMany, judge
from flywheel.core.traces import Message, openai_messages
from flywheel.core.verifiers import Verdict, unscored

SESSIONS_MAX = 10_000
SESSION_S = 3600.0
"""How long a session is kept that nobody asks."""
OUTPUT_MAX = 2_000
"""Items of a response that are read."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    session: str = ""
    """The session that began with it: a cookie."""


@dataclass(slots=True)
class _Held:
    session: Session
    at: float
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Gym:
    """Safe for many threads; sessions are this process's own."""

    def __init__(self, env: Environment, tasks: Mapping[str, Task]) -> None:
        """Raises ValueError for tools whose names cannot be addresses here."""
        self.env, self.tasks = env, tasks
        self.names = openai_messages.names(env.tools)
        if taken := [name for name in self.names if name in RESERVED]:
            raise ValueError(f"a tool called {taken[0]} would stand where NeMo Gym has an address of its own")
        self._sessions: OrderedDict[str, _Held] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, path: str, body: Any, session: str = "") -> Answer:
        """Answer a POST to `path`, in the session of its cookie."""
        try:
            if not isinstance(body, dict):
                raise _Refused(422, "the body is not a JSON object")
            return self._routed(path.strip("/"), body, session)
        except _Refused as error:
            return Answer(error.status, {"detail": str(error)})
        except Exception as error:
            return Answer(500, {"detail": f"the environment raised {type(error).__name__}: {error}"[:1000]})

    def _routed(self, path: str, body: dict[str, Any], session: str) -> Answer:
        if path == "seed_session":
            return Answer(200, {}, self._begin(body))
        if path == "reset":
            return Answer(200, {"observation": None, "info": {}}, self._begin(body))
        if path == "verify":
            return self._verify(body)
        if path == "step":
            return self._step(body, session)
        if path == "aggregate_metrics":
            return Answer(200, aggregate(body.get("verify_responses")))
        return self._call(path, body, session)

    def _begin(self, row: Mapping[str, Any]) -> str:
        name, now = secrets.token_urlsafe(24), time.monotonic()
        held = _Held(Session(self.env, self._task(row), _seed(row)), now)
        with self._lock:
            self._sessions[name] = held
            while self._sessions:
                oldest = next(iter(self._sessions.values()))
                if len(self._sessions) <= SESSIONS_MAX and oldest.at > now - SESSION_S:
                    break
                self._sessions.popitem(last=False)
        return name

    def _held(self, name: str) -> _Held:
        with self._lock:
            held = self._sessions.get(name)
            if held is None:
                raise _Refused(400, "no session: POST the row to /seed_session first and send its cookie back")
            held.at = time.monotonic()
            self._sessions.move_to_end(name)
            return held

    def _call(self, path: str, arguments: dict[str, Any], session: str) -> Answer:
        held = self._held(session)
        if path not in self.names:
            return Answer(200, {"output": f"There is no tool {path[:100]!r}, only {', '.join(self.names)}."})
        with held.lock:
            try:
                return Answer(200, {"output": held.session.call(self.names[path], arguments)})
            except TooMany as error:
                raise _Refused(429, str(error)) from error

    def _step(self, body: dict[str, Any], session: str) -> Answer:
        """One turn of the policy for NeMo Gym's gymnasium agent, whose last step brings the reward."""
        held = self._held(session)
        with held.lock:
            turns = openai_messages.policy_messages(_output(body), self.env.tools)
            try:
                step = held.session.turn(turns[-1] if turns else Message("assistant", ""))
            except Over as error:
                raise _Refused(409, f"{error} POST a row to /reset for the next one.") from error
        if step.verdict is not None:
            return _verdict_answer(
                step.verdict, {"observation": None, "terminated": True, "truncated": False}, info=True
            )
        outputs = [{"call_id": m.tool_call_id, "output": m.content} for m in step.reply if m.role == "tool"]
        words = "\n".join(m.content for m in step.reply if m.role != "tool")
        row = {"observation": words or None, "reward": 0.0, "terminated": False, "truncated": False}
        return Answer(200, row | {"info": {"tool_outputs": outputs}})

    def _verify(self, body: dict[str, Any]) -> Answer:
        task = self._task(body)
        response = body.get("response")
        output = _output(body)
        if isinstance(response, dict) and (response.get("error") or response.get("status") == "failed"):
            return _verdict_answer(unscored("not answered: the response failed"), {})
        return _verdict_answer(
            judge(self.env, task, openai_messages.policy_messages(output, self.env.tools), _seed(body)), body
        )

    def _task(self, row: Mapping[str, Any]) -> Task:
        about = row.get("verifier_metadata")
        name = about.get("task") if isinstance(about, dict) else None
        task = self.tasks.get(name) if isinstance(name, str) else None
        if task is None:
            raise _Refused(422, f"verifier_metadata.task: {str(name)[:100]!r} is no task that is served here")
        return task


def _seed(row: Mapping[str, Any]) -> int:
    seed = row["verifier_metadata"].get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise _Refused(422, "verifier_metadata.seed: expected a whole number")
    return seed


def _output(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    response = body.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise _Refused(422, "response.output: expected a list of items")
    if len(output) > OUTPUT_MAX:
        raise _Refused(422, f"response.output: {len(output)} items, at most {OUTPUT_MAX} are read")
    return output


def _verdict_answer(verdict: Verdict, row: Mapping[str, Any], *, info: bool = False) -> Answer:
    if verdict.score is None:
        return Answer(500, {"detail": f"unscored: {verdict.reason}"[:1000]})
    about: dict[str, Any] = {"reason": verdict.reason, **numbers(verdict)}
    return Answer(200, {**row, "reward": verdict.score, **({"info": about} if info else about)})


def aggregate(rows: Any) -> dict[str, Any]:
    """The mean of each figure in these verdicts, in the shape that NeMo Gym's agents ask for."""
    found: dict[str, list[float]] = {}
    for row in rows if isinstance(rows, list) else []:
        for name, value in row.items() if isinstance(row, dict) else ():
            if (name == "reward" or name.startswith("part_")) and isinstance(value, int | float):
                found.setdefault(f"mean/{name}", []).append(float(value))
    means = {name: sum(values) / len(values) for name, values in found.items()}
    key = {name: value for name, value in means.items() if name == "mean/reward"}
    return {"group_level_metrics": [], "agent_metrics": means, "key_metrics": key}


def row_of(env: Environment, task: Task, *, number: int, environment: str, split: str, agent: str) -> dict[str, Any]:
    """A task as a line of NeMo Gym's JSONL. What is right stays with the server."""
    return {
        "id": number,
        "responses_create_params": {
            "input": openai_messages.opening(env.reset(task, 0)),
            "tools": openai_messages.definitions(env.tools),
            "parallel_tool_calls": env.max_turns > 1,
        },
        "verifier_metadata": identity(task, environment, split),
        "agent_ref": {"type": "responses_api_agents", "name": agent},
    }


def agent_kind(env: Environment) -> str:
    """Which of NeMo Gym's agents plays it: tools are called by the simple one, words need the gymnasium's turns."""
    return "simple_agent" if env.tools else "gymnasium_agent"


def lines(env: Environment, tasks: Iterator[tuple[str, Task]], *, environment: str, agent: str) -> Iterator[bytes]:
    """`(split, task)` pairs as JSONL."""
    for number, (split, task) in enumerate(tasks):
        row = row_of(env, task, number=number, environment=environment, split=split, agent=agent)
        yield json.dumps(row).encode() + b"\n"
