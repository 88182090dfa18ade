"""Settings of a training run, each with its type, bounds, default and the reason for it."""

import math
from dataclasses import dataclass
from typing import Any

from flywheel.core.errors import FieldError
from flywheel.core.recipes.training_algorithms import ALGORITHMS, Algorithm

_EVERY = tuple(ALGORITHMS)
_PRACTISED = tuple(row.name for row in ALGORITHMS.values() if row.practises)
_REINFORCED = tuple(row.name for row in ALGORITHMS.values() if row.is_reinforced)
_GROUPED = tuple(row.name for row in ALGORITHMS.values() if row.is_grouped)
_DISTILLED = tuple(row.name for row in ALGORITHMS.values() if row.has_teacher)
_SCALED = tuple(row.name for row in ALGORITHMS.values() if row.is_grouped and "scale_rewards" not in row.fixed)
_STEPPED = tuple(row.name for row in ALGORITHMS.values() if row.is_grouped and row.name != "rloo")
"""Those whose advantages may be by turn: their baseline is the whole group."""
_SHARED = ("sft", "dpo", *_GROUPED)
"""Those whose whole model is TRL's to share among processes, and whose batches may be divided."""
_POLICIES = tuple(row.name for row in ALGORITHMS.values() if row.makes_policy)
_TAUGHT = tuple(row.name for row in ALGORITHMS.values() if not row.practises)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    type: type[int] | type[float] | type[bool] | type[str]
    default: Any
    why: str
    algorithms: tuple[str, ...] = _EVERY
    reinforced: Any = None
    """The default of algorithms that learn from attempts of their own, where they want another."""
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    shown: bool | tuple[str, ...] = False
    """Whether a form puts it forward, or for which algorithms; the others are folded away by their group."""

    @property
    def group(self) -> str:
        """The heading that it is under, one of `GROUPS` or `OWN`."""
        return next((group for group, names in GROUPS.items() if self.name in names), OWN)

    def is_shown(self, algorithm: Algorithm) -> bool:
        return self.shown is True or (self.shown is not False and algorithm.name in self.shown)

    def default_for(self, algorithm: Algorithm) -> Any:
        usual = self.reinforced if algorithm.practises and self.reinforced is not None else self.default
        return algorithm.own.get(self.name, usual)

    def check(self, value: Any) -> Any:
        """The value in this setting's type. Raises FieldError."""
        if self.type is bool or self.type is str:
            if not isinstance(value, self.type) or (self.choices and value not in self.choices):
                wanted = f"one of {', '.join(self.choices)}" if self.choices else "true or false"
                raise FieldError(f"{value!r} is not right; expected {wanted}", field=self.name)
            return value
        kind = "a whole number" if self.type is int else "a number"
        is_number = not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < math.inf
        if not is_number or (self.type is int and value != int(value)):
            raise FieldError(f"{value!r} is not {kind}; expected {self._range()}", field=self.name)
        if (self.min is not None and value < self.min) or (self.max is not None and value > self.max):
            raise FieldError(f"{value!r} is out of range; expected {self._range()}", field=self.name)
        return self.type(value)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what `check` takes."""
        names = {int: "integer", float: "number", bool: "boolean", str: "string"}
        bounds = {"minimum": self.min, "maximum": self.max, "enum": list(self.choices) or None}
        known = {name: value for name, value in bounds.items() if value is not None}
        return {"type": names[self.type], **known, "description": self.why}

    def _range(self) -> str:
        kind = "a whole number" if self.type is int else "a number"
        if self.min is not None and self.max is not None:
            return f"{kind} from {self.min:g} to {self.max:g}"
        return kind if self.min is None else f"{kind} of at least {self.min:g}"


_ROWS = [
    Setting(
        "steps", int, 100, "Optimiser steps in all.", reinforced=200, min=1, max=1_000_000, shown=True,
    ),
    Setting(
        "batch_size", int, 32,
        "What one step learns from: rows (SFT, AWR, KTO), pairs (DPO, reward model) or completions (the others: tasks "
        "× num_generations).",
        reinforced=128, min=1, max=65_536,
    ),
    Setting(
        "micro_batch_size", int, 0,
        "How much of the batch is on the device at once; 0 is all of it. Lower it when memory runs out, or where "
        "attempts differ much in length: those of like length are learnt from together.",
        min=0, max=65_536,
    ),
    Setting(
        "processes", int, 1,
        "Processes on the worker's machine that share each step, a GPU for each where there are GPUs. batch_size is "
        "divided among them.",
        algorithms=_SHARED, min=1, max=64,
    ),
    Setting(
        "sharding", str, "none",
        "What the processes divide among themselves, for a model that is too large for one GPU: none is nothing, fsdp2 "
        "its weights, gradients and optimizer, deepspeed its gradients and optimizer (ZeRO-2; on GPUs only).",
        algorithms=_SHARED, choices=("none", "fsdp2", "deepspeed"),
    ),
    Setting(
        "device", str, "auto",
        "What it trains on: a worker's CPU, its GPUs (cuda), one for each process, or the operator's Ray cluster. auto "
        "takes GPUs where a worker offers them.",
        choices=("auto", "cpu", "cuda", "ray"),
    ),
    Setting(
        "learning_rate", float, 1e-3,
        "Right for the reference policy of under a million parameters. Billions want 1e-5 (SFT) or 1e-6 (the "
        "others), ten times that with LoRA.",
        reinforced=3e-4, min=1e-9, max=1.0, shown=True,
    ),
    Setting(
        "lr_schedule", str, "linear", "How the learning rate moves after the warm-up.",
        choices=("linear", "cosine", "constant", "constant_with_warmup"),
    ),
    Setting("warmup_steps", int, 0, "Steps in which the learning rate rises from 0.", min=0, max=1_000_000),
    Setting("weight_decay", float, 0.0, "Pull of the weights towards 0.", min=0.0, max=1.0),
    Setting("max_grad_norm", float, 1.0, "Longer gradients are shortened to this.", min=1e-6, max=1000.0),
    Setting(
        "gradient_checkpointing", bool, False, "Trades time for memory: activations are computed again going back.",
    ),
    Setting(
        "max_length", int, 1024,
        "Tokens of prompt and answer together, never more than the model takes; a longer row is cut at its end.",
        algorithms=_TAUGHT, min=8, max=1_048_576,
    ),
    Setting(
        "max_completion_length", int, 96,
        "Tokens that the policy may answer, in its attempts and in every held-out evaluation.",
        algorithms=_POLICIES, min=1, max=131_072, shown=_PRACTISED,
    ),
    Setting("eval_batch_size", int, 128, "Held-out tasks answered, or texts scored, at once.", min=1, max=4096),
    Setting(
        "validation_share", float, 0.0,
        "Share of the training sources that is kept out of training and evaluated during it. By it the best weights "
        "and an early end are chosen, so that held-out tasks only measure.",
        min=0.0, max=0.5, shown=True,
    ),
    Setting(
        "validation_every", int, 0, "Steps from one validation to the next; 0 is as often as the held-out curve.",
        min=0, max=1_000_000,
    ),
    Setting("validation_tasks", int, 64, "Tasks of a validation, or a reward model's pairs, at most.", min=1, max=4096),
    Setting(
        "final_weights", str, "best",
        "Which weights become the version: those of the best validation score, the first of them, or the last step's. "
        "Without validation it is the last step's.",
        algorithms=_POLICIES,
        choices=("best", "last"),
    ),
    Setting(
        "best_metric", str, "score",
        "The figure of the validation by which the best weights and an early end are chosen: the verifier's mean "
        "score, or the mean reward that the run learns from, with its recipe, shaping and penalties.",
        algorithms=_REINFORCED, choices=("score", "reward"),
    ),
    Setting(
        "patience", int, 0,
        "Validations in a row without a better score that end the run; 0 lets it run to its last step.",
        algorithms=_POLICIES,
        min=0, max=1000,
    ),
    Setting("keep_checkpoints", int, 2, "How many of the newest checkpoints stay on disk.", min=2, max=1000),
    Setting(
        "beta", float, 0.0,
        "Weight of staying near the start: in the loss, or with RLOO in the reward. 0 needs no reference model and "
        "reports no kl.",
        algorithms=("dpo", "kto", *_PRACTISED), min=0.0, max=10.0, shown=("dpo", "kto"),
    ),
    Setting(
        "preference_loss", str, "sigmoid", "DPO's loss; ipo resists noise-free labels, robust resists wrong ones.",
        algorithms=("dpo",),
        choices=("sigmoid", "hinge", "ipo", "robust", "bco_pair", "sppo_hard", "aot", "apo_zero", "apo_down"),
    ),
    Setting(
        "label_smoothing", float, 0.0, "Assumed share of pairs that are labelled the wrong way round.",
        algorithms=("dpo",), min=0.0, max=0.49,
    ),
    Setting(
        "num_generations", int, 8, "Attempts at each task in a step; batch_size must be a multiple of it.",
        algorithms=_PRACTISED, min=2, max=1024, shown=True,
    ),
    Setting(
        "temperature", float, 1.0, "Of the attempts. Too low and all are alike, too high and none is right.",
        algorithms=_PRACTISED, min=0.01, max=5.0,
    ),
    Setting(
        "top_p", float, 1.0, "Sample from this much of the probability.", algorithms=_PRACTISED, min=0.01, max=1.0,
    ),
    Setting("top_k", int, 0, "Sample from so many tokens; 0 is all.", algorithms=_PRACTISED, min=0, max=1_000_000),
    Setting(
        "rollouts", str, "trainer",
        "Who samples the attempts: the trainer's own process or, with a LoRA adapter, vLLM, which is quicker for big "
        "models. vllm uses this installation's server. colocate starts one for the run on the GPU that it trains on. "
        "After each update it is proved that the server samples the trained policy.",
        algorithms=_REINFORCED, choices=("trainer", "vllm", "colocate"),
    ),
    Setting(
        "vllm_memory_share", float, 0.4,
        "With rollouts colocate, the share of the GPU's memory that vLLM takes while it samples. It gives it back "
        "while the trainer learns.",
        algorithms=_REINFORCED, min=0.05, max=0.9,
    ),
    Setting(
        "teacher_from", str, "trainer",
        "Where the teacher runs: in the trainer's own process; on this installation's vLLM server, so that the trainer "
        "needs no memory for it; or, for a hosted model, at its own endpoint, which must give the log-probabilities of "
        "a prompt's tokens. The result is the same. On vLLM and at an endpoint the temperature must be 1.",
        algorithms=_DISTILLED, choices=("trainer", "vllm", "endpoint"),
    ),
    Setting(
        "execution", str, "sync",
        "Whether vLLM goes on sampling while the trainer learns: sync takes turns, one_step_off_async lets attempts be "
        "one update old, fully_async as many as max_staleness. Nothing that was sampled is thrown away.",
        algorithms=_REINFORCED, choices=("sync", "one_step_off_async", "fully_async"),
    ),
    Setting(
        "max_staleness", int, 2, "Updates that a token may be old when it is learnt from, with fully_async.",
        algorithms=_REINFORCED, min=1, max=16,
    ),
    Setting(
        "num_iterations", int, 1, "Steps taken on the same attempts. At 1 the update is on-policy and nothing clips.",
        algorithms=_PRACTISED, min=1, max=64,
    ),
    Setting(
        "epsilon", float, 0.2, "Lower clip of the importance ratio.", algorithms=_PRACTISED, min=0.0, max=1.0,
    ),
    Setting(
        "epsilon_high", float, 0.2,
        "Upper clip of the importance ratio; for CISPO and importance sampling the cap of the weight (0.2 is too low).",
        algorithms=_PRACTISED, min=0.0, max=100.0,
    ),
    Setting(
        "mask_truncated_completions", bool, False, "Learn nothing from answers cut off at max_completion_length.",
        algorithms=_PRACTISED,
    ),
    Setting(
        "unsafe_penalty", float, 1.0,
        "Taken off the reward of an attempt that did harm, so that training tells unsafe (-1) from wrong (0). 0 takes "
        "nothing off.",
        algorithms=_REINFORCED, min=0.0, max=10.0,
    ),
    Setting(
        "invalid_penalty", float, 1.0,
        "Taken off the reward of an answer that is not in the form that is read, so that training tells it (-1) from a "
        "call that is wrong. 0 takes nothing off.",
        algorithms=_REINFORCED, min=0.0, max=10.0,
    ),
    Setting(
        "scale_rewards", str, "group", "By whose spread advantages are divided.",
        algorithms=_SCALED, choices=("group", "batch", "none"),
    ),
    Setting(
        "reward_aggregation", str, "sum_then_normalize",
        "normalize_then_sum (GDPO) compares each part of the verdict within the group before they are added.",
        algorithms=_SCALED, choices=("sum_then_normalize", "normalize_then_sum"),
    ),
    Setting(
        "step_rewards", bool, False,
        "Tell each answer of an episode what was earned from it on, instead of what the whole episode earned: a turn "
        "earns the change of the reward through it. Each turn is judged, so scoring takes longer.",
        algorithms=(*_STEPPED, "ppo"),
    ),
    Setting(
        "discount", float, 1.0,
        "With step_rewards, how much of what a later turn earns counts for the turn before it.",
        algorithms=_STEPPED, min=0.0, max=1.0,
    ),
    Setting(
        "step_weight", float, 1.0,
        "With step_rewards, how much the turn's own advantage counts; the rest is the whole episode's, as without it.",
        algorithms=_STEPPED, min=0.0, max=1.0,
    ),
    Setting(
        "dynamic_sampling", bool, False,
        "Replace a task whose attempts all earn the same, which teaches nothing, by another one.",
        algorithms=_GROUPED,
    ),
    Setting(
        "max_resamples", int, 3, "How often a step looks for other tasks, with dynamic_sampling.",
        algorithms=_GROUPED, min=1, max=100,
    ),
    Setting(
        "curriculum", bool, False,
        "Let a task rest that is nearly always solved (over 80%), or hardly ever (under 10%) with all its attempts "
        "earning the same, and try it again later: attempts go to tasks that teach something.",
        algorithms=_GROUPED,
    ),
    Setting(
        "replay_rows", int, 16, "Rows of the replayed dataset that each step imitates beside its attempts.",
        algorithms=_PRACTISED, min=1, max=4096,
    ),
    Setting(
        "replay_weight", float, 0.1,
        "Weight of the replayed rows' loss beside that of the attempts. Higher forgets less, and learns less.",
        algorithms=_PRACTISED, min=0.0001, max=100.0,
    ),
    Setting(
        "entropy_coef", float, 0.0, "Bonus for staying undecided, against entropy collapse.",
        algorithms=(*_GROUPED, "ppo"), min=0.0, max=1.0,
    ),
    Setting(
        "normalize_advantages", bool, False, "Divide advantages by the batch's spread.", algorithms=("rloo", "ppo"),
    ),
    Setting(
        "gamma", float, 1.0, "Discount per token that the policy writes. Below 1, short answers earn more.",
        algorithms=("ppo",), min=0.0, max=1.0,
    ),
    Setting(
        "gae_lambda", float, 0.95, "How far credit reaches back: 1 is the whole episode, lower trusts the value head.",
        algorithms=("ppo",), min=0.0, max=1.0,
    ),
    Setting(
        "value_coef", float, 0.1, "Weight of the value loss, which moves the policy's own layers too.",
        algorithms=("ppo",), min=0.0, max=100.0,
    ),
    Setting(
        "value_clip", float, 0.2, "How far a prediction may move on the same attempts; num_iterations 1 never clips.",
        algorithms=("ppo",), min=0.0, max=1000.0,
    ),
    Setting(
        "value_learning_rate", float, 1e-3, "Of the value head, which starts from nothing and must keep ahead.",
        algorithms=("ppo",), min=1e-9, max=1.0,
    ),
    Setting(
        "desirable_weight", float, 0.0,
        "Weight of a good answer in the loss. 0 makes up for how many there are: rows / (2 × good rows).",
        algorithms=("kto",), min=0.0, max=1000.0,
    ),
    Setting(
        "undesirable_weight", float, 0.0,
        "Weight of a bad answer in the loss. 0 makes up for how many there are: rows / (2 × bad rows).",
        algorithms=("kto",), min=0.0, max=1000.0,
    ),
    Setting(
        "advantage_scale", float, 0.1,
        "An attempt weighs exp(advantage / this), its advantage being its score less the mean of its group. Lower "
        "learns from the best alone, higher imitates all alike.",
        algorithms=("awr",), min=0.01, max=100.0, shown=True,
    ),
    Setting(
        "max_weight", float, 20.0, "No attempt weighs more than this, before weights are divided by their mean.",
        algorithms=("awr",), min=1.0, max=1_000_000.0,
    ),
    Setting(
        "max_ratio", float, 2.0,
        "Where log-probabilities were recorded, a token counts by how much likelier it is for the policy in training, "
        "at most this much. 0 leaves them aside.",
        algorithms=("awr",), min=0.0, max=100.0,
    ),
    Setting(
        "center_rewards", float, 0.01,
        "Pull of the scores' sum in a pair towards 0, so that they stay comparable between requests; 0 is none.",
        algorithms=("reward_model",), min=0.0, max=1.0,
    ),
]  # fmt: skip

OWN = "This algorithm"
"""The group of a setting that is in none of `GROUPS`."""
GROUPS: dict[str, tuple[str, ...]] = {
    "Optimiser": (
        "batch_size", "num_iterations", "lr_schedule", "warmup_steps", "weight_decay", "max_grad_norm",
        "value_learning_rate",
    ),
    "Sampling and curriculum": (
        "temperature", "top_p", "top_k", "dynamic_sampling", "max_resamples", "curriculum", "replay_rows",
        "replay_weight",
    ),
    "Rewards": (
        "step_rewards", "discount", "step_weight", "unsafe_penalty", "invalid_penalty", "scale_rewards",
        "reward_aggregation", "normalize_advantages",
    ),
    "Length": ("max_length", "max_completion_length", "mask_truncated_completions"),
    "Validation and checkpoints": (
        "validation_every", "validation_tasks", "final_weights", "best_metric", "patience", "keep_checkpoints",
    ),
    "Execution": (
        "device", "micro_batch_size", "gradient_checkpointing", "eval_batch_size", "processes", "sharding",
        "rollouts", "vllm_memory_share", "teacher_from", "execution", "max_staleness",
    ),
}  # fmt: skip
"""Settings by what they are about, in the order in which a form has them."""

SETTINGS: dict[str, Setting] = {row.name: row for row in _ROWS}
