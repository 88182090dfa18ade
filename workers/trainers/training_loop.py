"""The common part of all trainers around TRL's loop: its arguments, its metrics in our names, checkpoints, the end."""

import dataclasses
import importlib.metadata
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from flywheel.core.envs import Environment
from workers.trainers.attempts import trl_seams
from workers.trainers.attempts.live_engine import LiveEngine
from workers.trainers.attempts.rewards import HeldOut, ProgressEval, Rewards
from workers.trainers.run import checkpoints, memory_use, ranks
from workers.trainers.run.checkpoints import Checkpoint
from workers.trainers.run.run_directory import FINAL, Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.run.run_spec import Data, Spec
from workers.trainers.weights import sharded_weights
from workers.trainers.weights.best_weights import BestWeights
from workers.trainers.weights.trained_policy import Policy, save_kept

METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "reward": "reward_mean",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_variance_groups",
    "unscored": "unscored",
    "resampled": "resampled_groups",
    "resting": "resting_tasks",
    "turns": "turns_mean",
    "broken_off": "broken_off_fraction",
    "out_of_turns": "out_of_turns_fraction",
    "repetition": "repetition",
    "invalid": "invalid_fraction",
    "completions/mean_length": "completion_length_mean",
    "completions/max_length": "completion_length_max",
    "completions/clipped_ratio": "truncated_fraction",
    "clip_ratio/low_mean": "clip_low",
    "clip_ratio/high_mean": "clip_high",
    "clip_ratio/region_mean": "clip_region",
    "cispo_clip_ratio": "clip_high",
    "recorded": "recorded_fraction",
    "kl": "kl",
    "num_tokens": "tokens",
    "mean_token_accuracy": "accuracy",
    "rewards/margins": "margin",
    "rewards/accuracies": "pair_accuracy",
    "margin": "margin",
    "accuracy": "pair_accuracy",
    "mean_reward": "raw_mean",
    "min_reward": "raw_min",
    "max_reward": "raw_max",
    "logps/chosen": "chosen_logp",
    "logps/rejected": "rejected_logp",
    "value_loss": "value_loss",
    "explained_variance": "explained_variance",
    "teacher_kl": "teacher_kl",
    "replay_loss": "replay_loss",
    "staleness": "staleness_mean",
    "staleness_max": "staleness_max",
    "learner_idle": "learner_idle",
    "sampler_idle": "sampler_idle",
    "sync_proof": "sync_proof",
    "sync_limit": "sync_limit",
    "sampling/sampling_logp_difference/mean": "sampler_mismatch",
    "sampling/sampling_logp_difference/max": "sampler_mismatch_max",
    "sampling/importance_sampling_ratio/min": "sampler_weight_min",
}
"""TRL's name of a metric to ours. `rewards/<part>/mean` and `/std` become `reward/<part>` and `reward_std/<part>`;
`staleness/<age>` stays."""

Measure = Callable[[int], float | None]
"""Measures what is trained at a step and records the event; the score by which it is compared, or None."""

Save = Callable[[Path], dict[str, dict[str, Any]]]
"""Publishes weights that are kept in a directory as `final/`, and returns its files."""

VERSIONS = ("torch", "transformers", "trl", "peft")


def canonical(logs: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Return TRL's metrics under our names, and the names of those that were not numbers."""
    metrics: dict[str, float] = {}
    bad = []
    for name, value in logs.items():
        ours = METRICS.get(name)
        parts = name.split("/")
        if len(parts) == 3 and parts[0] == "rewards" and parts[2] in ("mean", "std"):
            ours = f"reward/{parts[1]}" if parts[2] == "mean" else f"reward_std/{parts[1]}"
        if parts[0] == "staleness" and len(parts) == 2:
            ours = name
        is_part = ours is not None and ours.startswith(("reward/", "reward_std/"))
        if ours is None or (is_part and (value is None or math.isnan(value))):
            continue  # a part need not judge any attempt of a step: a watched one judges a sample
        if value is None or not math.isfinite(value):
            bad.append(ours)
        else:
            metrics[ours] = value
    return metrics, bad


def config(kind: type[Any], spec: Spec, **fields: Any) -> Any:
    """A TRL config of a kind: what all trainers share, what this one sets, and what the settings pass on."""
    settings = spec.settings
    cuda = torch.cuda.is_available()
    share = settings["batch_size"] // _processes(settings)
    micro = settings["micro_batch_size"] or share
    shared = {
        "max_steps": settings["steps"],
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": share // micro,
        "learning_rate": settings["learning_rate"],
        "lr_scheduler_type": settings["lr_schedule"],
        "warmup_steps": settings["warmup_steps"],
        "weight_decay": settings["weight_decay"],
        "max_grad_norm": settings["max_grad_norm"],
        "gradient_checkpointing": settings["gradient_checkpointing"],
        "seed": spec.seed,
        "data_seed": spec.seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not cuda,
        "bf16": cuda and torch.cuda.is_bf16_supported(),
        "dataloader_pin_memory": cuda,
    }
    if ranks.world() > 1:
        shared["ddp_backend"] = "nccl" if cuda else "gloo"
        shared |= {"ddp_timeout": ranks.WAIT_S, "ddp_find_unused_parameters": False}
        shared |= sharded_weights.fields(settings)
    passed = {key.removeprefix("trl."): value for key, value in settings.items() if key.startswith("trl.")}
    known = {field.name for field in dataclasses.fields(kind)}
    for name in passed:
        if name not in known:
            raise TrainingError("bad_spec", f"settings.trl.{name}: {kind.__name__} has no such field")
    try:
        made = kind(**{**shared, **fields, **spec.recipe.fixed, **passed})
    except (ValueError, TypeError, NotImplementedError) as error:
        raise TrainingError("bad_spec", f"settings: {kind.__name__} refuses them: {error}") from error
    sharded_weights.begin(made)
    return made


def _processes(settings: Mapping[str, Any]) -> int:
    """The number of processes that share the run. Raises TrainingError where they are not what the settings say."""
    wanted, gpus = settings.get("processes", 1), torch.cuda.device_count()
    if wanted != ranks.world():
        how = f"start it with torchrun --nproc-per-node {wanted}" if wanted > 1 else "start it without torchrun"
        raise TrainingError("bad_spec", f"settings.processes: {wanted}, and these are {ranks.world()}; {how}")
    if 0 < gpus < wanted:
        raise TrainingError("bad_spec", f"settings.processes: {wanted} want a GPU each; this machine has {gpus}")
    return ranks.world()


def drive(
    run: Run,
    trainer: Any,
    policy: Policy,
    env: Environment,
    data: Data,
    turn: AbstractContextManager[Any] | None = None,
    rewards: Rewards | None = None,
) -> None:
    """Train a policy as `carry_out` does, asked held-out and validation tasks on the way. `turn` is taken to ask it,
    where others play in the same environment. `rewards`: those that it learns from, which validation tells too."""
    spec = run.spec
    trl_seams.learn_in_32_bits(trainer)
    engine = LiveEngine(trainer.model, policy.tokenizer, spec.settings["eval_batch_size"])
    held_out = HeldOut(run, env, data.held_out, engine)
    limit = spec.validation_limit
    validation = ProgressEval(run, env, data.validation, engine, event="validation", limit=limit, rewards=rewards)
    if spec.validation is not None and not data.validation:
        run.warn(
            "no validation: other rows give away every task that was kept for it; the last step's weights become the "
            "version"
        )
    carry_out(run, trainer, data, held_out, validation, lambda kept: save_kept(run, kept), turn)


def carry_out(
    run: Run,
    trainer: Any,
    data: Data,
    held_out: Measure,
    validation: Measure,
    save: Save,
    turn: AbstractContextManager[Any] | None = None,
) -> None:
    """Train from the newest verified checkpoint, or from the start, to the end or until somebody asks to stop."""
    spec = run.spec
    resumed = _resume_from(run)
    best = BestWeights(run, trainer.save_model, until=resumed.step if resumed else 0)
    run.event(
        "training_start",
        total_steps=spec.settings["steps"],
        resumed_from=resumed.step if resumed else None,
        train_rows=len(data.train),
        held_out_rows=len(data.held_out),
        validation_rows=len(data.validation),
        set_aside_rows=data.set_aside,
        parameters=trainer.model.num_parameters(),
        trainable_parameters=sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad),
        versions={name: importlib.metadata.version(name) for name in VERSIONS},
        machine=memory_use.machine(),
        seed=spec.seed,
    )
    trainer.create_model_card = lambda *_, **__: None
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    recorder = Recorder(run, trainer, held_out, validation, best, turn or nullcontext())
    trainer.add_callback(recorder)
    if resumed is not None:
        run.step = resumed.step
        recorder.saved = resumed
        if not run.has_told("checkpoint", resumed.step):  # killed between the two
            recorder.tell(resumed)
        trl_seams.continue_counters(trainer, resumed.path, resumed.step)
    is_over = resumed is not None and recorder.is_over(resumed.step)  # killed between the last step and the end
    if not is_over and not ranks.agreed(run.cancelled):
        trainer.train(resume_from_checkpoint=str(resumed.path) if resumed else None)
    _end(run, save, recorder)
    if run.is_first:
        shutil.rmtree(run.work, ignore_errors=True)


def _resume_from(run: Run) -> Checkpoint | None:
    found, rejected = checkpoints.newest(run.path, run.spec.digest)
    for path, reason in rejected:
        run.warn(f"{path.name} is not used: {reason}")
    return found


def _end(run: Run, save: Save, recorder: "Recorder") -> None:
    saved, best = recorder.saved, recorder.best
    if not run.is_first:
        return
    path = f"{checkpoints.PLACE}/step-{saved.step}" if saved else None
    if saved is None or not recorder.is_over(run.step):
        run.event("training_end", status="cancelled", step=run.step, seconds=run.seconds)
        run.write_result(status="cancelled", step=run.step, checkpoint=path, seconds=run.seconds)
        return
    checkpoints.prune(run.path, run.spec.settings["keep_checkpoints"])  # killed after the last one, there is one more
    chosen = best.kept()
    files = save(saved.path if chosen is None else best.path_of(chosen))
    ended = {"early": run.step < run.spec.settings["steps"]} | ({"chosen": chosen} if chosen is not None else {})
    run.event("training_end", status="completed", step=run.step, seconds=run.seconds, **ended)
    run.write_result(
        status="completed",
        step=run.step,
        checkpoint=path,
        final=FINAL,
        files=files,
        digest=checkpoints.digest_of(files),
        seconds=run.seconds,
        **ended,
    )
    best.drop()


class Recorder(TrainerCallback):
    """Turns what TRL's loop does into events, evaluations and checkpoints."""

    def __init__(
        self,
        run: Run,
        trainer: Any,
        held_out: Measure,
        validation: Measure,
        best: BestWeights,
        turn: AbstractContextManager[Any],
    ) -> None:
        self.run, self.trainer, self.turn = run, trainer, turn
        self.held_out, self.validation, self.best = held_out, validation, best
        self.saved: Checkpoint | None = None
        self.watch = Watch(run)
        self._began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not earlier: by now the weights are where they learn.
        if self.saved is None:
            self._measured(self.held_out, 0)
            self.best(0, self._measured(self.validation, 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        stop = state.global_step >= state.max_steps or ranks.agreed(self.run.cancelled)
        control.should_log = True
        control.should_save = stop or state.global_step % self.run.spec.checkpoint_every == 0
        control.should_training_stop = stop
        return control

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs: dict[str, Any] = kwargs["logs"]
        if "loss" not in logs:  # TRL's closing summary
            return
        step = state.global_step
        metrics, bad = canonical(logs)
        metrics["step_time_s"] = round(time.perf_counter() - self._began, 4)
        if (peak := memory_use.peak()) is not None:
            metrics["peak_memory"] = peak
        self.run.event("step", step=step, metrics=metrics)
        # Before evaluation and checkpoint: weights that are no numbers must not become either.
        self.watch(step, bad)
        self.run.step = step
        if step % self.run.spec.validation_every == 0 or step >= state.max_steps:
            self.best(step, self._measured(self.validation, step))
        if self.is_over(step):
            control.should_save = control.should_training_stop = True
        if step % self.run.spec.eval_every == 0 or self.is_over(step):
            self._measured(self.held_out, step)

    def _measured(self, measure: Measure, step: int) -> float | None:
        """Measure in the first process, while the others wait, and return in all what it found."""
        with self.turn, sharded_weights.whole(self.trainer.model):
            return ranks.agreed(measure(step) if self.run.is_first else None)

    def is_over(self, step: int) -> bool:
        """Whether nothing is to come after this step."""
        return bool(step >= self.run.spec.settings["steps"]) or self.best.is_over

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        aside = self.run.work / f"checkpoint-{step}"
        ranks.wait()  # each process has its random state in there
        if not self.run.is_first:
            return
        self.saved = checkpoints.publish(aside, self.run.path, step, self.run.spec.digest)
        self.tell(self.saved)
        checkpoints.prune(self.run.path, self.run.spec.settings["keep_checkpoints"])

    def tell(self, saved: Checkpoint) -> None:
        self.run.event("checkpoint", step=saved.step, path=f"checkpoints/step-{saved.step}", digest=saved.digest)


class Watch:
    """Ends a run whose weights are no numbers any more, and warns once of a metric that is none. What metrics mean is
    told by whoever reads them (`core.evidence.run_alerts`)."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.missing: set[str] = set()

    def __call__(self, step: int, bad: list[str]) -> None:
        for name in ("loss", "grad_norm"):
            if name in bad:
                why = f"{name} is not a number at step {step}; the last checkpoint is from before it: "
                raise TrainingError("nan", why + "lower the learning rate, or look at the rows of that step")
        if new := set(bad) - self.missing:
            self.missing |= new
            self.run.warn(f"step {step}: no number for {', '.join(sorted(new))}, left out")
