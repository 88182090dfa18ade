"""A teacher that somebody else serves: its worker's broker asks it, since a trainer has neither key nor network.

Nobody here has its files, so that it has the policy's tokens is proved by what it answers: beside the log-probability
of a token its server gives the token's text. All special tokens and some hundreds of the vocabulary are compared before
anything is played, and every token of an attempt before it is learnt from.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from workers.judging import broker_line
from workers.judging.broker_line import Unanswered
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.run.run_spec import Teacher
from workers.trainers.weights import trained_policy

AT_ONCE = 16
"""Readings under way, of each process of the trainer."""
SPREAD, PART = 500, 250
"""Tokens of the vocabulary that are compared beside the special ones, and how many of them are asked about at once."""
PIECES = {"▁": " "}
"""Marks in a tokenizer's own pieces that some servers write out."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""In the text of a token that is a part of a character: servers differ in how they write those."""


class EndpointTeacher:
    kind: ClassVar[str] = "teacher"
    where: ClassVar[str] = "its endpoint"
    remedy: ClassVar[str] = "See that the endpoint serves the model that it served before"

    def __init__(self, run: Run, taught: Teacher) -> None:
        """Raises TrainingError where it cannot be asked, tells no probabilities, or has other tokens."""
        self.name, self._digest = taught.model, taught.hosted
        line = broker_line.line()
        if line is None:
            raise TrainingError(
                "teacher",
                f"the teacher {self.name} is asked by the run's worker, and this trainer was started without one",
            )
        self._line = line
        self._tokenizer = trained_policy.tokenizer_of(run.spec.base.path)
        self._texts: dict[int, frozenset[str]] = {}
        self.room: int | None = self._ask("room")
        """Tokens that it reads at once; None where its server does not say."""
        self._prove_tokens()

    def score(self, answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """The log-probability, in nats at temperature 1, of each token of an answer to a prompt. Raises
        TrainingError."""
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="endpoint-teacher")
        try:
            told = pool.map(lambda answer: self._read([*answer[0], *answer[1]]), answers)
            return [each[len(prompt) - 1 :] for each, (prompt, _) in zip(told, answers, strict=True)]
        finally:
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """There is nothing to give back."""

    def _prove_tokens(self) -> None:
        """Raise TrainingError unless its tokens are the policy's."""
        every = sorted(self._tokenizer.get_vocab().values())
        special = {*self._tokenizer.all_special_ids, *self._tokenizer.get_added_vocab().values()}
        probed = sorted(special.union(every[:: max(1, len(every) // SPREAD)]))
        size = min(PART, (self.room or PART) - 1)
        for start in range(0, len(probed), size):
            self._read([probed[0], *probed[start : start + size]])  # of the first token nothing is told

    def _read(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first. Raises TrainingError."""
        told = self._ask("read", tokens=list(tokens))
        for token, text in zip(tokens[1:], told["texts"], strict=True):
            if problem := self._other(token, text):
                raise TrainingError("teacher", f"the teacher {self.name} cannot teach this policy: {problem}")
        found: list[float] = told["logprobs"]
        return found

    def _other(self, token: int, text: str | None) -> str:
        """Why the teacher's token of this text is not the policy's; empty where it is."""
        if text is None:
            return (
                "its server tells no decoded_token beside a token's id, by which the two tokenizers are compared; vLLM "
                "does, unless it was started with --skip-tokenizer-init"
            )
        if token not in self._texts:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            plain = piece
            for mark, written in PIECES.items():
                plain = plain.replace(mark, written)
            self._texts[token] = frozenset((self._tokenizer.decode([token]), piece, plain))
        mine = self._texts[token]
        if text in mine or any(BROKEN in each for each in mine):
            return ""
        return (
            f"its token {token} is {text[:80]!r}, and the policy's is {self._tokenizer.decode([token])!r}; "
            "probabilities are compared token by token, so choose a teacher of the same model family"
        )

    def _ask(self, what: str, **about: Any) -> Any:
        try:
            return self._line.ask(what, teacher=self._digest, **about)
        except Unanswered as error:
            if self._line.lost:
                raise TrainingError("broker", self._line.lost) from error
            raise TrainingError(
                "teacher",
                f"the teacher {self.name} cannot be asked: {error}. Its endpoint must answer POST /completions with "
                "the prompt_logprobs of given tokens, as vLLM does. The last checkpoint is kept: see to the endpoint, "
                "then resume",
            ) from error
