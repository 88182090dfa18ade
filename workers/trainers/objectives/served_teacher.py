"""A teacher on the vLLM server, which tells how likely it finds each token that the policy wrote.

Its adapter is loaded there under a name of the run's own, so that nobody takes it away, and is taken back at the end. A
server tells log-probabilities of given tokens at temperature 1, and of these tokens alone: enough for the reverse KL of
what was sampled, and for no divergence over whole distributions.
"""

from collections.abc import Mapping
from statistics import fmean

import torch
from torch import Tensor

from workers.engines.openai_engine import Failed
from workers.trainers.attempts import remote_policy
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.weights import trained_policy


class ServedTeacher:
    def __init__(self, run: Run) -> None:
        """Raises TrainingError where the server is away or has another base, or where the teacher has other tokens."""
        taught = run.spec.teacher
        assert taught is not None
        assert taught.adapter is not None
        trained_policy.check_source(taught.adapter, "teacher.adapter", "adapter")
        trained_policy.check_tokens(run.spec, taught)
        self.run, self.base = run, taught.served_base
        self.server = remote_policy.server_of(run, self.base)
        self._prefix = f"teacher-{run.spec.digest[:8]}-"
        self.name = f"{self._prefix}a{remote_policy.attempt_of(run)}"
        self.room = remote_policy.meet(self.server, self.base, "learns from", self._prefix) - 1
        """Tokens that it reads at once: a server writes one behind them, whatever it is asked for."""
        self._probe: list[tuple[list[int], list[int]]] = []
        """The longest answer of the first step that has any, about which it is asked again at each one after."""
        self._then: list[float] = []
        """What it told of that answer first."""
        try:
            self.server.load(self.name, taught.adapter.path)
        except Failed as failure:
            raise remote_policy.lost(self.server, failure) from failure

    def check_room(self, prompts: Mapping[str, int]) -> None:
        """Raise TrainingError where it could not read an answer to one of these tasks, whose prompts have so many
        tokens."""
        task = max(prompts, key=prompts.__getitem__)
        whole = prompts[task] + self.run.spec.settings["max_completion_length"]
        if whole > self.room:
            raise TrainingError(
                "sampler",
                f"the teacher at {self.server.base_url} reads at most {self.room} tokens, and attempts at {task} may "
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
        try:
            told = self.server.score(self.name, [*answers, *self._probe])
        except Failed as failure:
            raise remote_policy.lost(self.server, failure) from failure
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
                "sampler",
                f"the teacher at {self.server.base_url} is not who it was: under {self.name} the tokens of an answer "
                f"are off by {apart:.3g} nats in the mean from what it told of them first, and "
                f"{remote_policy.HALF_NATS:g} is allowed. See that the server has {self.base} in the same precision, "
                "and that nobody else loads adapters there under that name, then resume from the last checkpoint",
            )

    def close(self) -> None:
        remote_policy.leave(self.run, self.server, self._prefix)
