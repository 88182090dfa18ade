"""Which training algorithms there are and what can be set: one table that the form, the API and the trainers read.

`ALGORITHMS` has a row for each algorithm with all that holds of it: its trainer, its data, the fixes that it carries
out and its own defaults. `SETTINGS` has each setting with its type, bounds, default and the reason for it.
`validate` turns what a person or a script gave into the complete settings of a run, or says what is wrong and what
would be right. Few settings are `shown` at first; all are reachable, and beyond them every field of the library's own
configuration: `trl.<field>` goes to TRL's config and `lora.<field>` to PEFT's LoraConfig as it is.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from flywheel.core.errors import FieldError

Data = Literal["sft", "pairs", "tasks", "thumbs"]
"""What an algorithm learns from: corrected answers, preferred and rejected answers, tasks that it tries itself, or
single answers, each with a thumb up or down."""

Fix = Literal["sft", "dpo", "rlvr", "environment_rl"]
"""The steps of the fix ladder that are a training run."""

SMALL = 50_000_000
"""Up to so many parameters a model is trained as the reference policy is: all weights, everything in memory at once."""

ELSEWHERE: Final = ("trajectory", "uploaded")
"""Origins of dataset rows that belong to no task of an environment; such a row brings the tools that it is told of."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    name: str
    label: str
    trainer: str
    """`python -m workers.trainers.<trainer> RUNDIR` carries it out."""
    data: Data
    fixes: tuple[Fix, ...]
    description: str
    is_grouped: bool = False
    """Whether an attempt is compared with its siblings, so that a group that scores alike teaches nothing."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TRL's config that make the algorithm what it is; no setting overrides them."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings of which it wants another default."""

    @property
    def plays_episodes(self) -> bool:
        """Whether its attempts may have several turns: what others said in them is masked in its loss."""
        return "environment_rl" in self.fixes

    @property
    def is_reinforced(self) -> bool:
        """Whether it learns from the verdicts on its own attempts."""
        return self.data == "tasks"

    @property
    def defaults(self) -> dict[str, Any]:
        return {s.name: s.default_for(self) for s in SETTINGS.values() if self.name in s.algorithms}


def _grpo(
    name: str,
    label: str,
    description: str,
    *,
    loss: str,
    level: str = "token",
    own: Mapping[str, Any] | None = None,
    **fixed: str,
) -> Algorithm:
    """One of the GRPO family: its kin differ in the loss, in what the importance ratio is of, or in what else of TRL's
    config is `fixed`."""
    fixed |= {"loss_type": loss, "importance_sampling_level": level}
    fixes: tuple[Fix, ...] = ("rlvr", "environment_rl")
    return Algorithm(name, label, "grpo", "tasks", fixes, description, is_grouped=True, fixed=fixed, own=own or {})


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm(
            "sft",
            "SFT",
            trainer="sft",
            data="sft",
            fixes=("sft",),
            description="Supervised fine-tuning: imitate corrected answers. The first thing to try when people have "
            "written what should have happened.",
        ),
        Algorithm(
            "dpo",
            "DPO",
            trainer="dpo",
            data="pairs",
            fixes=("dpo",),
            description="Direct preference optimisation: prefer the corrected answer over the failed one, staying "
            "near the start.",
            own={"steps": 60, "batch_size": 16, "learning_rate": 1e-4, "beta": 0.1},
        ),
        _grpo(
            "grpo",
            "GRPO",
            "Group-relative policy optimisation: several attempts at each task, each judged by the verifier and "
            "compared with its siblings.",
            loss="grpo",
        ),
        _grpo(
            "dr_grpo",
            "Dr. GRPO",
            "GRPO without its two biases: no division by the group's spread, none by the answer's length.",
            loss="dr_grpo",
            own={"scale_rewards": "none"},
        ),
        _grpo(
            "dapo",
            "DAPO",
            "GRPO with the token-level loss, the wider upper clip, the masking of cut-off answers and the dynamic "
            "sampling of DAPO.",
            loss="dapo",
            own={"epsilon_high": 0.28, "mask_truncated_completions": True, "dynamic_sampling": True},
        ),
        _grpo(
            "gspo",
            "GSPO",
            "Group sequence policy optimisation: one importance ratio for a whole answer; steadier on long answers.",
            loss="grpo",
            level="sequence",
            own={"epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
        _grpo(
            "cispo",
            "CISPO",
            "Clips the importance weight instead of the update, so that rare decisive tokens keep their gradient.",
            loss="cispo",
            own={"epsilon_high": 5.0},
        ),
        Algorithm(
            "rloo",
            "RLOO",
            trainer="rloo",
            data="tasks",
            fixes=("rlvr",),
            description="REINFORCE leave-one-out: each attempt is compared with the mean of the others; few moving "
            "parts.",
            own={"beta": 0.05},
        ),
        Algorithm(
            "kto",
            "KTO",
            trainer="kto",
            data="thumbs",
            fixes=(),
            description="Kahneman-Tversky optimisation: make good answers likelier and bad ones less likely, each "
            "judged by itself, staying near the start. For thumbs and labels without corrections.",
            # Ten times that rate halves the held-out success of the reference policy: most of its answers are bad, and
            # it unlearns what is right in them.
            own={"steps": 60, "batch_size": 16, "learning_rate": 1e-5, "beta": 0.1},
        ),
        _grpo(
            "importance_sampling",
            "Importance sampling",
            "REINFORCE with the group's mean as baseline and one truncated importance weight per token; nothing is "
            "divided by the group's spread.",
            loss="cispo",
            own={"epsilon_high": 2.0},
            scale_rewards="none",
            multi_objective_aggregation="sum_then_normalize",
        ),
        Algorithm(
            "ppo",
            "PPO",
            trainer="grpo",
            data="tasks",
            fixes=("rlvr", "environment_rl"),
            description="Proximal policy optimisation: a value head predicts the reward at each token, and credit goes "
            "to the tokens that changed the prediction. For long episodes.",
            fixed={"loss_type": "dapo", "importance_sampling_level": "token"},
            own={"num_generations": 2, "normalize_advantages": True},
        ),
    )
}
"""Every algorithm by its name. Of those with the same data, or the same fix, the first is what a form offers."""

_EVERY = tuple(ALGORITHMS)
_REINFORCED = tuple(row.name for row in ALGORITHMS.values() if row.is_reinforced)
_GROUPED = tuple(row.name for row in ALGORITHMS.values() if row.is_grouped)
_SCALED = tuple(row.name for row in ALGORITHMS.values() if row.is_grouped and "scale_rewards" not in row.fixed)
_TAUGHT = tuple(row.name for row in ALGORITHMS.values() if not row.is_reinforced)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    type: type[int] | type[float] | type[bool] | type[str]
    default: Any
    why: str
    algorithms: tuple[str, ...] = _EVERY
    reinforced: Any = None
    """The default of reinforced algorithms, where they want another."""
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    shown: bool = False
    """Whether a form shows it without being asked for more."""

    def default_for(self, algorithm: Algorithm) -> Any:
        usual = self.reinforced if algorithm.is_reinforced and self.reinforced is not None else self.default
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
        "What one step learns from: rows (SFT, KTO), pairs (DPO) or completions (the others: tasks × num_generations).",
        reinforced=128, min=1, max=65_536, shown=True,
    ),
    Setting(
        "micro_batch_size", int, 0,
        "How much of the batch is on the device at once; 0 is all of it. Lower it when memory runs out.",
        min=0, max=65_536,
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
        min=1, max=131_072, shown=True,
    ),
    Setting("eval_batch_size", int, 128, "Held-out tasks answered at once.", min=1, max=4096),
    Setting(
        "validation_share", float, 0.0,
        "Share of the training sources that is kept out of training and asked on the way: by it the best weights and "
        "an early end are chosen, so that held-out tasks only measure.",
        min=0.0, max=0.5, shown=True,
    ),
    Setting(
        "validation_every", int, 0, "Steps from one validation to the next; 0 is as often as the held-out curve.",
        min=0, max=1_000_000,
    ),
    Setting("validation_tasks", int, 64, "Tasks of a validation, at most.", min=1, max=4096),
    Setting(
        "final_weights", str, "best",
        "Which weights become the version: those of the best validation score, the first of them, or the last step's. "
        "Without validation it is the last step's.",
        choices=("best", "last"),
    ),
    Setting(
        "patience", int, 0,
        "Validations in a row without a better score that end the run; 0 lets it run to its last step.",
        min=0, max=1000,
    ),
    Setting("keep_checkpoints", int, 2, "How many of the newest checkpoints stay on disk.", min=2, max=1000),
    Setting(
        "beta", float, 0.0,
        "Weight of staying near the start. 0 (the GRPO family's default) needs no reference model and reports no kl.",
        algorithms=("dpo", "kto", *_REINFORCED), min=0.0, max=10.0, shown=True,
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
        algorithms=_REINFORCED, min=2, max=1024, shown=True,
    ),
    Setting(
        "temperature", float, 1.0, "Of the attempts. Too low and all are alike, too high and none is right.",
        algorithms=_REINFORCED, min=0.01, max=5.0, shown=True,
    ),
    Setting(
        "top_p", float, 1.0, "Sample from this much of the probability.", algorithms=_REINFORCED, min=0.01, max=1.0,
    ),
    Setting("top_k", int, 0, "Sample from so many tokens; 0 is all.", algorithms=_REINFORCED, min=0, max=1_000_000),
    Setting(
        "num_iterations", int, 1, "Steps taken on the same attempts. At 1 the update is on-policy and nothing clips.",
        algorithms=_REINFORCED, min=1, max=64,
    ),
    Setting(
        "epsilon", float, 0.2, "Lower clip of the importance ratio.", algorithms=_REINFORCED, min=0.0, max=1.0,
    ),
    Setting(
        "epsilon_high", float, 0.2,
        "Upper clip of the importance ratio; for CISPO and importance sampling the cap of the weight (0.2 is too low).",
        algorithms=_REINFORCED, min=0.0, max=100.0,
    ),
    Setting(
        "mask_truncated_completions", bool, False, "Learn nothing from answers cut off at max_completion_length.",
        algorithms=_REINFORCED,
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
        "dynamic_sampling", bool, False,
        "Replace a task whose attempts all earn the same, which teaches nothing, by another one.",
        algorithms=_GROUPED, shown=True,
    ),
    Setting(
        "max_resamples", int, 3, "How often a step looks for other tasks, with dynamic_sampling.",
        algorithms=_GROUPED, min=1, max=100,
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
        algorithms=("kto",), min=0.0, max=1000.0, shown=True,
    ),
    Setting(
        "undesirable_weight", float, 0.0,
        "Weight of a bad answer in the loss. 0 makes up for how many there are: rows / (2 × bad rows).",
        algorithms=("kto",), min=0.0, max=1000.0, shown=True,
    ),
]  # fmt: skip

SETTINGS: dict[str, Setting] = {row.name: row for row in _ROWS}

PASSED_ON = ("trl.", "lora.")

OWNED = frozenset(
    {
        # The run directory's own contract.
        "output_dir", "seed", "data_seed", "max_steps", "num_train_epochs", "logging_steps", "logging_strategy",
        "logging_nan_inf_filter", "report_to", "save_strategy", "save_steps", "save_total_limit", "save_only_model",
        "eval_strategy", "eval_steps", "do_eval", "push_to_hub", "hub_model_id", "hub_token", "hub_strategy",
        "resume_from_checkpoint", "load_best_model_at_end", "log_completions", "disable_tqdm", "shuffle_dataset",
        "ignore_data_skip", "reward_weights", "auto_find_batch_size", "generation_batch_size",
        "steps_per_generation", "r", "lora_alpha", "run_name", "project", "log_completions_hub_repo",
        # What would run code from, or speak to, somewhere else.
        "trust_remote_code", "model_init_kwargs", "use_vllm", "vllm_server_base_url", "chat_template_path",
        "deepspeed", "fsdp", "fsdp_config", "accelerator_config",
        # How TRL would generate: attempts are played as evals play them.
        "min_p", "repetition_penalty", "generation_kwargs", "cache_implementation", "chat_template_kwargs",
        "use_transformers_continuous_batching", "max_tool_calling_iterations", "num_generations_eval",
    }
)  # fmt: skip
"""Library fields that no setting may pass on."""

NAMED = {
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "batch_size and micro_batch_size",
    "lr_scheduler_type": "lr_schedule",
    "multi_objective_aggregation": "reward_aggregation",
    "loss_type": "the algorithm, or preference_loss for DPO",
    "importance_sampling_level": "the algorithm",
}
"""Library fields that a setting of ours stands for under another name."""


def offered(*, data: str = "", fix: str = "") -> Algorithm:
    """The algorithm to begin with for this data or this fix; the first of the table where none fits."""
    fitting = (row for row in ALGORITHMS.values() if data == row.data or fix in row.fixes)
    return next(fitting, next(iter(ALGORITHMS.values())))


def defaults(algorithm: str, *, parameters: int | None = None, mode: str = "full") -> dict[str, Any]:
    """Every setting of an algorithm at its default, suited to the model's size and tuning mode."""
    values = _algorithm(algorithm).defaults
    if _is_big(parameters):
        values |= {name: value for name, value in _BIG.items() if name in values}
        values["learning_rate"] = _BIG_RATES[algorithm == "sft", mode == "lora"]
    return values


def usual_mode(parameters: int | None) -> Literal["full", "lora"]:
    """Return how a model of this size is tuned unless somebody says otherwise: of a big one, weights, gradients and
    optimizer together take eight times the memory of the weights."""
    return "lora" if _is_big(parameters) else "full"


def _is_big(parameters: int | None) -> bool:
    return parameters is not None and parameters > SMALL


def validate(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The complete settings of a run. Raises FieldError."""
    known = _algorithm(algorithm)
    values = known.defaults
    for name, value in settings.items():
        if name.startswith(PASSED_ON):
            values[name] = _passed_on(name, value)
        elif name not in values:
            raise FieldError(_unknown(known, name), field=name)
        else:
            values[name] = SETTINGS[name].check(value)
    _check_together(values)
    return values


_BIG = {
    "gradient_checkpointing": True,
    "micro_batch_size": 4,
    "max_completion_length": 512,
    "max_length": 4096,
    "eval_batch_size": 32,
    "validation_share": 0.1,
    "value_learning_rate": 1e-5,
}
"""Settings of big models, whose answers are longer, whose activations fill the memory, and which learn the rows of a
small team by heart before the last step."""
_BIG_RATES = {(True, False): 1e-5, (True, True): 1e-4, (False, False): 1e-6, (False, True): 1e-5}
"""Learning rates of big models, by whether it is SFT and whether it is LoRA."""


def _algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise FieldError(f"{name!r} is unknown; expected one of {', '.join(ALGORITHMS)}", field="algorithm")
    return ALGORITHMS[name]


def _unknown(algorithm: Algorithm, name: str) -> str:
    if name in SETTINGS:
        return f"does not apply to {algorithm.label}, only to {', '.join(SETTINGS[name].algorithms)}"
    near = difflib.get_close_matches(name, algorithm.defaults, n=1)
    hint = f"did you mean {near[0]}?" if near else "trl.<field> and lora.<field> reach the libraries' own fields"
    return f"is no setting of {algorithm.label}; {hint}"


def _passed_on(name: str, value: Any) -> Any:
    field_name = name.split(".", 1)[1]
    if field_name in OWNED:
        raise FieldError(f"{value!r} cannot be set, the run directory decides it", field=name)
    if field_name in NAMED or field_name in SETTINGS:
        raise FieldError(f"{value!r} is set through {NAMED.get(field_name, field_name)}", field=name)
    items = value if isinstance(value, list) else [value]
    if not all(
        item is None or isinstance(item, str | int) or (isinstance(item, float) and math.isfinite(item))
        for item in items
    ):
        raise FieldError(f"{value!r} is not a text, number, true, false, null or a list of them", field=name)
    return value


def _check_together(values: Mapping[str, Any]) -> None:
    batch, micro = values["batch_size"], values["micro_batch_size"]
    if micro and batch % micro:
        raise FieldError(
            f"{micro} does not divide batch_size {batch}; expected a divisor of it", field="micro_batch_size"
        )
    if values["patience"] and not values["validation_share"]:
        raise FieldError(
            f"{values['patience']} counts validations, and nothing is kept to validate on; set validation_share too",
            field="patience",
        )
    if "desirable_weight" in values and (micro or batch) < 2:
        raise FieldError(
            "1 is too few for KTO, which tells how far the policy has moved by each prompt with another row's answer; "
            "expected at least 2",
            field="micro_batch_size" if micro else "batch_size",
        )
    if "num_generations" not in values:
        return
    group = values["num_generations"]
    if batch % group:
        raise FieldError(
            f"{batch} is no multiple of num_generations {group}; {max(group, batch // group * group)} would be right",
            field="batch_size",
        )
    if values["epsilon_high"] < values["epsilon"]:
        raise FieldError(
            f"{values['epsilon_high']!r} is below epsilon; expected at least {values['epsilon']!r}",
            field="epsilon_high",
        )
