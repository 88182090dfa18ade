"""What a trainer would learn from is what it learns from: the preview against the batches that TRL's trainers get."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import trl

from flywheel.core.traces import Message, ToolCall
from tests.workers.trainers.cast import NAMES, Directory, Start, pair_row, scored_row, sft_row, task, thumb_row
from tests.workers.trainers.conftest import base, start
from workers.programs import token_preview

__all__ = ["base", "start"]

TEMPLATES = ("qwen3", "llama3_1", "gemma3", "gptoss")


@pytest.fixture(scope="module", params=TEMPLATES)
def real(request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small base with the chat template of a real family."""
    return with_template(base, tmp_path_factory.mktemp(request.param) / "base", request.param)


def with_template(base: Path, path: Path, name: str) -> Path:
    from transformers import AutoTokenizer

    copytree(base, path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    tokenizer.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return path


def native(name: str, who: str) -> list[dict[str, Any]]:
    return [Message("assistant", "", (ToolCall("c00000000", name, {"who": who}),)).to_openai()]


ROWS = {
    "sft": [sft_row(name) | {"completion": native("remind", name)} for name in NAMES[:4]],
    "dpo": [
        pair_row(name) | {"chosen": native("remind", name), "rejected": native("erase", name)} for name in NAMES[:4]
    ],
    "kto": [thumb_row(name) | {"completion": native("remind", name)} for name in NAMES[:4]],
    "grpo": [task(name) for name in NAMES[:4]],
}

SCORED = [scored_row(name) | {"completion": native("remind", name)} for name in NAMES[:4]]
"""AWR's rows are SFT's with a score, and made into tokens by the same trainer."""

NAMED = {"dpo": ["chosen", "rejected"] * 4, "kto": ["good", "bad"] * 2}


def keep_the_batches(path: str) -> None:
    """A hook: write down the batches that a trainer is given, `[ids, learnt]` of each sequence, and end."""
    from workers.trainers import training_loop
    from workers.trainers.attempts.step_attempts import Attempts

    def drive(run: Any, trainer: Any, *_: Any) -> None:
        lines = [line for batch in trainer.get_train_dataloader() for line in sequences(batch)]
        Path(path).write_text(json.dumps(lines))

    def asked(self: Attempts, prompts: Any, trainer: Any) -> Any:
        steps = real(self, prompts, trainer)
        Path(path).write_text(json.dumps([[ids, [False] * len(ids)] for ids in steps["prompt_ids"]]))
        return steps

    real = Attempts.__call__
    if path.endswith("attempts"):
        Attempts.__call__ = asked  # type: ignore[method-assign]
    else:
        training_loop.drive = drive  # type: ignore[assignment]


def sequences(batch: Any) -> Iterator[list[Any]]:
    learns = batch["labels"] != -100 if "labels" in batch else batch["completion_mask"] == 1
    for ids, is_there, learnt in zip(batch["input_ids"], batch["attention_mask"], learns, strict=True):
        yield [ids[is_there == 1].tolist(), learnt[is_there == 1].tolist()]


def look_only(trainer: str) -> None:
    """A hook: the trainer's process makes the preview instead."""
    token_preview.HEAD = 4000
    importlib.import_module(f"workers.trainers.{trainer}").train = token_preview.look  # type: ignore[attr-defined]


def previewed(run: Directory, start: Start) -> dict[str, Any]:
    assert start(run, hook=look_only, given=run.trainer).wait() == 0, run.errors()
    return dict(run.result["preview"])


def shown(preview: dict[str, Any]) -> list[list[Any]]:
    """`[ids, learnt]` of each sequence that is shown, without what is cut off."""
    lines = []
    for example in preview["examples"]:
        for part in example["sequences"]:
            spans = [span for span in example["shared"] + part["spans"] if span["state"] != "cut"]
            written = [(token[0], span["state"]) for span in spans for token in span["tokens"]]
            lines.append([[token for token, _ in written], [state == "learnt" for _, state in written]])
    return lines


@pytest.mark.parametrize("algorithm", ROWS)
def test_it_shows_what_the_trainer_gets(algorithm: str, real: Path, tmp_path: Path, start: Start) -> None:
    more = {"num_generations": 2} if algorithm == "grpo" else {"max_length": 4096}
    settings = {"batch_size": 4, **more}
    run = Directory(tmp_path / "run", real, algorithm, train=ROWS[algorithm], steps=2, settings=settings)
    preview = previewed(Directory(tmp_path / "look", real, algorithm, train=ROWS[algorithm], settings=settings), start)
    path = run.path / ("attempts" if algorithm == "grpo" else "batches")
    assert start(run, hook=keep_the_batches, given=str(path)).wait() == 0, run.errors()
    got = json.loads(path.read_text())
    assert {json.dumps(line) for line in got} <= {json.dumps(line) for line in shown(preview)}
    assert len(shown(preview)) == (8 if algorithm == "dpo" else 4)
    names = [part["name"] for example in preview["examples"] for part in example["sequences"]]
    assert names == NAMED.get(algorithm, [""] * 4)
    assert (preview["learnt"] > 0) == (algorithm != "grpo")
    assert preview["left_out"] == preview["cut"] == 0


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "kto", "awr"])
def test_what_is_cut_and_left_out_is_what_the_trainer_cuts(
    algorithm: str, base: Path, tmp_path: Path, start: Start
) -> None:
    rows = [dict(row) for row in ROWS.get(algorithm, SCORED)]
    rows[1]["prompt"] = [{"role": "user", "content": "remind Bo " * 20}]
    rows[2]["prompt"] = [{"role": "user", "content": "remind Cy " * 60}]
    given: dict[str, Any] = {"train": rows, "settings": {"batch_size": 4, "max_length": 120}}
    preview = previewed(Directory(tmp_path / "look", base, algorithm, **given), start)
    run = Directory(tmp_path / "run", base, algorithm, **given)
    assert start(run, hook=keep_the_batches, given=str(run.path / "batches")).wait() == 0, run.errors()
    got = json.loads((run.path / "batches").read_text())
    kept = [example for example in preview["examples"] if not example["left_out"]]
    assert sorted(map(json.dumps, got)) == sorted(map(json.dumps, shown({"examples": kept})))
    assert (preview["rows"], preview["left_out"], preview["limit"]) == (4, 1, 120)
    (left_out,) = [example for example in preview["examples"] if example["left_out"]]
    assert (left_out["row"], left_out["left_out"]) == (3, "its prompt alone reaches max_length (120)")
    assert {span["state"] for span in left_out["sequences"][0]["spans"]} | {"cut"} == {"cut"}
    assert preview["longest"] > 120


def test_a_prompt_that_leaves_no_room_for_an_answer_is_left_out(base: Path, tmp_path: Path, start: Start) -> None:
    tasks = [task("Ada"), task("Bo", prompt="remind Bo " * 200)]
    preview = previewed(Directory(tmp_path / "run", base, "grpo", train=tasks), start)
    assert (preview["rows"], preview["left_out"], preview["limit"], preview["answer"]) == (2, 1, 512, 24)
    assert "the model takes 512 in all" in preview["examples"][1]["left_out"]


def test_packed_rows_are_shown_by_themselves_and_whole(base: Path, tmp_path: Path, start: Start) -> None:
    settings = {"batch_size": 4, "max_length": 16, "trl.packing": True, "processes": 2}
    preview = previewed(Directory(tmp_path / "run", base, "sft", train=ROWS["sft"], settings=settings), start)
    assert (preview["rows"], preview["left_out"], preview["cut"], preview["limit"]) == (4, 0, 0, None)


def test_tokens_are_written_so_that_they_read_as_the_text(base: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    text = "remind Ada\n at  9 – now"
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
    (span,) = token_preview.Vocabulary(tokenizer).spans([(token, "read") for token in ids])
    written = [text for _, text, _ in span.tokens]
    assert "".join(written[:-1]).startswith("remind Ada\n at  9 ")
    assert (span.tokens[-1][1], span.tokens[-1][2]) == ("<|end|>", True)
    assert len(ids) == span.count
    assert not span.hidden


def test_of_a_long_span_the_middle_is_left_out(base: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    (span,) = token_preview.Vocabulary(tokenizer).spans([(7, "learnt")] * 1000)
    assert (span.count, len(span.tokens), len(span.last)) == (1000, token_preview.HEAD, token_preview.TAIL)
    assert span.hidden == 1000 - token_preview.HEAD - token_preview.TAIL
