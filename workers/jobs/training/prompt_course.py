"""gepa, driven: which prompt is made from which, and which tasks each is tried on.

gepa chooses; whoever is its `Player` plays attempts and asks the model that proposes. The same seed and the same
answers give the same course, so that a search which goes on replays what is stored and asks nothing twice.

gepa logs an exception and tries again, in places without an end. So whatever a player raises leaves it as a `Halt`,
which is no Exception. gepa is given no model and no directory: it sends nothing itself and writes no file.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from gepa.api import optimize
from gepa.core.adapter import EvaluationBatch, GEPAAdapter
from gepa.strategies.instruction_proposal import InstructionProposalSignature

COMPONENT = "system_prompt"
ROUNDS = 20
"""Of gepa for each proposal that may be made: one whose tasks were all solved proposes nothing."""


class BudgetEnd(Exception):
    """The budget is spent: the search is over, and keeps what it has."""


class Halt(BaseException):
    """Leaves gepa, which catches every Exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, as the search learns of it."""

    score: float | None
    shown: Mapping[str, str]
    """What the model that proposes is shown."""


class Player(Protocol):
    def play(self, text: str, tasks: Sequence[int]) -> list[Attempt]:
        """Attempt the tasks with this prompt; those that were attempted before are given again."""

    def write(self, parent: str, question: str) -> str | None:
        """Ask for a better prompt than `parent`; None for an answer that is of no use. Raises BudgetEnd."""


def drive(start: str, tasks: Sequence[int], player: Player, *, seed: int, first: int, proposals: int) -> None:
    """Search from this prompt until the player's budget is spent. Raises what the player raises."""
    try:
        optimize(
            {COMPONENT: start},
            list(tasks),
            adapter=_Adapter(player),
            reflection_minibatch_size=min(first, len(tasks)),
            stop_callbacks=lambda state: state.i >= ROUNDS * proposals,
            logger=_Silent(),
            seed=seed,
            track_best_outputs=False,
        )
    except Halt as halt:
        if not isinstance(halt.error, BudgetEnd):
            raise halt.error from None


def text_in(answer: str) -> str:
    """The prompt in a model's answer: between the first fence and the last, or the whole of it."""
    return InstructionProposalSignature.output_extractor(answer)["new_instruction"]


def mean_for_missing(scores: Sequence[float | None]) -> list[float]:
    """gepa knows no unscored attempt. One gets the mean of those beside it, so that sums compare what was scored."""
    known = [score for score in scores if score is not None]
    usual = sum(known) / len(known) if known else 0.0
    return [usual if score is None else score for score in scores]


@contextmanager
def _leaving() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise Halt(error) from error


class _Silent:
    def log(self, message: str) -> None: ...


class _Adapter(GEPAAdapter[int, Mapping[str, str], None]):
    """The player as gepa knows one."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.propose_new_texts = self._propose

    def evaluate(
        self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Mapping[str, str], None]:
        with _leaving():
            played = self._player.play(candidate[COMPONENT], batch)
            scores = mean_for_missing([each.score for each in played])
        return EvaluationBatch([None] * len(batch), scores, [each.shown for each in played])

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Mapping[str, str], None],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {name: list(eval_batch.trajectories or ()) for name in components_to_update}

    def _propose(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        with _leaving():
            question = InstructionProposalSignature.prompt_renderer(
                {
                    "current_instruction_doc": candidate[COMPONENT],
                    "dataset_with_feedback": reflective_dataset[COMPONENT],
                    "prompt_template": None,
                }
            )
            text = self._player.write(candidate[COMPONENT], str(question))
        return {} if text is None else {COMPONENT: text}
