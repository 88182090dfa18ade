"""A run on vLLM from its self-test to its end; the server is a fake that knows adapters by their names."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import AutoTokenizer

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.evals.comparisons.run_comparison import check
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.serving import loaded_adapters
from flywheel.promotions.live_version import make_first
from tests.conftest import Build
from tests.evals.fake import adapted, submit, work
from tests.workers.engines.test_engine_endpoints import Reply, serving
from workers.reference.build import POLICY

pytestmark = pytest.mark.django_db(transaction=True)


class Server:
    """Answers as who is asked; among others `confused` answers as the probe."""

    def __init__(self) -> None:
        self.base = ""
        self.adapters: list[str] = []
        self.confused = ""
        self.seen: list[str] = []

    def call(self, url: str, method: str, path: str, body: dict[str, Any] | None = None, *_: Any, **__: Any) -> Any:
        if method == "GET":
            rows = [(self.base, None), *((name, self.base) for name in self.adapters)]
            return {"data": [{"id": name, "parent": parent} for name, parent in rows]}
        assert body is not None
        name = body["lora_name"]
        (self.adapters.append if path.startswith("/v1/load") else self.adapters.remove)(name)
        return None

    def answer(self, body: dict[str, Any], count: int) -> Reply:
        name = body["model"]
        if name not in self.adapters:
            return 404, {}, b"no such model"
        if "logprobs" not in body:
            return words("hi")
        self.seen.append(name)
        speaks = "probe" if name.startswith("probe") else name
        if name == self.confused and self.seen.count(name) > 3:
            speaks = "probe"
        step = {"logprob": -0.25, "top_logprobs": [{"logprob": -0.25}, {"logprob": -2.0}]}
        choice = {"message": {"content": speaks}, "logprobs": {"content": [step]}, "token_ids": [hash(speaks)]}
        return 200, {}, json.dumps({"choices": [choice]}).encode()


def words(text: str) -> Reply:
    """An answer with its tokens, by which it is read."""
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    choice = {"message": {"content": text}, "finish_reason": "stop", "token_ids": tokenizer.encode(text)}
    return 200, {}, json.dumps({"choices": [choice], "prompt_token_ids": [1]}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    fake = Server()
    with serving(fake.answer) as listening:
        monkeypatch.setenv("FLYWHEEL_VLLM_URL", listening.url.removesuffix("/v1"))
        monkeypatch.setattr(loaded_adapters, "_call", fake.call)
        monkeypatch.setattr(loaded_adapters, "check", lambda _: None)
        for module in ("lora_adapters.identity", "lora_adapters.probe", "artifacts.local"):
            monkeypatch.setattr(f"flywheel.evals.serving.loaded_adapters.{module}", lambda _: POLICY)
        yield fake


def test_the_second_of_two_that_are_not_live_is_tested_beside_the_first_and_they_are_compared(
    build: Build, server: Server
) -> None:
    live, first, second = (adapted(build, number) for number in (1, 2, 3))
    assert live.weights is not None
    server.base = loaded_adapters.base_name(live.weights.digest)
    make_first(agent=live.agent, version=live, actor=Actor(build.cast.approver), reason="test")
    task_set = build.task_set(held_out=3)
    old, new = (submit(build, task_set, version, engine=Engine.VLLM) for version in (first, second))
    for run in (old, new):
        work(run)
        assert run.state == State.SUCCEEDED, run.error
    known = [loaded_adapters.name_of(live), f"identity-{live.weights.digest[:8]}"]
    old, new = EvalRun.objects.order_by("pk").all()
    assert old.isolation["arms"] == [loaded_adapters.name_of(first), *known]
    assert new.isolation["arms"] == [loaded_adapters.name_of(second), *known, loaded_adapters.name_of(first)]
    assert (new.isolation["passed"], new.isolation["answers"]) == (True, 2 * 2 * 3 * loaded_adapters.SLOTS)
    check(new, old)


def test_a_server_that_mixes_up_one_of_the_others_fails_the_run(build: Build, server: Server) -> None:
    first, second = (adapted(build, number) for number in (1, 2))
    assert first.weights is not None
    server.base = loaded_adapters.base_name(first.weights.digest)
    task_set = build.task_set(held_out=3)
    work(submit(build, task_set, first, engine=Engine.VLLM))
    run = submit(build, task_set, second, engine=Engine.VLLM)
    server.seen.clear()
    server.confused = loaded_adapters.name_of(first)
    work(run)
    assert (run.state, run.error_kind, run.done) == (State.FAILED, "isolation", 0)
    assert run.isolation["evidence"][0]["arm"] == loaded_adapters.name_of(first)
    assert "the server mixes adapters up" in run.error
