"""The weights that did best on validation, kept beside the run, and whether more steps are worth their time.

The rule is told before the run begins: the best mean score of the validation tasks, or the best mean reward where
`best_metric` says so, the first where several are equal; what the policy was before its first step is no choice.
Weights are kept as a checkpoint has them, in `best/step-N`, until the run ends. A resumed run finds its choice again:
scores are in its events, and the weights in the directory.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from workers.trainers.run import checkpoints
from workers.trainers.run.run_directory import Run

PLACE = "best"
SCORE = "score.json"
OVERALL = {"score": "overall", "reward": "overall_reward"}
"""Figures by which weights can be compared, and the names that an event has for them over the tasks of all
environments, where there are several."""


class BestWeights:
    """Told of every validation, keeps the weights of the best, and says when to end early."""

    def __init__(self, run: Run, save: Callable[[str], object], *, until: int) -> None:
        """`save` writes the weights into a directory, with the help of all processes. `until` is the step from which
        the run goes on: what came after it will come again."""
        self.run, self.save = run, save
        self._patience: int = run.spec.settings.get("patience", 0)
        self._keeps: bool = run.spec.settings.get("final_weights") == "best"
        told = _validation_scores(run.path / "events.jsonl", run.spec.settings.get("best_metric", "score"))
        self._scores = {step: score for step, score in told.items() if step <= until}
        self.best = max(((step, score) for step, score in self._scores.items() if step), key=_rank, default=None)
        """Step and score of the best validation after the first step; None before there is one."""
        if kept := _kept(run.path):
            self.best = (kept[-1], _score_of(self.path_of(kept[-1])))
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
            if self._keeps:
                self._keep(step, score)
            self.best = (step, score)

    def kept(self) -> int | None:
        """The step of the best weights; None where none were kept and the last ones are given."""
        found = _kept(self.run.path)
        return found[-1] if found else None

    def path_of(self, step: int) -> Path:
        """Where the weights of a step are kept."""
        return self.run.path / PLACE / f"step-{step}"

    def drop(self) -> None:
        """Remove the kept weights: the run has ended, and what it gives holds them."""
        for step in _kept(self.run.path):
            checkpoints.remove(self.path_of(step))
        shutil.rmtree(self.run.path / PLACE, ignore_errors=True)

    def _keep(self, step: int, score: float) -> None:
        aside = self.run.work / PLACE
        if self.run.is_first:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        self.save(str(aside))
        if not self.run.is_first:
            return
        (aside / SCORE).write_text(json.dumps(score))
        checkpoints.move(aside, self.path_of(step))
        for other in _kept(self.run.path):
            if other != step:
                checkpoints.remove(self.path_of(other))


def _score_of(kept: Path) -> float:
    """The score that the kept weights themselves had: a step that comes again may be told another, on a GPU."""
    return float(json.loads((kept / SCORE).read_bytes()))


def _rank(choice: tuple[int, float]) -> tuple[float, int]:
    step, score = choice
    return score, -step


def _kept(run: Path) -> list[int]:
    """Steps whose weights are kept, in order; a crash may leave two."""
    found = [path.parent.name for path in (run / PLACE).glob(f"step-*/{SCORE}")]
    return sorted(int(name.removeprefix("step-")) for name in found if re.fullmatch(r"step-\d+", name))


def _validation_scores(events: Path, metric: str) -> dict[int, float]:
    """The figure by which weights are compared by step, as the run's events tell of it; of a step that came again the
    last."""
    rows = [json.loads(line) for line in events.read_bytes().splitlines() if b'"validation"' in line]
    told = {row["step"]: row.get(OVERALL[metric], row.get(metric)) for row in rows if row["event"] == "validation"}
    return {step: score for step, score in told.items() if score is not None}
