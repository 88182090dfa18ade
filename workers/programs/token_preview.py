"""`python -m workers.programs.token_preview RUNDIR`: what a trainer would learn from, before anything is trained.

The directory is that of a run, of any algorithm (`docs/design/run-directory.md`). Its rows become tokens by the very
trainer that would learn from them, built on a stand-in of a few weights, so that what is shown is what would be on the
device: the ids of a batch of one, and which of them count in the loss. The result has it as `preview`, a `Preview`.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import groupby, takewhile
from statistics import median
from typing import Any, Literal

from flywheel.core.envs import Environment, Task
from workers.engines import context_length
from workers.processes import model_process
from workers.trainers.run import run_spec
from workers.trainers.run.run_directory import Run, main
from workers.trainers.run.run_spec import ANY_TRAINER, Data, Spec

FIRST = 4
"""Rows that are shown in any case; the longest, the first that is cut and the first that is left out come beside."""
HEAD, TAIL = 240, 80
"""Tokens that are shown of the beginning and of the end of a long span."""
PACKED = ("trl.packing", "trl.packing_strategy", "trl.padding_free")
"""Settings that put rows behind one another in one sequence, where nothing is cut; here each is shown by itself."""

State = Literal["read", "learnt", "cut"]
Tokens = list[tuple[int, State]]


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of one state."""

    state: State
    count: int
    tokens: list[tuple[int, str, bool]]
    """Of the beginning, or all: id, text, and whether it is one of the tokenizer's own marks."""
    hidden: int = 0
    last: list[tuple[int, str, bool]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Part:
    """A row, or one answer of a pair, as the model gets it."""

    name: str
    """`chosen` or `rejected`, or `good` or `bad` of an answer with a thumb; empty where nothing is told apart."""
    tokens: int
    """Without those that are cut off."""
    learnt: int
    cut: int
    spans: list[Span]
    """Those behind what it shares with its sibling."""


@dataclass(frozen=True, slots=True)
class Example:
    row: int
    """Its place in the dataset, from 1."""
    task: str
    left_out: str
    """Why nothing is learnt from it; empty where something is."""
    shared: list[Span]
    """The prompt of a pair."""
    sequences: list[Part]


@dataclass(frozen=True, slots=True)
class Preview:
    """Counts are of all rows, in tokens of all their sequences."""

    rows: int
    left_out: int
    cut: int
    """Rows that are learnt from, of which something is cut off."""
    tokens: int
    learnt: int
    median: int
    """Tokens of a sequence, before anything is cut."""
    longest: int
    limit: int | None
    """The most tokens of a sequence; None where the model does not say."""
    limited_by: str
    answer: int | None
    """Most tokens that the policy may answer to a prompt; None where answers are given."""
    examples: list[Example]


@dataclass(slots=True)
class Row:
    """One row in tokens, `sequences` in the order of the trainer's batch."""

    number: int
    task: str
    names: Sequence[str]
    sequences: list[Tokens]
    left_out: str = ""

    def count(self, *states: State) -> int:
        return sum(state in states for tokens in self.sequences for _, state in tokens)

    @property
    def longest(self) -> int:
        return max(map(len, self.sequences))


@dataclass(frozen=True, slots=True)
class Rows:
    rows: list[Row]
    limit: int | None
    limited_by: str


def look(run: Run) -> None:
    """Write the preview of a run directory. Raises TrainingError."""
    env, data = run_spec.opened(run.spec)
    with model_process.loading():
        from workers.trainers.weights import trained_policy

    # Tokens do not depend on weights, nor on how many share a batch.
    run.spec = dataclasses.replace(run.spec, adapter=None, settings={**run.spec.settings, "processes": 1})
    loaded = trained_policy.weightless(run.spec)
    kind = run.spec.recipe.data
    taken = _prompts(run, loaded, env, data) if kind == "tasks" else _taught(run, loaded, env, data)
    preview = _preview(taken, Vocabulary(loaded.tokenizer), run.spec)
    run.write_result(status="completed", preview=asdict(preview), seconds=run.seconds)


def _names(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a row's sequences."""
    if "chosen" in row:
        return ("chosen", "rejected")
    return (("good" if row["label"] else "bad") if "label" in row else "",)


def _taught(run: Run, loaded: Any, env: Environment, data: Data) -> Rows:
    """Rows by TRL's trainer: once as they are learnt from, and once whole, to see what is cut off."""
    from workers.trainers.weights import trained_policy

    is_whole = not run.spec.recipe.makes_policy  # a pair is scored whole or not at all
    is_packed = bool(run.spec.settings.get(PACKED[0]))
    build = import_module(f"workers.trainers.{run.spec.recipe.trainer}").build
    limit, words = trained_policy.longest(loaded.model, run.spec.settings)
    single = {name: value for name, value in run.spec.settings.items() if name not in PACKED}
    run.spec = dataclasses.replace(run.spec, settings=single)
    cut = _batches(build(run, loaded, env, data))
    whole = {"max_length": trained_policy.BOUNDLESS}
    run.spec = dataclasses.replace(run.spec, settings=single | whole)
    loaded = trained_policy.weightless(run.spec)
    loaded.model.config.update({"max_position_embeddings": trained_policy.BOUNDLESS})
    uncut = _batches(build(run, loaded, env, data))
    kept = uncut if is_packed else cut
    rows = [
        Row(
            place + 1,
            data.train[place]["task_id"],
            _names(data.train[place]),
            list(map(_joined, kept.get(place, [[]] * len(sequences)), sequences)),
            "" if place in kept else f"it goes beyond {words}" if is_whole else f"its prompt alone reaches {words}",
        )
        for place, sequences in sorted(uncut.items())
    ]
    return Rows(rows, None if is_packed else limit, words)


def _batches(trainer: Any) -> dict[int, list[Tokens]]:
    """The sequences of each row that TRL keeps, by the row's place, as its collator puts them into a batch."""
    batches: dict[int, list[Tokens]] = {}
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        learns = _learns(batch)
        lines = (batch[name].tolist() for name in ("input_ids", "attention_mask"))
        batches[row["row"]] = [
            [(token, "learnt" if does else "read") for token, is_there, does in zip(*line, strict=True) if is_there]
            for line in zip(*lines, learns.tolist(), strict=True)
        ]
    return batches


def _learns(batch: Any) -> Any:
    """Which tokens count: those of the answers, or the last one of each sequence, at which a reward model scores it."""
    if "labels" in batch:
        return batch["labels"] != -100
    if "completion_mask" in batch:
        return batch["completion_mask"] == 1
    seen = batch["attention_mask"]
    return seen.cumsum(1) == seen.sum(1, keepdim=True)


def _joined(kept: Tokens, whole: Tokens) -> Tokens:
    """The sequence that is kept, and what is cut off behind it or, with TRL's `keep_end`, before it."""
    ids, rest = [token for token, _ in whole], len(whole) - len(kept)
    if [token for token, _ in kept] == ids[: len(kept)]:
        return [*kept, *((token, "cut") for token in ids[len(kept) :])]
    return [*((token, "cut") for token in ids[:rest]), *kept]


def _prompts(run: Run, loaded: Any, env: Environment, data: Data) -> Rows:
    """Prompts of tasks, which the policy answers itself."""
    from workers.trainers import online_tasks
    from workers.trainers.weights import trained_policy

    rows = []
    for number, task in enumerate(map(Task.from_json, data.train), 1):
        ids = online_tasks.prompt_of(run.spec, loaded, env, task)
        problem = online_tasks.overflow(run.spec, loaded, ids)
        rows.append(Row(number, task.id, ("",), [[(token, "cut" if problem else "read") for token in ids]], problem))
    room = context_length.room_of(loaded.model)
    return Rows(rows, None if room == trained_policy.BOUNDLESS else room, "the model's context")


def _preview(taken: Rows, vocabulary: "Vocabulary", spec: Spec) -> Preview:
    rows = taken.rows
    learnt = [row for row in rows if not row.left_out]
    return Preview(
        rows=len(rows),
        left_out=len(rows) - len(learnt),
        cut=sum(row.count("cut") > 0 for row in learnt),
        tokens=sum(row.count("read", "learnt") for row in learnt),
        learnt=sum(row.count("learnt") for row in learnt),
        median=round(median(row.longest for row in rows)),
        longest=max(row.longest for row in rows),
        limit=taken.limit,
        limited_by=taken.limited_by,
        answer=spec.settings["max_completion_length"] if spec.recipe.practises else None,
        examples=[_example(row, vocabulary) for row in _shown(rows)],
    )


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The first rows, and one of each kind that a person should see."""
    found = [*rows[:FIRST], max(rows, key=lambda row: row.longest)]
    found += [row for row in rows if row.left_out][:1]
    found += [row for row in rows if not row.left_out and row.count("cut")][:1]
    return sorted({row.number: row for row in found}.values(), key=lambda row: row.number)


def _example(row: Row, vocabulary: "Vocabulary") -> Example:
    shared = 0
    if len(row.sequences) > 1:
        together = zip(*row.sequences, strict=False)
        shared = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1 and tokens[0][1] != "learnt", together))
    return Example(
        row.number,
        row.task,
        row.left_out,
        vocabulary.spans(row.sequences[0][:shared]),
        [
            Part(
                name,
                sum(state != "cut" for _, state in tokens),
                sum(state == "learnt" for _, state in tokens),
                sum(state == "cut" for _, state in tokens),
                vocabulary.spans(tokens[shared:]),
            )
            for name, tokens in zip(row.names, row.sequences, strict=True)
        ],
    )


class Vocabulary:
    """Writes tokens as a person reads them: each by itself, with the space before it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._marks = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        # Some tokenizers drop the space of a token that begins a text.
        self._before: int = tokenizer.encode("a", add_special_tokens=False)[-1]
        self._lead = len(tokenizer.decode([self._before]))
        self._written: dict[int, tuple[int, str, bool]] = {}

    def spans(self, tokens: Tokens) -> list[Span]:
        return [self._span(state, [token for token, _ in group]) for state, group in groupby(tokens, lambda it: it[1])]

    def _span(self, state: State, ids: Sequence[int]) -> Span:
        written = list(map(self._write, ids if len(ids) <= HEAD + TAIL else [*ids[:HEAD], *ids[-TAIL:]]))
        return Span(state, len(ids), written[:HEAD], len(ids) - len(written), written[HEAD:])

    def _write(self, token: int) -> tuple[int, str, bool]:
        if token not in self._written:
            text = self._tokenizer.decode([self._before, token])[self._lead :]
            if "\ufffd" in text:  # a part of a character
                text = str(self._tokenizer.convert_ids_to_tokens(token))
            self._written[token] = (token, text, token in self._marks)
        return self._written[token]


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a stand-in of a few weights is no reason to disturb who trains there
    raise SystemExit(main(ANY_TRAINER, look))
