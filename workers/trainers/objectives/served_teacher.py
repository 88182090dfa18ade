"""A teacher on a server, which tells how likely it finds each token that the policy wrote: on this installation's vLLM,
or hosted by somebody else.

A server tells log-probabilities of given tokens at temperature 1, and of these tokens alone: enough for the reverse KL
of what was sampled, and for no divergence over whole distributions.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from workers.engines.openai_engine import Failed
from workers.trainers.attempts import remote_policy
from workers.trainers.objectives.endpoint_teacher import EndpointTeacher
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.run.run_spec import Teacher
from workers.trainers.weights import trained_policy


class ServedTeacher:
    def __init__(self, run: Run) -> None:
        """Raises TrainingError where the server is away or has another base, or where the teacher has other tokens."""
        taught = run.spec.teacher
        assert taught is not None
        self._longest_answer: int = run.spec.settings["max_completion_length"]
        self._asked = EndpointTeacher(run, taught) if taught.hosted else VllmTeacher(run, taught)
        self.name, self.room = self._asked.name, self._asked.room
        self._probe: list[tuple[list[int], list[int]]] = []
        """The longest answer of the first step that has any, about which it is asked again at each one after."""
        self._then: list[float] = []
        """What it told of that answer first."""

    def check_room(self, prompts: Mapping[str, int]) -> None:
        """Raise TrainingError where it could not read an answer to one of these tasks, whose prompts have so many
        tokens."""
        task = max(prompts, key=prompts.__getitem__)
        whole = prompts[task] + self._longest_answer
        if self.room is not None and whole > self.room:
            raise TrainingError(
                self._asked.kind,
                f"the teacher at {self._asked.where} reads at most {self.room} tokens, and attempts at {task} may "
                f"have {whole}, of which its prompt has {prompts[task]}: start the server with --max-model-len "
                f"{whole + 1} or more, or launch another run with a smaller max_completion_length",
            )

    def log_probs(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities (B, T) of the completions' tokens, in nats; 0 where a completion has none. Raises
        TrainingError."""
        found = torch.zeros(batch["completion_ids"].shape, device=batch["completion_ids"].device)
        is_there = batch["completion_mask"].bool()
        answers = [
            (prompt[seen.bool()].tolist(), completion[wrote].tolist())
            for prompt, seen, completion, wrote in zip(
                batch["prompt_ids"], batch["prompt_mask"], batch["completion_ids"], is_there, strict=True
            )
        ]
        told = self._asked.score([*answers, *self._probe])
        if self._probe:
            self._prove(told.pop())
        elif any(told):  # answers that were cut off may all be masked
            longest = max(range(len(told)), key=lambda place: len(told[place]))
            self._probe, self._then = [answers[longest]], told[longest]
        for row, wrote, values in zip(found, is_there, told, strict=True):
            row[wrote] = torch.tensor(values, device=row.device)
        return found

    def _prove(self, now: list[float]) -> None:
        """Raise TrainingError unless it is who it was at the first step: a server that was replaced, or that mixes
        adapters up, answers in the right form."""
        apart = fmean(abs(one - other) for one, other in zip(now, self._then, strict=True))
        if not apart <= remote_policy.HALF_NATS:
            raise TrainingError(
                self._asked.kind,
                f"the teacher at {self._asked.where} is not who it was: under {self.name} the tokens of an answer "
                f"are off by {apart:.3g} nats in the mean from what it told of them first, and "
                f"{remote_policy.HALF_NATS:g} is allowed. {self._asked.remedy}, then resume from the last checkpoint",
            )

    def close(self) -> None:
        self._asked.close()


class VllmTeacher:
    """On the installation's server. Its adapter is loaded there under a name of the run's own, so that nobody takes it
    away, and is taken back at the end."""

    kind: ClassVar[str] = "sampler"

    def __init__(self, run: Run, taught: Teacher) -> None:
        """Raises TrainingError where the server is away or has another base, or where the teacher has other tokens."""
        assert taught.base is not None
        assert taught.adapter is not None
        trained_policy.check_source(taught.adapter, "teacher.adapter", "adapter")
        trained_policy.check_tokens(run.spec, taught.base)
        self._run = run
        self._server = remote_policy.server_of(run, taught.served_base)
        self.where = self._server.base_url
        self.remedy = (
            f"See that the server has {taught.served_base} in the same precision, and that nobody else loads adapters "
            "there under that name"
        )
        self._prefix = f"teacher-{run.spec.digest[:8]}-"
        self.name = f"{self._prefix}a{remote_policy.attempt_of(run)}"
        most = remote_policy.meet(self._server, taught.served_base, "learns from", self._prefix)
        self.room: int | None = most - 1
        """Tokens that it reads at once: a server writes one behind them, whatever it is asked for."""
        try:
            self._server.load(self.name, taught.adapter.path)
        except Failed as failure:
            raise remote_policy.lost(self._server, failure) from failure

    def score(self, answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """The log-probability, in nats at temperature 1, of each token of an answer to a prompt. Raises
        TrainingError."""
        try:
            return self._server.score(self.name, answers)
        except Failed as failure:
            raise remote_policy.lost(self._server, failure) from failure

    def close(self) -> None:
        remote_policy.leave(self._run, self._server, self._prefix)
