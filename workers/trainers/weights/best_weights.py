"""The weights that did best on validation, kept beside the run, and whether more steps are worth their time.

The rule is told before the run begins: the best mean score of the validation tasks, the first where several are equal;
what the policy was before its first step is no choice. Weights are kept as they learn, in `best/step-N`, until the run
ends. A resumed run finds its choice again: scores are in its events, and the weights in the directory.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from workers.trainers.run import checkpoints
from workers.trainers.run.run_directory import Run

PLACE = "best"
WEIGHTS = "weights.safetensors"


class BestWeights:
    """Told of every validation, keeps the weights of the best, and says when to end early."""

    def __init__(self, run: Run, model: Any, *, until: int) -> None:
        """`until` is the step from which the run goes on: what came after it will come again."""
        self.run, self.model = run, model
        self._patience: int = run.spec.settings.get("patience", 0)
        self._keeps: bool = run.spec.settings.get("final_weights") == "best"
        told = _validation_scores(run.path / "events.jsonl")
        self._scores = {step: score for step, score in told.items() if step <= until}
        self.best = max(((step, score) for step, score in self._scores.items() if step), key=_rank, default=None)
        """Step and score of the best validation after the first step; None before there is one."""
        if kept := _kept(run.path):
            self.best = (kept[-1], _score_of(run.path / PLACE / f"step-{kept[-1]}"))
        elif self._keeps:
            self.best = None  # nothing is kept to choose from, so the next best is the best

    @property
    def is_over(self) -> bool:
        """Whether so many validations were no better than the best that the run ends early."""
        if not self._patience or self.best is None:
            return False
        best, _ = self.best
        return sum(step > best for step in self._scores) >= self._patience

    def __call__(self, step: int, score: float | None) -> None:
        """Take note of a validation; its weights are kept where it is the best so far."""
        if score is None:
            return
        self._scores[step] = score
        if step and (self.best is None or score > self.best[1]):
            if self._keeps and self.run.is_first:
                self._keep(step, score)
            self.best = (step, score)

    def restore(self) -> int | None:
        """Put the best weights into the model and return their step; None where none were kept and the last stay."""
        if not (kept := _kept(self.run.path)):
            return None
        weights = load_file(self.run.path / PLACE / f"step-{kept[-1]}" / WEIGHTS)
        with torch.no_grad():
            for name, parameter in _learning(self.model):
                parameter.copy_(weights[name])
        return kept[-1]

    def drop(self) -> None:
        """Remove the kept weights: the run has ended, and what it gives holds them."""
        shutil.rmtree(self.run.path / PLACE, ignore_errors=True)

    def _keep(self, step: int, score: float) -> None:
        aside = self.run.work / PLACE
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        weights = {name: weight.detach().contiguous().cpu() for name, weight in _learning(self.model)}
        save_file(weights, aside / WEIGHTS, metadata={"score": repr(score)})
        (self.run.path / PLACE).mkdir(exist_ok=True)
        checkpoints.move(aside, self.run.path / PLACE / f"step-{step}")
        for other in _kept(self.run.path):
            if other != step:
                shutil.rmtree(self.run.path / PLACE / f"step-{other}")


def _learning(model: Any) -> Iterator[tuple[str, Any]]:
    """The weights that learn, by name; all others are the base's."""
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def _score_of(kept: Path) -> float:
    """The score that the kept weights themselves had: a step that comes again may be told another, on a GPU."""
    with safe_open(kept / WEIGHTS, "pt") as file:
        return float(file.metadata()["score"])


def _rank(choice: tuple[int, float]) -> tuple[float, int]:
    step, score = choice
    return score, -step


def _kept(run: Path) -> list[int]:
    """Steps whose weights are kept, in order; a crash may leave two."""
    found = [path.name for path in (run / PLACE).glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(int(name.removeprefix("step-")) for name in found)


def _validation_scores(events: Path) -> dict[int, float]:
    """Scores by step, as the run's events tell of them; of a step that came again the last."""
    rows = [json.loads(line) for line in events.read_bytes().splitlines() if b'"validation"' in line]
    told = {row["step"]: row.get("overall", row["score"]) for row in rows if row["event"] == "validation"}
    return {step: score for step, score in told.items() if score is not None}
