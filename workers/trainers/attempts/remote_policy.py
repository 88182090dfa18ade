"""The policy on a vLLM server, which samples the attempts to learn from, and the proof that both are one.

After each update the adapter is written aside, read back, and loaded there under a name that was never used before;
then a few answers are sampled, and the log-probability that the server gives each token is compared with the trainer's
own. Where they are apart the server samples somebody else's answers: nothing more is sampled, and the run fails. What
noise is left is weighed away token by token (truncated importance sampling, in TRL). Why: docs/design/rollouts.md.
"""

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoConfig, TrainerCallback

from flywheel.core import recipes
from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.network.key_hosts import VLLM_KEY
from flywheel.system import env
from workers.engines.openai_engine import Failed
from workers.engines.vllm_sampler import Question, Sampled, VllmSampler
from workers.trainers.attempts import trl_seams
from workers.trainers.attempts.live_engine import TURN_BITS, Asked, Episode, EpisodeEngine, folded, undisturbed
from workers.trainers.attempts.own_server import LOG, OwnServer
from workers.trainers.run import checkpoints
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError

EXACT_NATS, HALF_NATS = 1e-3, 0.05
"""How far the mean log-probability of a token may be off: where both compute in 32 bits, and where one of them does in
16. Measured: docs/design/rollouts.md."""
PROBES, PROBE_TOKENS = 4, 32
PATIENCE_S = 300.0
"""How long the server may be away, or full, before the run fails; it resumes from its last checkpoint."""
TIMEOUT_S = 600.0
"""The longest that one answer may take."""
AT_ONCE = 128
WEIGHTS = "adapter_model.safetensors"
FIELDS = {
    # No token weighs more than twice what it would, whatever noise says of a rare one.
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 2.0,
    "disable_dropout": True,  # the server has none
}
"""Of TRL's config, where the server samples."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Log-probabilities of the tokens of a few answers, as the server gave them and as the trainer has them."""

    tokens: int
    mean: float
    """Of the differences, in nats a token."""
    worst: float


class RemotePolicy(TrainerCallback):
    """Publishes the policy on the server when TRL asks for weights to be synchronised, and proves that it is it."""

    def __init__(self, run: Run, ends: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """`ends`: tokens that end an answer; `prompts`: tokens of the first tasks' openings. Raises TrainingError."""
        self.run = run
        self.trainer: Any = None
        self.name = ""
        """Of what was published and proved last."""
        self.version = 0
        self.is_off = False
        """Whether something else than this policy was sampled, so that nothing of it is to be learnt from."""
        self._asking: dict[str, int] = {}
        """Questions under way, by the name of each version that the server has."""
        self._lock = threading.Lock()
        self.limit = HALF_NATS
        settings = run.spec.settings
        self.bound = recipes.staleness_bound(settings)
        tokens = min(PROBE_TOKENS, settings["max_completion_length"])
        self._probe = Sampling(settings["temperature"], 1.0, tokens)
        self._prompts = list(prompts)[:PROBES]
        self._before: tuple[list[Sampled], list[list[float]]] = [], []
        self.own = OwnServer(run) if settings["rollouts"] == recipes.COLOCATE else None
        """The run's own server, where it is not the installation's that samples."""
        self.server = own_sampler(run, self.own, ends) if self.own else server_of(run, run.spec.served_base, ends)
        self._prefix = f"rollouts-{run.spec.digest[:8]}-"
        self._attempt = attempt_of(run)
        self.room = meet(self.server, run.spec.served_base, "trains", self._prefix)
        self.rest()

    def join(self, trainer: Any) -> None:
        """Be what TRL synchronises, and have it weigh its loss by what the server sampled."""
        self.trainer = trainer
        declared = AutoConfig.from_pretrained(self.run.spec.base.path, local_files_only=True, trust_remote_code=False)
        self.limit = EXACT_NATS if declared.dtype == torch.float32 and not trainer.args.bf16 else HALF_NATS
        trl_seams.sample_elsewhere(trainer, self)
        trainer.add_callback(self)

    def sync_weights(self) -> None:
        """Publish the weights of the step that was finished last, and prove them. Raises TrainingError."""
        began, step = time.monotonic(), int(self.trainer.state.global_step)
        if self.own:
            self.own.wake()
        name = f"{self._prefix}a{self._attempt}-s{step}"
        try:
            place = self._write(name)
            self.server.load(name, place)
            proof, moved = self._prove(name)
            told = {
                "tokens": proof.tokens,
                "mean": proof.mean,
                "worst": proof.worst,
                "limit": self.limit,
                "moved": moved,
            }
            self.run.event("proof", step=step, name=name, **told, seconds=round(time.monotonic() - began, 3))
            if not proof.mean <= self.limit:
                raise self._off(name, "of its probes", proof)
            with self._lock:
                self.name, self.version = name, step
                self._asking[name] = 0
            self._drop_unasked()
        except Failed as failure:
            raise self._lost(failure) from failure
        trl_seams.measured(self.trainer, "sync_proof", proof.mean)
        trl_seams.measured(self.trainer, "sync_limit", self.limit)

    def sample(self, questions: Sequence[Question]) -> tuple[int, list[Sampled]]:
        """Answers of the version that was published last, and which it is. Raises TrainingError."""
        with self._lock:
            name, version = self.name, self.version
            self._asking[name] += 1
        try:
            return version, self.server.sample(name, questions)
        except Failed as failure:
            raise self._lost(failure) from failure
        finally:
            with self._lock:
                self._asking[name] -= 1
            self._drop_unasked()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hold all that was sampled to the limit of the probes, where it was sampled from this very version: in full
        batches a server may mix up what it keeps apart in small ones. Raises TrainingError."""
        logs = kwargs["logs"]
        mean = logs.get("sampling/sampling_logp_difference/mean")
        if mean is not None and not self.bound and not mean <= self.limit:
            worst = logs["sampling/sampling_logp_difference/max"]
            raise self._off(self.name, f"of step {state.global_step}", Proof(0, mean, worst))

    def rest(self) -> None:
        """Ask nothing more before the next weights: a server of our own gives its memory to the trainer. Raises
        TrainingError."""
        if self.own:
            self.own.sleep()

    def close(self) -> None:
        if self.own:
            self.own.close()
        else:
            leave(self.run, self.server, self._prefix)

    def _lost(self, failure: Failed) -> TrainingError:
        """Raises TrainingError itself where a server of our own has ended."""
        if self.own:
            self.own.check()
        return lost(self.server, failure)

    def _drop_unasked(self) -> None:
        """Take from the server the versions before the last that nothing is asked of any more."""
        with self._lock:
            over = [name for name, asking in self._asking.items() if name != self.name and not asking]
            for name in over:
                del self._asking[name]
        for name in over:
            with contextlib.suppress(Failed):  # what it keeps is taken from it at the end
                self.server.unload(name)
            shutil.rmtree(self._place(name), ignore_errors=True)

    def _place(self, name: str) -> Path:
        return self.run.work.resolve() / "published" / name

    def _write(self, name: str) -> Path:
        """Put the adapter in place by one rename, and see that what is there is what the trainer has."""
        aside, place = self.run.work / f"{name}.aside", self._place(name)
        shutil.rmtree(aside, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.trainer.model.save_pretrained(str(aside), selected_adapters=["default"], safe_serialization=True)
        checkpoints.move(aside, place)
        ours, theirs = get_peft_model_state_dict(self.trainer.model), load_file(place / WEIGHTS)
        if ours.keys() != theirs.keys() or not all(
            torch.equal(weight.detach().cpu(), theirs[key]) for key, weight in ours.items()
        ):
            raise TrainingError("sampler", f"the adapter was written to {place} and is another when it is read back")
        return place

    def _prove(self, name: str) -> tuple[Proof, float | None]:
        """The proof of what is loaded under a name, and by how much the update before has moved the same tokens: what
        the server would be off by, had it not come through; None before the first."""
        questions = [Question(prompt, self._probe, seed) for seed, prompt in enumerate(self._prompts)]
        said = self.server.sample(name, questions)
        ours = [self._ours(prompt, each.tokens) for prompt, each in zip(self._prompts, said, strict=True)]
        answers, then = self._before
        now = [self._ours(prompt, each.tokens) for prompt, each in zip(self._prompts, answers, strict=False)]
        self._before = said, ours
        apart = _differences([each.logprobs for each in said], ours)
        return Proof(len(apart), fmean(apart), max(apart)), fmean(_differences(then, now)) if then else None

    def _ours(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """The trainer's log-probability of each token of an answer, at the run's temperature."""
        model = self.trainer.model
        ids = torch.tensor([[*prompt, *tokens]], device=model.device)
        with undisturbed(model), torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        found = torch.log_softmax(logits / self._probe.temperature, -1)
        chosen: list[float] = found.gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist()
        return chosen

    def _off(self, name: str, what: str, proof: Proof) -> TrainingError:
        self.is_off = True
        was_started = f"what {LOG} says" if self.own else "that the server was started by make serve"
        return TrainingError(
            "sampler",
            f"the policy that is sampled is not the policy that is trained: at {self.server.base_url} the tokens "
            f"{what} under {name} are off by {proof.mean:.3g} nats in the mean and {proof.worst:.3g} at worst, and a "
            f"mean of {self.limit:g} is allowed. See {was_started}, with this base in the same precision, then resume "
            "from the last checkpoint",
        )


def server_of(run: Run, base: str, ends: Sequence[int] = ()) -> VllmSampler:
    """The vLLM server that has this base, of those that the environment names; the first where none has it, which
    `meet` tells. Raises TrainingError where it names none."""
    urls = env.vllm_urls()
    if not urls:
        raise TrainingError(
            "sampler", "no vLLM server is set: start one with make serve, set FLYWHEEL_VLLM_URL and resume"
        )
    url = urls[0] if len(urls) == 1 else _having(base, urls, Waiting(run))
    return _sampler(run, url, os.environ.get(VLLM_KEY, ""), ends, Waiting(run))


def own_sampler(run: Run, own: OwnServer, ends: Sequence[int]) -> VllmSampler:
    """The run's own server, which is not waited for once it has ended."""
    told = Waiting(run)

    def waiting(failure: Failed) -> None:
        own.check()
        told(failure)

    return _sampler(run, own.url, own.key, ends, waiting)


def _sampler(run: Run, url: str, key: str, ends: Sequence[int], on_wait: Callable[[Failed], object]) -> VllmSampler:
    return VllmSampler(
        url,
        key,
        ends=ends,
        concurrency=min(AT_ONCE, run.spec.settings["batch_size"]),
        timeout_s=TIMEOUT_S,
        patience_s=PATIENCE_S,
        on_wait=on_wait,
    )


def meet(server: VllmSampler, wanted: str, does: str, prefix: str) -> int:
    """See that the server has this base, and take from it what an earlier start left under names that begin so. The
    tokens that it takes. Raises TrainingError."""
    try:
        rows = server.models()
        _forget(server, rows, prefix)
    except Failed as failure:
        raise lost(server, failure) from failure
    bases = {row["id"]: row["max_model_len"] for row in rows if not row["parent"]}
    if wanted not in bases:
        raise TrainingError(
            "sampler",
            f"the vLLM server at {server.base_url} serves {', '.join(bases) or 'nothing'}, and this run "
            f"{does} {wanted}: start it with make serve and a version of that base, then resume",
        )
    return int(bases[wanted])


def _having(base: str, urls: Sequence[str], on_wait: "Waiting") -> str:
    """Which server has the base; the first where none has it. One that is away is waited for."""
    until = time.monotonic() + PATIENCE_S
    while True:
        away: Failed | None = None
        for url in urls:
            with closing(VllmSampler(url, os.environ.get(VLLM_KEY, ""), patience_s=0)) as server:
                try:
                    if any(row["id"] == base for row in server.models()):
                        return url
                except Failed as failure:
                    away = failure
        if away is None or time.monotonic() > until:
            return urls[0]
        on_wait(away)
        time.sleep(1)


def leave(run: Run, server: VllmSampler, prefix: str) -> None:
    """Take from the server what this run had it load under names that begin so, if it can be reached."""
    server.retries = 0
    try:
        _forget(server, server.models(), prefix)
    except Failed as failure:
        run.warn(f"the server keeps the adapters of this run: {failure}")


def _forget(server: VllmSampler, rows: Sequence[Mapping[str, Any]], prefix: str) -> None:
    for row in rows:
        if row["id"].startswith(prefix):
            server.unload(row["id"])


def lost(server: VllmSampler, failure: Failed) -> TrainingError:
    return TrainingError(
        "sampler",
        f"the vLLM server at {server.base_url} cannot be used: {failure}. The last checkpoint is kept: see to "
        "the server, then resume",
    )


class Waiting:
    """Tells of each spell in which the server is waited for, once."""

    def __init__(self, run: Run) -> None:
        self._run, self._lock, self._until = run, threading.Lock(), 0.0

    def __call__(self, failure: Failed) -> None:
        with self._lock:
            now = time.monotonic()
            if now >= self._until:
                self._run.warn(f"waiting for the vLLM server, at most {PATIENCE_S:.0f} s: {failure}")
            self._until = now + 30.0  # pauses are shorter, so a later one is another spell


class RemoteEngine(EpisodeEngine):
    """Episodes whose answers are sampled on the server."""

    tells_logprobs: ClassVar[bool] = True

    def __init__(self, policy: RemotePolicy, model: Any, tokenizer: Any, batch_size: int) -> None:
        super().__init__(model, tokenizer, batch_size, room=policy.room)
        self._policy = policy
        self.aside: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Around waiting for the server: whatever is held for the time of playing is let go."""

    def take(self, seed: int) -> Episode:
        """Return the episode of this seed, and forget it."""
        found = self.episode(seed)
        self._episodes.pop(seed >> TURN_BITS, None)
        return found

    @property
    def is_off(self) -> bool:
        """Whether something else than the policy was sampled."""
        return self._policy.is_off

    def rest(self) -> None:
        """Ask nothing more before the next weights. Raises TrainingError."""
        self._policy.rest()

    def close(self) -> None:
        self._policy.close()

    def _batch(self, prompts: Sequence[list[int]], requests: Sequence[ChatRequest]) -> list[Asked]:
        began = time.perf_counter()
        questions = [
            Question(prompt, request.sampling, folded(request.seed))
            for prompt, request in zip(prompts, requests, strict=True)
        ]
        with self.aside():
            version, said = self._policy.sample(questions)
        elapsed_ms = (time.perf_counter() - began) * 1000
        return [
            replace(self._answered(question.prompt, each.tokens, each.logprobs, request, elapsed_ms), version=version)
            for question, each, request in zip(questions, said, requests, strict=True)
        ]


def _differences(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> list[float]:
    return [abs(a - b) for row, beside in zip(one, other, strict=True) for a, b in zip(row, beside, strict=True)]


def attempt_of(run: Run) -> int:
    """Count the starts of this run, with this one."""
    events = (run.path / "events.jsonl").read_bytes()
    return 1 + len(re.findall(rb'"event": "training_start"', events))
