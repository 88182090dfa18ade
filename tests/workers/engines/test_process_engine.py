"""A model in a process of its own: it answers as the engine in this process does, and neither outlives nor ends us."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flywheel.core.envs.policy_rollouts import UNASKED, ChatRequest, EngineError, Sampling
from flywheel.core.traces import Message
from tests.waiting import PATIENCE_S, wait_for
from workers.engines import process_engine
from workers.engines.engine_endpoints import open_engine
from workers.engines.process_engine import ProcessEngine, open_beside
from workers.reference.build import POLICY

SPEC = {"kind": "transformers", "path": str(POLICY), "device": "cpu"}
ROOT = Path(__file__).resolve().parents[3]


def ask(seed: int = 0, max_tokens: int = 64) -> ChatRequest:
    return ChatRequest((Message("user", "Meet Bako on friday."),), Sampling(1.0, 1.0, max_tokens), seed)


LONG = [ask(seed, max_tokens=400) for seed in range(500)]
"""Takes many seconds."""


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    made = open_beside(SPEC)
    assert isinstance(made, ProcessEngine)
    yield made
    made.close()


def pid(engine: ProcessEngine) -> int:
    return engine._process._process.pid


def is_running(number: int) -> bool:
    """Whether the process computes; one that has ended and that nobody asked for yet does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_answers_as_the_engine_here_does(engine: ProcessEngine) -> None:
    here = open_engine(SPEC)
    requests = [ask(seed) for seed in range(4)]
    answers = engine.chat(requests)
    assert [answer.text for answer in answers] == [answer.text for answer in here.chat(requests)]
    assert all(answer.tokens_out and answer.latency_ms for answer in answers)
    here.close()


def test_the_next_model_finds_the_process_waiting(engine: ProcessEngine) -> None:
    first = pid(engine)
    engine.close()
    again = ProcessEngine(SPEC)
    assert pid(again) == first
    assert again.chat([ask()])[0].text
    again.close()


def test_what_does_not_load_says_so_and_the_process_waits_for_the_next(engine: ProcessEngine) -> None:
    first = pid(engine)
    engine.close()
    with pytest.raises(EngineError, match=r"/nowhere .*there is no config\.json"):
        ProcessEngine({**SPEC, "path": "/nowhere"})
    with pytest.raises(EngineError, match="option 'colour' is unknown"):
        ProcessEngine({**SPEC, "colour": "red"})
    again = ProcessEngine(SPEC)
    assert pid(again) == first
    again.close()


def test_a_closed_one_is_not_asked_and_leaves_the_next_model_alone(engine: ProcessEngine) -> None:
    engine.close()
    following = ProcessEngine(SPEC)
    engine.close()
    assert [answer.error for answer in engine.chat([ask(), ask()])] == [UNASKED, UNASKED]
    assert not following.chat([ask()])[0].error
    following.close()


def test_closing_ends_what_another_thread_waits_for(engine: ProcessEngine) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(answer.error for answer in engine.chat(LONG)))
    thread.start()
    wait_for(lambda: engine._asking == 1, "it is asked")
    time.sleep(0.5)
    first = pid(engine)
    engine.close()
    thread.join(PATIENCE_S)
    assert len(found) == len(LONG)
    assert found[-1] == UNASKED
    assert {*found} <= {"", UNASKED}, "what was answered by then is given out"
    following = ProcessEngine(SPEC)
    assert pid(following) == first, "whoever was the last has given the process back"
    assert not following.chat([ask()])[0].error
    following.close()


def test_several_threads_ask_one_after_the_other(engine: ProcessEngine) -> None:
    wanted = [engine.chat([ask(seed)])[0].text for seed in range(4)]
    found: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: engine.chat([ask(seed)])[0].text}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [found[seed] for seed in range(4)] == wanted


def test_a_model_that_takes_its_process_down_does_not_take_us_down(engine: ProcessEngine) -> None:
    threading.Timer(0.5, lambda: os.kill(pid(engine), signal.SIGKILL)).start()
    with pytest.raises(EngineError, match=r"process of the model ended killed by SIGKILL, as when memory runs out"):
        engine.chat(LONG)
    engine.close()
    following = ProcessEngine(SPEC)
    assert not following.chat([ask()])[0].error
    following.close()


def templated(place: Path, template: str) -> dict[str, str]:
    """The policy with another chat template."""
    shutil.copytree(POLICY, place)
    (place / "chat_template.jinja").write_text(template)
    return {**SPEC, "path": str(place)}


def test_a_template_that_wants_all_memory_ends_its_own_process_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_engine._end_all()
    monkeypatch.setenv("FLYWHEEL_MODEL_MEMORY", "1.5G")
    engine = ProcessEngine(templated(tmp_path / "hungry", "{{ 'x' * 2000000000 }}"))
    assert Path(f"/proc/{pid(engine)}/oom_score_adj").read_text().strip() == "1000"
    with pytest.raises(EngineError, match=r"more than the 1\.5 GB of memory that FLYWHEEL_MODEL_MEMORY allows"):
        engine.chat([ask()])
    engine.close()
    following = ProcessEngine(SPEC)
    assert following.chat([ask()])[0].text
    following.close()
    process_engine._end_all()


BROKEN = """
import sys
from workers.engines import process_engine

class Broken:
    def chat(self, requests, rendered):
        raise RuntimeError("CUDA error: device-side assert triggered")

    def close(self):
        raise RuntimeError("CUDA error: device-side assert triggered")

process_engine.open_engine = lambda spec: Broken()
process_engine.main(sys.argv[1:])
"""


def start_as(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have the next process be this program."""
    process_engine._end_all()
    begin = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **more: begin([command[0], "-c", program, *command[3:]], **more)
    )


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_takes_without_end_is_ended_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ProcessEngine(templated(tmp_path / "endless", ENDLESS))
    monkeypatch.setattr(process_engine, "RENDER_S", 1.0)
    found: list[str] = []

    def wait() -> None:
        with pytest.raises(EngineError) as refused:
            engine.chat([ask()])
        found.append(str(refused.value))

    waiting = [threading.Thread(target=wait) for _ in range(2)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(30)
    assert found == ["the model's chat template and tokenizer took more than 1 s for one request, so it was ended"] * 2
    assert not is_running(pid(engine))
    engine.close()


SLOW = """
import sys, time
from flywheel.core.envs.policy_rollouts import ChatResponse
from workers.engines import process_engine

class Slow:
    def chat(self, requests, rendered):
        for left in reversed(range(len(requests))):
            time.sleep(0.7)
            rendered(left)
        time.sleep(3.5)
        return [ChatResponse(text="done")] * len(requests)

    def close(self):
        pass

process_engine.open_engine = lambda spec: Slow()
process_engine.main(sys.argv[1:])
"""


def test_the_limit_in_time_is_for_one_request_and_not_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    start_as(monkeypatch, SLOW)
    monkeypatch.setattr(process_engine, "RENDER_S", 3.0)
    engine = ProcessEngine(SPEC)
    assert [answer.text for answer in engine.chat([ask()] * 5)] == ["done"] * 5
    engine.close()
    process_engine._end_all()


TOO_LARGE = """
import sys
from flywheel.core.envs.policy_rollouts import EngineError
from workers.engines import process_engine

def load(spec):
    try:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    except RuntimeError as error:
        raise EngineError("the model in /models does not load") from error

process_engine.open_engine = load
process_engine.main(sys.argv[1:])
"""


def test_a_model_that_is_larger_than_the_limit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    start_as(monkeypatch, TOO_LARGE)
    with pytest.raises(EngineError, match=r"more than the .* GB of memory that FLYWHEEL_MODEL_MEMORY allows"):
        ProcessEngine(SPEC)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_model_that_breaks_as_nobody_has_foreseen_ends_its_process(
    monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    with monkeypatch.context() as patched:
        start_as(patched, BROKEN)
        engine = ProcessEngine(SPEC)
    if is_asked:
        with pytest.raises(EngineError, match="the model broke: RuntimeError: CUDA error: device-side assert"):
            engine.chat([ask()])
    engine.close()
    following = ProcessEngine(SPEC)
    assert not following.chat([ask()])[0].error
    following.close()
    wait_for(lambda: not is_running(pid(engine)), "its process has ended")


def test_a_process_that_nobody_asks_ends_and_the_next_model_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    process_engine._end_all()
    monkeypatch.setattr(process_engine, "IDLE_S", 0.2)
    engine = ProcessEngine(SPEC)
    time.sleep(0.5)
    assert is_running(pid(engine)), "one that holds a model is not idle"
    engine.close()
    wait_for(lambda: not Path(f"/proc/{pid(engine)}").exists(), "its process is gone")
    following = ProcessEngine(SPEC)
    assert pid(following) != pid(engine)
    following.close()


def test_one_that_just_ends_is_replaced(engine: ProcessEngine) -> None:
    engine.close()
    os.kill(pid(engine), signal.SIGSTOP)  # it looks alive, and will not answer
    threading.Timer(0.5, lambda: os.kill(pid(engine), signal.SIGKILL)).start()
    following = ProcessEngine(SPEC)
    assert pid(following) != pid(engine)
    following.close()


def test_it_is_told_no_database_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    process_engine._end_all()
    monkeypatch.setenv("STORY_API_KEY", "secret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret@h/d")
    engine = ProcessEngine(SPEC)
    told = Path(f"/proc/{pid(engine)}/environ").read_bytes()
    assert b"PATH=" in told
    assert b"secret" not in told
    engine.close()
    process_engine._end_all()


OWNER = f"""
from flywheel.core.envs.policy_rollouts import ChatRequest; from flywheel.core.envs.policy_rollouts import Sampling
from flywheel.core.traces import Message
from workers.engines.process_engine import ProcessEngine
asked = ChatRequest((Message("user", "Meet Bako on friday."),), Sampling(1.0, 1.0, 400), 0)
engine = ProcessEngine({SPEC!r})
print(engine._process._process.pid, flush=True)
engine.chat([asked] * 500)
"""


def test_it_ends_with_whoever_asks_even_in_the_middle() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        number = int(owner.stdout.readline())
        assert is_running(number)
        time.sleep(0.5)
        owner.kill()
    try:
        wait_for(lambda: not is_running(number), "its process has ended")
    finally:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def test_it_waits_for_us_in_a_process_that_gives_every_socket_a_timeout() -> None:
    """As Celery's beat does, in which self-tests ask."""
    socket.setdefaulttimeout(30)
    try:
        started = process_engine.Process()
    finally:
        socket.setdefaulttimeout(None)
    try:
        started.ask("open", SPEC)
    finally:
        started.end()


def test_a_server_is_asked_from_here() -> None:
    engine = open_beside({"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"})
    assert not isinstance(engine, ProcessEngine)
    engine.close()
