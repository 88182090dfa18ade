"""A model in a process of its own, behind the same protocol: `ProcessEngine` here, `main` there.

Whoever asks judges and stores what was answered meanwhile, and Python lets one thread of a process compute at a time.
The model's memory goes back when it is closed, and all that a library keeps of a GPU's when the process ends, which it
does when nobody has asked for a while; and a model that is too large for the machine takes that process down and not
the worker. The process is told no database and no keys, and has a limit of memory (`workers.processes.model_process`).

What is said over the socket, pickled: `("open", spec)`, answered with None, and `("chat", requests)`, answered with
responses, or either with the EngineError that it raised; `("close", None)`, which is not answered and ends what is
being generated. Before the responses comes a number for each request that has become tokens: how many are left to.
A process may hold a reward model (`("score", conversations)`, answered with raw scores). It may hold no model and only
read what a server's model wrote (`("read", answers)`, answered with responses): the chat template by which it does is
somebody's program all the same.
The process ends when the socket closes, however whoever asked has ended, and after an error that nobody has foreseen:
what such a one leaves of a GPU's state is good for no other model.

`("speak", calls)` is answered while the tokens are drawn: each piece of an answer that is certain and, at its end, the
answer itself is a `Heard`; then nothing is left to be said, which an empty list says. `("leave", key)` ends the row of
a caller who is gone.
"""

import atexit
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, cast

from flywheel.core.envs.policy_rollouts import UNASKED, ChatRequest, ChatResponse, Engine, EngineError
from workers.engines.engine_endpoints import open_engine
from workers.engines.streamed_answers import Call, Heard
from workers.engines.tool_calls import AnswerReader, Written
from workers.processes import model_process

ROOT = Path(__file__).resolve().parents[2]
IDLE_S = 60.0
"""How long a process without a model waits for the next one; to start it takes some seconds."""
GRACE_S = 5.0
"""For a process to end when its socket has closed."""
RENDER_S = 30.0
"""For one request to become tokens: a chat template is a program that somebody uploaded, and may have no end. How long
an answer takes is limited by its tokens."""


REWARD_MODEL = "reward_model"
"""Kind of a spec, beside those of endpoints: `{"kind": "reward_model", "path": DIRECTORY}`."""
READER = "reader"
"""Kind of a spec, beside those of endpoints: `{"kind": "reader", "path": DIRECTORY}`, which takes no weights."""


class Gone(EngineError):
    """The process ended before it answered."""


def open_beside(spec: Mapping[str, Any]) -> Engine:
    """The engine of `spec` for a worker, which holds no model itself: one that is computed here is so in a process of
    its own. Raises EngineError."""
    return ProcessEngine(spec) if spec.get("kind") == "transformers" else open_engine(spec)


class ProcessEngine:
    """The engine that `open_engine` would make of `spec`, in a process of its own. It may be closed while other threads
    ask. Raises EngineError as that does."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._process = _holding(spec)
        self._lock = threading.Lock()
        self._asking, self._is_closed = 0, False

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        return self._ask("chat", requests)

    def read(self, answers: Sequence[Written]) -> list[ChatResponse]:
        """Read what a server's model wrote; of a process that was opened as reader."""
        return self._ask("read", answers)

    def speak(self, calls: Sequence[Call], hear: Callable[[Heard], None]) -> list[ChatResponse]:
        """Answer the calls in one batch; `hear` is told what comes, at last each call's answer. Where nobody was asked
        the reason is returned, once for each call."""
        return self._ask("speak", calls, hear)

    def leave(self, key: int) -> None:
        """Draw nothing more for the call."""
        with contextlib.suppress(OSError):  # the process has ended, as whoever asks is told
            self._process.tell("leave", key)

    def _ask(self, what: str, about: Sequence[Any], hear: Callable[[Heard], None] | None = None) -> list[ChatResponse]:
        unasked = [ChatResponse(error=UNASKED)] * len(about)
        with self._lock:
            if self._is_closed:
                return unasked
            self._asking += 1
        try:
            found: list[ChatResponse] = self._process.ask(what, list(about), hear)
            return found
        except Gone:
            if self._is_closed:
                return unasked
            raise
        finally:
            with self._lock:
                self._asking -= 1
                self._let_go()

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                with contextlib.suppress(OSError):  # it has ended, as whoever asks is told
                    self._process.tell("close")
                self._is_closed = True
                self._let_go()

    def _let_go(self) -> None:
        """Give the process back, once nobody waits for an answer of it."""
        if self._is_closed and not self._asking:
            _give_back(self._process)


class ProcessScorer:
    """A reward model in a process of its own. Raises EngineError."""

    def __init__(self, place: Path) -> None:
        self._process = _holding({"kind": REWARD_MODEL, "path": str(place)})

    def score(self, conversations: Sequence[Any]) -> list[float | str]:
        """As `RewardScorer` does."""
        found: list[float | str] = self._process.ask("score", list(conversations))
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._process.tell("close")
        _give_back(self._process)


class Process:
    """One process, as whoever asks sees it. It holds one model at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(True)  # Celery's beat sets a timeout for every socket, and the process would not wait
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.engines.process_engine", str(theirs.fileno()), str(IDLE_S)],
                cwd=ROOT,
                env=model_process.environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,  # what libraries print
                process_group=0,  # a Ctrl-C is for whoever asks
            )
        # Somebody has to hear how it ended, or a zombie stays where it was.
        threading.Thread(target=self._process.wait, name="engine-ending", daemon=True).start()
        self._line = Connection(ours.detach())
        self._one_by_one, self._sending = threading.Lock(), threading.Lock()
        self._problem = ""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, what: str, about: Any, hear: Callable[[Heard], None] | None = None) -> Any:
        """Its answer. Raises EngineError, and Gone."""
        try:
            with self._one_by_one:
                self.tell(what, about)
                answer = self._answer(None if what == "open" else RENDER_S, hear)
        except (OSError, EOFError) as error:
            how = model_process.ending(self._ended())
            raise Gone(self._problem or f"the process of the model ended {how}") from error
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def _answer(self, patience: float | None, hear: Callable[[Heard], None] | None) -> Any:
        """Return the process's final answer. It is ended where it renders one request for longer than our patience."""
        while self._line.poll(patience):
            answer = self._line.recv()
            if isinstance(answer, Heard) and hear is not None:
                hear(answer)
                continue
            if not isinstance(answer, int):
                return answer
            patience = RENDER_S if answer else None
        self._problem = (
            f"the model's chat template and tokenizer took more than {RENDER_S:g} s for one request, so it was ended"
        )
        self._process.kill()
        return self._line.recv()  # nothing: it raises what tells of the end

    def tell(self, what: str, about: Any = None) -> None:
        """Raises OSError."""
        with self._sending:
            self._line.send((what, about))

    def end(self) -> None:
        self._line.close()
        self._ended()

    def _ended(self) -> int:
        """Its exit code, once it has one: its socket has closed."""
        try:
            return self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


_STDERR = 2
_idle: "queue.SimpleQueue[Process]" = queue.SimpleQueue()
"""At most one that waits for the next model."""


def _holding(spec: Mapping[str, Any]) -> Process:
    """A process that has loaded what the spec describes."""
    try:
        waiting = _idle.get_nowait()
        if waiting.is_alive:
            return _loaded(waiting, spec)
        waiting.end()
    except (queue.Empty, Gone):  # gone: it had just waited for long enough
        pass
    return _loaded(Process(), spec)


def _loaded(process: Process, spec: Mapping[str, Any]) -> Process:
    try:
        process.ask("open", dict(spec))
    except Gone:
        process.end()
        raise
    except EngineError:
        _give_back(process)
        raise
    return process


def _give_back(process: Process) -> None:
    if process.is_alive and _idle.empty():
        _idle.put(process)
    else:
        process.end()


@atexit.register
def _end_all() -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            _idle.get_nowait().end()


# The process itself -------------------------------------------------------------------------------------------------


class Model(Engine, Protocol):
    """An engine that says while it renders how many requests are left to be."""

    def chat(
        self, requests: Sequence[ChatRequest], rendered: Callable[[int], None] | None = None
    ) -> list[ChatResponse]: ...


class Speaker(Model, Protocol):
    """One that tells its answers as they come, and asks which callers are gone."""

    def speak(
        self,
        calls: Sequence[Call],
        tell: Callable[[Heard], None],
        gone: Container[int],
        rendered: Callable[[int], None] | None = None,
    ) -> None: ...


class Scorer(Protocol):
    """A reward model that says the same (`workers.engines.reward_scorer`)."""

    def score(
        self, conversations: Sequence[Any], rendered: Callable[[int], None] | None = None
    ) -> list[float | str]: ...

    def close(self) -> None: ...


class Holder:
    """The part that runs in the process: one thread reads, so that a model can be closed while the other computes."""

    def __init__(self, line: Connection, idle_s: float) -> None:
        self._line, self._idle_s = line, idle_s
        self._engine: Model | AnswerReader | Scorer | None = None
        self._heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._left: set[int] = set()
        """The calls whose callers are gone."""

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        while (heard := self._next()) is not None:
            what, about = heard
            if what == "close":
                self._engine = None
                continue
            try:
                self._line.send(self._answer(what, about))
            except Exception as error:
                is_foreseen = isinstance(error, EngineError) and not model_process.is_shortage(error)
                self._line.send(error if is_foreseen else _broken(error))
                if not is_foreseen:
                    return

    def _next(self) -> tuple[str, Any] | None:
        with contextlib.suppress(queue.Empty):
            return self._heard.get(timeout=self._idle_s if self._engine is None else None)
        return None

    def _answer(self, what: str, about: Any) -> Sequence[Any] | None:
        if what == "open":
            with model_process.loading():
                self._engine = _open(about)
            return None
        if self._engine is None:
            return [ChatResponse(error=UNASKED)] * len(about)
        if isinstance(self._engine, AnswerReader):
            return self._engine.read(about)
        if what == "score":
            return cast(Scorer, self._engine).score(about, self._line.send)
        if what == "speak":
            cast(Speaker, self._engine).speak(about, self._line.send, self._left, self._line.send)
            self._left.difference_update([call.key for call in about])
            return []
        return cast(Model, self._engine).chat(about, self._line.send)

    def _read(self) -> None:
        try:
            while True:
                heard = self._line.recv()
                if heard[0] == "leave":
                    self._left.add(heard[1])
                    continue
                if heard[0] == "close" and self._engine:
                    self._engine.close()
                self._heard.put(heard)
        except (EOFError, OSError):
            pass  # whoever asked has ended, and nobody wants what is being computed
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)  # without this thread nobody would be heard any more


def _open(spec: Mapping[str, Any]) -> Model | AnswerReader | Scorer:
    """Load what the spec describes. Raises EngineError."""
    if spec.get("kind") == REWARD_MODEL:
        from workers.engines.reward_scorer import RewardScorer  # loads torch: only in a process like this

        return RewardScorer.load(Path(spec["path"]))
    if spec.get("kind") != READER:
        return cast(Model, open_engine(spec))
    from workers.engines.transformers_engine import load_tokenizer  # loads torch: only in a process like this

    return AnswerReader(load_tokenizer(Path(spec["path"])))


def _broken(error: Exception) -> EngineError:
    """Return the error that ends this process, for whoever asked."""
    if model_process.is_shortage(error):
        traceback.clear_frames(error.__traceback__)  # which hold on to what filled the memory
        return EngineError(f"the process of the model broke: {model_process.shortage()}")
    traceback.print_exception(error)
    return EngineError(f"the model broke: {type(error).__name__}: {error}")


def main(arguments: Sequence[str]) -> None:
    model_process.limit_memory()
    handle, idle_s = arguments
    Holder(Connection(int(handle)), float(idle_s)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
