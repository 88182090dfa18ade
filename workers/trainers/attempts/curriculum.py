"""Which tasks are worth another attempt: those that the policy solves now and then.

One that it nearly always solves, or never does, takes attempts and teaches little. It rests, and since the policy
changes, it comes back later. What was found of the tasks is part of each checkpoint.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from flywheel.core.verifiers import Verdict

LOW, HIGH = 0.1, 0.8
"""Solve rates between which a task is worth trying."""
REST = 2
"""Turns that a task rests for."""
FILE = "curriculum.json"


class Curriculum(TrainerCallback):
    """Solve rates of a run's tasks, each known by its place among them, and how long those that rest still rest."""

    def __init__(self, checkpoints: Path) -> None:
        """`checkpoints` is the directory in which a resumed run finds what was known at its step."""
        self._checkpoints = checkpoints
        self.rates: dict[int, float] = {}
        self.rests: dict[int, int] = {}

    def is_due(self, place: int) -> bool:
        """Whether the task is worth trying now."""
        return not self.rests.get(place)

    def turn(self, place: int) -> bool:
        """Whether the task is tried, now that its turn has come: one that rests is a turn nearer to its return."""
        if self.is_due(place):
            return True
        self.rests[place] -= 1
        return False

    def learn(self, place: int, verdicts: Sequence[Verdict], *, is_dull: bool) -> None:
        """Take note of a group's verdicts; `is_dull` says that its rewards are all alike. The rate goes half way to
        that of the group. A task that is never solved, but earns more at times, is worth trying."""
        scored = [bool(verdict.success) for verdict in verdicts if verdict.score is not None]
        if not scored:
            return
        found = sum(scored) / len(scored)
        rate = (self.rates.get(place, found) + found) / 2
        self.rests[place] = REST if rate > HIGH or (rate < LOW and is_dull) else 0
        self.rates[place] = rate  # last, as a save may come between

    @property
    def resting(self) -> int:
        """The number of tasks that rest."""
        return sum(bool(turns) for turns in self.rests.values())

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A copy: with asynchronous execution others learn of attempts meanwhile.
        known = {str(place): [rate, self.rests[place]] for place, rate in dict(self.rates).items()}
        (Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE).write_text(json.dumps(known))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            known = json.loads((self._checkpoints / f"step-{state.global_step}" / FILE).read_bytes())
            self.rates = {int(place): rate for place, (rate, _) in known.items()}
            self.rests = {int(place): turns for place, (_, turns) in known.items()}
