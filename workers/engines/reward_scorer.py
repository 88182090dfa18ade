"""A reward model asked in this process, through transformers, the same on CPU and GPU: raw scores of conversations.

A conversation becomes tokens as in training (`workers.trainers.reward_model`): by the model's chat template, with the
tools that the agent had, to its very end. Only safetensors are read, and no code that came with a model is run.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Set before transformers is imported, which reads them once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from flywheel.core.envs.policy_rollouts import EngineError
from workers.engines import context_length
from workers.engines.tool_calls import prompt_tokens
from workers.processes import model_process

logging.disable_progress_bar()  # type: ignore[no-untyped-call]

AT_ONCE = 32
"""Conversations that are scored in one pass."""
SMALL = 5_000_000
"""Below so many parameters one CPU thread is as quick as several."""


Conversation = tuple[Sequence[Mapping[str, Any]], Sequence[Any]]
"""Messages as chat templates take them, the answer last, and the tools that the agent had."""


class RewardScorer:
    """Scores conversations by a sequence classifier of one output."""

    def __init__(self, model: Any, tokenizer: Any, batch_size: int = AT_ONCE) -> None:
        self._model, self._tokenizer, self._batch_size = model, tokenizer, batch_size
        self._room = context_length.room_of(model)

    @classmethod
    def load(cls, path: Path, batch_size: int = AT_ONCE) -> "RewardScorer":
        """The reward model in a directory. Raises EngineError."""
        known = {"local_files_only": True, "trust_remote_code": False}
        try:
            with model_process.mapping(path):
                model = AutoModelForSequenceClassification.from_pretrained(
                    path, use_safetensors=True, dtype=torch.float32, **known
                )
            tokenizer = AutoTokenizer.from_pretrained(path, **known)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, SafetensorError) as error:
            raise EngineError(f"the reward model in {path} does not load: {error}") from error
        if torch.cuda.is_available():
            model = model.to("cuda")
        elif model.num_parameters() < SMALL and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        return cls(model.eval(), tokenizer, batch_size)

    def score(
        self, conversations: Sequence[Conversation], rendered: Callable[[int], None] | None = None
    ) -> list[float | str]:
        """The raw score of each, in order; of one that cannot be read, or is too long for the model, why.

        `rendered` is called after each that has become tokens, with how many are left.
        """
        found: list[float | str] = []
        encoded: dict[int, list[int]] = {}
        for place, conversation in enumerate(conversations):
            ids = self._encode(conversation)
            if not isinstance(ids, str):
                encoded[place] = ids
            found.append(ids if isinstance(ids, str) else 0.0)
            if rendered is not None:
                rendered(len(conversations) - place - 1)
        # Neighbours in length share a batch, so that little is padded.
        order = sorted(encoded, key=lambda place: len(encoded[place]))
        for start in range(0, len(order), self._batch_size):
            batch = order[start : start + self._batch_size]
            for place, raw in zip(batch, self._raw([encoded[place] for place in batch]), strict=True):
                found[place] = raw
        return found

    def close(self) -> None:
        self._model = None

    def _encode(self, conversation: Conversation) -> list[int] | str:
        messages, tools = conversation
        try:
            ids = prompt_tokens(self._tokenizer, messages, tools, is_asked=False)
        except ValueError as error:
            return f"the reward model cannot read it: {error}"
        if self._room is not None and len(ids) > self._room:
            return context_length.TooLong(
                f"the conversation has {len(ids):,} tokens; the reward model takes {self._room:,}"
            )
        return ids

    @torch.no_grad()
    def _raw(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        longest, pad = max(map(len, sequences)), self._tokenizer.pad_token_id
        ids = torch.tensor([[*sequence, *[pad] * (longest - len(sequence))] for sequence in sequences])
        seen = torch.tensor([[1] * len(sequence) + [0] * (longest - len(sequence)) for sequence in sequences])
        device = self._model.device
        is_half = device.type == "cuda" and next(self._model.parameters()).dtype != torch.float32
        with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
            logits = self._model(input_ids=ids.to(device), attention_mask=seen.to(device), use_cache=False).logits
        return [float(raw) for raw in logits[:, 0]]
