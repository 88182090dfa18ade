"""Calls under a chat template that writes them as Qwen's and Hermes' do: taught, read and judged alike everywhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from flywheel.core.envs import Task, build
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Rollout, Sampling
from flywheel.core.traces import Message, ToolCall
from tests.workers.trainers.cast import NAMES, TOOLS, Directory, Start, owned, pair_row, sft_row, task
from workers.engines.tool_calls import answer_of, prompt_tokens, read_tool_calls
from workers.engines.transformers_engine import TransformersEngine
from workers.trainers.attempts.live_engine import LiveEngine
from workers.trainers.attempts.rewards import HeldOut, Judge, Rewards
from workers.trainers.run import run_spec
from workers.trainers.weights import trained_policy

TEMPLATE = (
    "{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{%- for m in messages %}{{ '<|' + m.role + '|>' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' }}"
    """{{ '{"name": "' + call.function.name + '", "arguments": ' }}"""
    "{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CALL = '<tool_call>\n{"name": "remind", "arguments": {"who": "Ada"}}\n</tool_call>'
REMIND = ToolCall("call-0", "remind", {"who": "Ada"})


def native(name: str, who: str) -> list[dict[str, Any]]:
    """As rows of a dataset hold it: arguments as text."""
    return [Message("assistant", "", (ToolCall("c", name, {"who": who}),)).to_openai()]


@pytest.fixture(scope="module")
def qwen(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base with such a template, and with room for what it writes."""
    path = Path(copytree(base, tmp_path_factory.mktemp("qwen") / "base"))
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return path


def keep_what_is_learnt(path: str) -> None:
    """A hook: write down what a trainer has prepared to learn from, and end."""
    from workers.trainers import training_loop

    def drive(run: Any, trainer: Any, loaded: Any, *_: Any) -> None:
        columns = [name for name in ("input_ids", "chosen_ids", "rejected_ids") if name in trainer.train_dataset[0]]
        told = [[loaded.tokenizer.decode(row[name]) for name in columns] for row in trainer.train_dataset]
        Path(path).write_text(json.dumps(told))

    training_loop.drive = drive  # type: ignore[assignment]


def learnt(run: Directory, start: Start) -> list[list[str]]:
    path = run.path / "learnt"
    assert start(run, hook=keep_what_is_learnt, given=str(path)).wait() == 0, run.errors()
    return [list(row) for row in json.loads(path.read_text())]


ROWS = {
    "sft": [sft_row(name) | {"completion": native("remind", name)} for name in NAMES[:4]],
    "dpo": [
        pair_row(name) | {"chosen": native("remind", name), "rejected": native("erase", name)} for name in NAMES[:4]
    ],
}


@pytest.mark.parametrize("algorithm", ROWS)
def test_a_call_is_taught_in_the_form_that_is_read(algorithm: str, qwen: Path, tmp_path: Path, start: Start) -> None:
    run = Directory(tmp_path / "run", qwen, algorithm, train=ROWS[algorithm])
    for who, row in zip(NAMES[:4], learnt(run, start), strict=True):
        calls = [read_tool_calls(text)[1] for text in row]
        wanted = ("remind",) if algorithm == "sft" else ("remind", "erase")
        assert calls == [(ToolCall("call-0", name, {"who": who}),) for name in wanted]


@pytest.fixture
def live(qwen: Path, tmp_path: Path) -> trained_policy.Policy:
    return trained_policy.load(owned(Directory(tmp_path / "run", qwen, "sft")))


def conversation() -> tuple[Message, ...]:
    return (
        Message("user", "remind Ada"),
        Message("assistant", "", (ToolCall("c", "remind", {"who": "Ada", "at": {"h": 9}}),)),
        Message("tool", "no such time", tool_call_id="c", name="remind"),
        Message("assistant", "", (ToolCall("d", "remind", '{"who": '),)),
        Message("user", "Well?"),
    )


def test_trainers_and_evals_show_a_policy_the_same(qwen: Path, live: trained_policy.Policy) -> None:
    engine = TransformersEngine(qwen, device="cpu")
    request = ChatRequest(conversation(), Sampling(max_tokens=8), 1, tuple(TOOLS))
    learnt = prompt_tokens(live.tokenizer, [message.to_openai() for message in request.messages], TOOLS)
    assert learnt == engine._encode(request)
    shown = live.tokenizer.decode(learnt)
    assert '{"name": "remind", "arguments": {"who": "Ada", "at": {"h": 9}}}' in shown
    assert '{"type": "function", "function": {"name": "remind"' in shown, "as a server shows its tools"


def test_the_live_policys_call_is_read_as_an_evals(
    live: trained_policy.Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = torch.tensor([live.tokenizer.encode(CALL + "<|end|>")])
    monkeypatch.setattr(live.model, "generate", lambda input_ids, **_: torch.cat([input_ids, said], 1))
    engine = LiveEngine(live.model, live.tokenizer, 4)
    (response,) = engine.chat([ChatRequest((Message("user", "remind Ada"),), Sampling(0.0, max_tokens=200), 1)])
    assert (response.text, response.tool_calls) == ("", (REMIND,))


def test_a_written_call_is_worth_what_an_eval_says(live: trained_policy.Policy) -> None:
    judge = Judge(build("tool_call", {"tools": TOOLS}, {}))
    pure = Task.from_json(task("Ada"))
    worth = Rewards(judge, [pure], 1)
    tokenizer, ends = live.tokenizer, trained_policy.ends_of(live.model, live.tokenizer)

    def reward(text: str) -> float | None:
        said = answer_of(tokenizer, [], tokenizer.encode(text), ends, 0.0, TOOLS)
        messages = [Message("user", pure.prompt), Message("assistant", said.text, said.tool_calls)]
        return worth.total(judge.verdicts([Rollout(pure, 0, 1, messages, [said])])[0])

    assert reward(CALL) == pytest.approx(1.0)
    assert (reward(CALL.replace("Ada", "Bo")) or 0) < 1
    assert reward(CALL.replace("{", "[")) == 0


class Says:
    def __init__(self, *calls: ToolCall) -> None:
        self.calls = calls

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        return [ChatResponse("So:", self.calls, "stop")] * len(requests)

    def close(self) -> None: ...


def test_the_sample_of_a_held_out_task_shows_its_call(qwen: Path, tmp_path: Path) -> None:
    run = owned(Directory(tmp_path / "run", qwen, "sft"))
    HeldOut(run, run_spec.environment(run.spec), [Task.from_json(task("Ada"))], Says(REMIND))(0)
    scores, samples = run.events
    assert scores["success"] == 1.0
    assert samples["samples"][0]["completion"] == 'So:\n{"tool": "remind", "arguments": {"who": "Ada"}}'
