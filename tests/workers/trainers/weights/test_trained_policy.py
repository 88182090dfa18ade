"""The policy under training as evaluations ask it: what it cannot be asked, and whose limit is whose."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from flywheel.core.envs import Task, build
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Engine, Sampling
from flywheel.core.traces import Message
from tests.evals.fake import FakeEngine
from workers.engines.engine_endpoints import open_engine
from workers.trainers.attempts.rewards import HeldOut


class Live(NamedTuple):
    engine: Any
    path: Path


@pytest.fixture
def live(base: Path) -> Live:
    """Over a model that takes 512 tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workers.trainers.attempts.live_engine import LiveEngine

    model = AutoModelForCausalLM.from_pretrained(base)
    return Live(LiveEngine(model, AutoTokenizer.from_pretrained(base), 4), base)


def ask(text: str, max_tokens: int = 8, temperature: float = 0.0) -> ChatRequest:
    return ChatRequest((Message("user", text),), Sampling(temperature, max_tokens=max_tokens), seed=1)


def same(engine: Engine, requests: list[ChatRequest]) -> list[tuple[Any, ...]]:
    return [
        (each.text, each.tool_calls, each.finish_reason, each.tokens_in, each.tokens_out, each.error, each.is_too_long)
        for each in engine.chat(requests)
    ]


def test_it_answers_as_the_engine_of_evals_does(live: Live) -> None:
    """Conversations that do not fit, limits of their own, and the others in their places."""
    requests = [ask("remind Ada", 3), ask("remind Ada " * 400), ask("remind Bo", 12), ask("remind Cy", 600)]
    evals = open_engine({"kind": "transformers", "path": str(live.path), "dtype": "float32"})
    try:
        found = same(live.engine, requests)
        assert found == same(evals, requests)
    finally:
        evals.close()
    assert [is_too_long for *_, is_too_long in found] == [False, True, False, True]
    assert [tokens_out for _, _, _, _, tokens_out, _, _ in found] == [3, None, 12, None]
    assert found[1][5].endswith("asks for 8 more; the model takes 512 in all")


def test_a_template_that_refuses_a_conversation_leaves_the_others(live: Live) -> None:
    template = live.engine.tokenizer.chat_template
    live.engine.tokenizer.chat_template = (
        "{% if 'no' in messages[0]['content'] %}{{ raise_exception('no') }}{% endif %}" + template
    )
    refused, answered = live.engine.chat([ask("no"), ask("remind Ada")])
    assert refused.error == "the model's chat template refuses the conversation: no"
    assert (answered.error, answered.tokens_out) == ("", 8)


def test_an_episode_that_outgrows_the_context_is_judged_as_it_stands_and_says_so() -> None:
    """One that said nothing before is unscored: its task is at fault, not the policy."""

    def answer(request: ChatRequest) -> ChatResponse:
        is_first = len(request.messages) < 3
        if not is_first or "Emma" in request.messages[-1].content:
            return ChatResponse(error="the model takes 512 in all", is_too_long=True)
        return ChatResponse(text='{"tool": "contacts.search_contacts", "arguments": {"query": "a"}}')

    events: list[dict[str, Any]] = []
    settings = {"max_completion_length": 8}
    run: Any = SimpleNamespace(
        spec=SimpleNamespace(seed=1, eval_limit=8, settings=settings), event=lambda _, **row: events.append(row)
    )
    target: dict[str, Any] = {"calls": []}
    tasks = [Task(name, f"Who is {name}?", target, {"world": 1}) for name in ("Ada", "Emma")]
    HeldOut(run, build("workplace", {}, {"kind": "workplace"}), tasks, FakeEngine(answer))(1)
    evaluated, samples = events
    assert (evaluated["n"], evaluated["unscored"]) == (1, 1)
    reasons = {sample["task_id"]: sample["reason"] for sample in samples["samples"]}
    assert reasons["Ada"].startswith("broken off: the model takes 512 in all; ")
    assert reasons["Emma"] == "not answered: the model takes 512 in all"
