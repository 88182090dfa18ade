"""A policy of a few thousand weights, and trainers that start without import time.

Trainers run in processes of their own: killed, locked, signalled like real ones. A fork server imports the libraries
once and every run is a fork of it; the tests of the command line start a real one.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainers.cast import NAMES, TEMPLATE, Directory, Make, Start, Trainer, child, sft_row


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Qwen3 decoder with its own tokenizer and chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    lines = [row["prompt"][0]["content"] + row["completion"][0]["content"] for row in map(sft_row, NAMES)]
    words.train_from_iterator(
        lines,
        trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=_alphabet(), show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="<|pad|>", eos_token="<|end|>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    path = tmp_path_factory.mktemp("base")
    Qwen3ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory, start: Start) -> Path:
    """The base after an SFT run of ours: it knows its job well enough for attempts to differ in their rewards."""
    run = Directory(
        tmp_path_factory.mktemp("trained") / "run", base, "sft", steps=60, held_out=False, checkpoint_every=60
    )
    assert start(run).wait() == 0, run.errors()
    return run.path / "final"


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """Starts trainers as forks of a process that has the libraries loaded."""
    os.environ["OMP_NUM_THREADS"] = "1"  # so small a policy is quickest, and the same each time, on one core
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "workers.trainers.online_tasks",
            "workers.trainers.objectives.distillation",
            "workers.trainers.objectives.leave_one_out",
            "workers.trainers.objectives.ppo",
            "workers.trainers.attempts.weighted_imitation",
            "trl.trainer.grpo_trainer",
            "trl.trainer.sft_trainer",
            "trl.trainer.dpo_trainer",
            "trl.trainer.kto_trainer",
            "trl.trainer.reward_trainer",
        ]
    )
    started: list[Any] = []

    def begin(run: Directory, *arguments: str, hook: Callable[..., Any] | None = None, given: Any = None) -> Trainer:
        process = context.Process(target=child, args=(run.trainer, str(run.path), arguments, hook, given), daemon=True)
        process.start()
        started.append(process)
        return Trainer(process)

    yield begin
    for process in started:
        with contextlib.suppress(ValueError):
            process.kill()
            process.join()


def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.fixture
def make(base: Path, tmp_path: Path) -> Make:
    def create(algorithm: str = "sft", *, name: str = "run", on: Path | None = None, **fields: Any) -> Directory:
        return Directory(tmp_path / name, on or base, algorithm, **{"teacher": base, **fields})

    return create
