"""Demonstrations and uploaded conversations as SFT really learns them: which tokens have loss, and which tools."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from flywheel.core.recipes import ELSEWHERE
from flywheel.core.traces import Message, ToolCall
from tests.workers.trainers.cast import NAMES, Directory, Start
from tests.workers.trainers.test_sft_calls import qwen

__all__ = ["qwen"]

WRONG = Message("assistant", "", (ToolCall("c1", "erase", {"who": "Ada"}),))
RIGHT = Message("assistant", "", (ToolCall("c2", "remind", {"who": "Ada"}),))
TALK = [
    Message("user", "remind Ada"),
    WRONG,
    Message("tool", "no such person", tool_call_id="c1"),
    RIGHT,
    Message("tool", "done", tool_call_id="c2"),
    Message("assistant", "Ada is reminded."),
]


def rows_of(learnt: tuple[int, ...], **fields: Any) -> list[dict[str, Any]]:
    said = [message.to_openai() for message in TALK]
    own = {"task_id": "trajectory a", "origin": "trajectory", **fields}
    return [{**own, "prompt": said[:at], "completion": [said[at]]} for at in learnt]


def keep_what_has_loss(path: str) -> None:
    """A hook: write down what a trainer has prepared to learn from, by whether it carries loss, and end."""
    from workers.trainers import training_loop

    def drive(run: Any, trainer: Any, loaded: Any, *_: Any) -> None:
        batch = trainer.data_collator([trainer.train_dataset[at] for at in range(len(trainer.train_dataset))])
        told = []
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            learnt = [token for token, label in zip(ids, labels, strict=True) if label != -100]
            context = [token for token, label in zip(ids, labels, strict=True) if label == -100]
            told.append([loaded.tokenizer.decode(context), loaded.tokenizer.decode(learnt)])
        Path(path).write_text(json.dumps(told))

    training_loop.drive = drive  # type: ignore[assignment]


def loss_of(run: Directory, start: Start) -> list[list[str]]:
    path = run.path / "loss"
    assert start(run, hook=keep_what_has_loss, given=str(path)).wait() == 0, run.errors()
    return [list(row) for row in json.loads(path.read_text())]


def test_a_failed_step_is_in_the_context_and_no_token_of_it_carries_loss(
    qwen: Path, tmp_path: Path, start: Start
) -> None:
    run = Directory(tmp_path / "run", qwen, "sft", train=rows_of((3, 5)))
    template = AutoTokenizer.from_pretrained(qwen)
    call, words = loss_of(run, start)
    for (context, learnt), wanted in zip((call, words), ("remind", "Ada is reminded."), strict=True):
        assert '{"name": "erase"' in context
        assert wanted in learnt
        assert not any(strange in learnt for strange in ("erase", "no such person", "<|user|>", "<|tool|>"))
    ended = template.apply_chat_template(rows_of((5,))[0]["completion"], tokenize=False)
    assert words[1] == str(ended).removeprefix("<|assistant|>"), "the answer to its end, and nothing else"


def test_a_row_from_elsewhere_tells_of_its_own_tools(qwen: Path, tmp_path: Path, start: Start) -> None:
    tool = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}
    rows = [*rows_of((3,), origin=ELSEWHERE[1], tools=[tool]), *rows_of((5,), origin=ELSEWHERE[1])]
    (with_own, _), (without, _) = loss_of(Directory(tmp_path / "run", qwen, "sft", train=rows), start)
    assert '"weather"' in with_own
    assert '"weather"' not in without
    assert "Erase a person" not in with_own + without, "the environment's are others"


@pytest.mark.parametrize("origin", ["uploaded", "trajectory"])
def test_a_run_learns_from_them(origin: str, base: Path, tmp_path: Path, start: Start) -> None:
    from flywheel.training.datasets.uploaded_rows import read_rows  # a trainer imports this file, and has no Django

    if origin == "uploaded":
        talks = [[Message("user", f"remind {name}"), Message("assistant", f"{name} it is")] for name in NAMES[:6]]
        file = "\n".join(json.dumps({"messages": [m.to_openai() for m in talk]}) for talk in talks)
        rows = [row for line in read_rows(io.BytesIO(file.encode())).lines() if line for row in line.rows]
    else:
        rows = rows_of((5,)) * 6
    run = Directory(tmp_path / "run", base, "sft", train=rows, steps=12, held_out=False, checkpoint_every=12)
    assert start(run).wait() == 0, run.errors()
    losses = [event["metrics"]["loss"] for event in run.events("step")]
    assert losses[-1] < losses[0]
