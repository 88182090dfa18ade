"""Customers of the story whose application calls its model through Flywheel's gateway, as any OpenAI client would.

Each customer is a session: one chat completion to `workplace-assistant@live` after the other, and at the end the
customer's word on each answer as feedback. Many come at once. What the application offers as tools, and what the
customers want, follows the world's present state (`story.renamed`).
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import urllib3

from flywheel.core.envs.tool_call import ToolCallEnvironment
from flywheel.core.traces import Trace, openai_messages
from workers.reference import story, traffic

AT_ONCE = 20
"""Customers who are served at the same time: fewer calls than a single web process takes, where they may all arrive.
The small weights answer what waits in one batch."""
TRIES, PAUSE_S = 8, 0.5
"""Of a call for which the gateway or the model's server was not ready."""
LOOK_S = 0.25
NOT_READY = frozenset({429, 502, 503, 504})


class Unanswered(RuntimeError):
    """A call that got no answer; the message says what came instead."""


class Application:
    """The customers' application: a key of scopes `gateway` and `ingest`, and what it offers as tools."""

    def __init__(self, endpoint: str, key: str, *, tools: Sequence[dict[str, Any]] = ()) -> None:
        self._endpoint, self._tools = endpoint, list(tools)
        self._http = urllib3.PoolManager(maxsize=AT_ONCE, timeout=urllib3.Timeout(60), retries=False)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        known = self._tools or story.TOOLS
        self._env = ToolCallEnvironment({"tools": known}, traffic.VERIFIER)

    def serve(self, requests: Sequence[story.Request]) -> None:
        """Answer the requests of one session, one after the other, and pass on what the customer says of it. Raises
        Unanswered."""
        said = [
            {
                "trace_id": trace_id(request),
                "key": "outcome",
                "value": "success" if self._is_right(request) else "failed",
                "source": "end_user",
                "by": request.session_id,
            }
            for request in requests
        ]
        self._post("/api/v1/feedback", said, {})

    def _is_right(self, request: story.Request) -> bool:
        """Whether the customer got what was asked for."""
        asked: dict[str, Any] = {
            "model": f"{story.AGENT}@live",
            "messages": [{"role": "user", "content": request.prompt}],
            "seed": traffic.seed_of(request),
            "user": request.session_id,
            "metadata": {"state": request.state, "slice": request.wording},
        }
        if self._tools:
            asked["tools"] = openai_messages.chat_tools(self._tools)
        names = {"X-Flywheel-Session-Id": request.session_id, "X-Flywheel-Trace-Id": trace_id(request)}
        body = self._post("/gateway/v1/chat/completions", asked, names)
        said = openai_messages.chat_said([body["choices"][0]["message"]], self._env.tools)
        trace = Trace.from_messages("", [*self._env.reset(request.to_task(), 0), *said])
        return bool(self._env.verifier(request.to_task())(trace, request.target).success)

    def _post(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = json.dumps(body).encode()
        for attempt in count(1):
            try:
                reply = self._http.request("POST", self._endpoint + path, body=data, headers=self._headers | headers)
            except urllib3.exceptions.HTTPError as error:
                status, said = 503, str(error)
            else:
                if reply.status == 200:
                    return reply.json()
                status, said = reply.status, reply.data[:300].decode(errors="replace")
            if status not in NOT_READY or attempt == TRIES:
                raise Unanswered(f"{path} answered {status}: {said}")
            time.sleep(PAUSE_S)
        raise AssertionError


def trace_id(request: story.Request) -> str:
    return hashlib.sha256(f"trace {request.id}".encode()).hexdigest()[:32]


def come(
    application: Application,
    sessions: Iterator[Sequence[story.Request]],
    *,
    is_over: Callable[[], bool],
    is_ahead: Callable[[], bool] = lambda: False,
    at_once: int = AT_ONCE,
    pause_s: float = 0.0,
) -> None:
    """Let customers come until it is over or no more are left; none comes while it is ahead of what looks at them.
    Each of the `at_once` rests for `pause_s` between two customers. Raises Unanswered."""
    lock, ended, open_ = threading.Lock(), threading.Event(), threading.Event()

    def one_after_the_other() -> None:
        try:
            while not ended.is_set():
                if not open_.wait(LOOK_S):
                    continue
                with lock:
                    requests = next(sessions, None)
                if requests is None:
                    return
                application.serve(requests)
                ended.wait(pause_s)
        except Unanswered:
            ended.set()
            raise

    with ThreadPoolExecutor(at_once) as pool:
        served = [pool.submit(one_after_the_other) for _ in range(at_once)]
        try:
            while not all(each.done() for each in served) and not is_over():
                (open_.clear if is_ahead() else open_.set)()
                ended.wait(LOOK_S)
        finally:
            ended.set()
        for each in served:
            each.result()
