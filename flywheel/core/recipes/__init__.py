"""Which training algorithms there are and what can be set: one table that the form, the API and the trainers read.

`ALGORITHMS` has a row for each algorithm with all that holds of it: its trainer, its data, the fixes that it carries
out and its own defaults. `SETTINGS` has each setting with its type, bounds, default and the reason for it.
`validate` turns what a person or a script gave into the complete settings of a run, or says what is wrong and what
would be right. Few settings are `shown` at first; all are reachable, and beyond them every field of the library's own
configuration: `trl.<field>` goes to TRL's config and `lora.<field>` to PEFT's LoraConfig as it is.
"""

import difflib
import importlib.util
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from flywheel.core.errors import FieldError
from flywheel.core.recipes.training_algorithms import ALGORITHMS, Algorithm, Data, Fix
from flywheel.core.recipes.training_settings import SETTINGS, Setting

__all__ = [
    "ALGORITHMS",
    "MODES",
    "SETTINGS",
    "Algorithm",
    "Data",
    "Fix",
    "Setting",
    "check_environment_weights",
    "check_mode",
    "defaults",
    "lacking",
    "offered",
    "schema",
    "usual_mode",
    "validate",
]

HEAVIEST = 1_000_000
"""The greatest weight of an environment."""

SMALL = 50_000_000
"""Up to so many parameters a model is trained as the reference policy is: all weights, everything in memory at once."""

ELSEWHERE: Final = ("trajectory", "uploaded")
"""Origins of dataset rows that belong to no task of an environment; such a row brings the tools that it is told of."""


VLLM: Final = "vllm"
"""The value of `rollouts` with which the installation's server samples the attempts."""
COLOCATE: Final = "colocate"
"""The value of `rollouts` with which a server of the run's own samples them."""
ENDPOINT: Final = "endpoint"
"""The value of `teacher_from` with which somebody else's server tells a teacher's probabilities."""

MODES: Final = {"full": "all weights", "lora": "LoRA", "qlora": "QLoRA"}
"""Ways to tune weights: all of them, an adapter on the base, or an adapter on the base in 4 bits."""
NEEDS: Final = {"qlora": "bitsandbytes", COLOCATE: "vLLM"}
"""Modes, and the value of `rollouts`, that need what not every installation has."""
INSTALLED_BY: Final = {"qlora": "install flywheel[qlora]", COLOCATE: "run make .venv-serve/.installed"}
SERVE = Path(__file__).resolve().parents[3] / ".venv-serve"
"""vLLM's own environment."""

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
        # Without it nobody would see how far the sampler is from the policy.
        "vllm_importance_sampling_correction",
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
    values = _usual(_algorithm(algorithm))
    if _is_big(parameters):
        own = ALGORITHMS[algorithm].own
        values |= {name: value for name, value in _BIG.items() if name in values and name not in own}
        values["learning_rate"] = _BIG_RATES[ALGORITHMS[algorithm].trainer == "sft", mode != "full"]
    return values


_WANTED = {
    "qlora": (NEEDS["qlora"], f"QLoRA needs {NEEDS['qlora']}, which is not installed; {INSTALLED_BY['qlora']}"),
    # No extra of ours: it would bring another package of the name `ninja`, over that of the API.
    "deepspeed": ("deepspeed", "DeepSpeed is not installed; install it as the operator's guide says"),
}
"""The module of what not every installation has, and what to say without it."""


def lacking(what: str) -> str:
    """Say what this installation lacks for a mode of tuning, a kind of sharding or a server of the run's own; empty
    where it has all. It loads nothing: the trainer tries it out."""
    if what == COLOCATE and not (SERVE / ".installed").exists():
        return (
            f"rollouts {COLOCATE} needs vLLM, which is not installed; {INSTALLED_BY[COLOCATE]} and restart the worker"
        )
    if what not in _WANTED or importlib.util.find_spec(_WANTED[what][0]):
        return ""
    return f"{_WANTED[what][1]} and restart the worker"


def possible_modes() -> list[str]:
    """The modes that this installation can tune by, and `colocate` where it can start a run's own server."""
    return [mode for mode in (*MODES, COLOCATE) if not lacking(mode)]


def usual_mode(parameters: int | None) -> Literal["full", "lora"]:
    """Return how a model of this size is tuned unless somebody says otherwise: of a big one, weights, gradients and
    optimizer together take eight times the memory of the weights."""
    return "lora" if _is_big(parameters) else "full"


def _is_big(parameters: int | None) -> bool:
    return parameters is not None and parameters > SMALL


def validate(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The complete settings of a run. Raises FieldError."""
    known = _algorithm(algorithm)
    values = _usual(known)
    for name, value in settings.items():
        if name.startswith(PASSED_ON):
            values[name] = _passed_on(name, value)
        elif name not in values:
            raise FieldError(_unknown(known, name), field=name)
        else:
            values[name] = SETTINGS[name].check(value)
    _check_together(values)
    return values


def check_mode(algorithm: str, mode: str, settings: Mapping[str, Any]) -> None:
    """Refuse complete settings that do not go with how the weights are tuned. Raises FieldError."""
    if samples_elsewhere(settings) and mode != "lora":
        why = (
            "here all weights are trained"
            if mode == "full"
            else "QLoRA trains on a base in 4 bits, which is not the one it serves"
        )
        raise FieldError(f"vLLM samples adapters, and {why}; use tuning lora", field="rollouts")
    if mode == "qlora" and not ALGORITHMS[algorithm].makes_policy:
        raise FieldError("'qlora' does not train a reward model, which is saved whole; use lora", field="tuning.mode")
    if mode == "qlora" and settings.get("processes", 1) > 1:
        raise FieldError(
            f"{settings['processes']} processes do not share a base in 4 bits; expected 1", field="processes"
        )


def schema(algorithm: str) -> dict[str, Any]:
    """The JSON Schema of an algorithm's settings, each by itself: what `validate` takes before it looks at them
    together."""
    own = [each for each in SETTINGS.values() if algorithm in each.algorithms]
    beginnings = "|".join(map(re.escape, PASSED_ON))
    return {
        "type": "object",
        "properties": {each.name: each.schema() for each in own},
        "patternProperties": {f"^({beginnings})": {"description": "A field of TRL's or PEFT's configuration."}},
        "additionalProperties": False,
    }


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
"""Learning rates of big models, by whether it imitates (SFT and AWR) and whether it trains an adapter."""


def _usual(algorithm: Algorithm) -> dict[str, Any]:
    return {each.name: each.default_for(algorithm) for each in SETTINGS.values() if algorithm.name in each.algorithms}


def _algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise FieldError(f"{name!r} is unknown; expected one of {', '.join(ALGORITHMS)}", field="algorithm")
    return ALGORITHMS[name]


def _unknown(algorithm: Algorithm, name: str) -> str:
    if name in SETTINGS:
        return f"does not apply to {algorithm.label}, only to {', '.join(SETTINGS[name].algorithms)}"
    near = difflib.get_close_matches(name, _usual(algorithm), n=1)
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
    batch, micro, processes = values["batch_size"], values["micro_batch_size"], values.get("processes", 1)
    group = values.get("num_generations", 1)
    if processes > 1 and batch % (processes * group):
        attempts = f" × num_generations {group}" if group > 1 else ""
        raise FieldError(
            f"{processes} processes cannot share batch_size {batch}; expected a multiple of {processes}{attempts}",
            field="processes",
        )
    if processes > 1 and values.get("curriculum"):
        raise FieldError(
            f"{processes} processes would each know other tasks; expected 1 with curriculum", field="processes"
        )
    sharding = values.get("sharding", "none")
    if sharding != "none" and processes == 1:
        raise FieldError(f"{sharding!r} divides a run among processes, and there is 1", field="sharding")
    if sharding == "deepspeed" and values["device"] == "cpu":
        raise FieldError("'deepspeed' needs GPUs; on CPUs use fsdp2 or none", field="sharding")
    if micro and batch // processes % micro:
        whole = f"batch_size {batch}" if processes == 1 else f"the {batch // processes} of batch_size a process has"
        raise FieldError(f"{micro} does not divide {whole}; expected a divisor of it", field="micro_batch_size")
    if "center_rewards" in values and not values["validation_share"]:
        raise FieldError(
            "0 keeps no pairs aside, and a reward model is measured by pairs that it has not seen; 0.2 would be right",
            field="validation_share",
        )
    if values.get("patience") and not values["validation_share"]:
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
    if batch % group:
        raise FieldError(
            f"{batch} is no multiple of num_generations {group}; {max(group, batch // group * group)} would be right",
            field="batch_size",
        )
    _check_steps(values)
    _check_served(values)
    place = values.get("teacher_from")
    if place in (VLLM, ENDPOINT) and values["temperature"] != 1.0:
        raise FieldError(
            f"{values['temperature']!r} does not go with teacher_from {place}, which gives probabilities of given "
            "tokens at temperature 1 only; expected 1.0",
            field="temperature",
        )
    if values["epsilon_high"] < values["epsilon"]:
        raise FieldError(
            f"{values['epsilon_high']!r} is below epsilon; expected at least {values['epsilon']!r}",
            field="epsilon_high",
        )


def _check_steps(values: Mapping[str, Any]) -> None:
    """Refuse what rewards of turns do not go with. Raises FieldError."""
    if not values.get("step_rewards"):
        for name, does in {"discount": "discounts", "step_weight": "weighs"}.items():
            if values.get(name, 1.0) != 1.0:
                raise FieldError(f"{values[name]!r} {does} rewards of turns; set step_rewards too", field=name)
        return
    whole = {"processes": 1, "reward_aggregation": "sum_then_normalize"}
    for name, wanted in whole.items():
        if values.get(name, wanted) != wanted:
            raise FieldError(f"{values[name]!r} does not go with step_rewards; expected {wanted}", field=name)


def check_environment_weights(weights: Mapping[str, Any], environments: Collection[str]) -> dict[str, list[float]]:
    """The weight of each environment of a run at its first step and at its last: each has two, and something is left to
    practise at both ends. Raises FieldError."""
    field = "environment_weights"
    names = ", ".join(sorted(environments)) or "no environment: the run has a single one"
    for name in sorted(weights.keys() ^ set(environments)):
        problem = "is no environment of the run" if name in weights else "has no weight"
        raise FieldError(f"{problem}; expected one for each of {names}", field=f"{field}.{name}")
    for name, pair in weights.items():
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_weight, pair))):
            raise FieldError(
                f"{pair!r} is no pair of weights; expected two numbers from 0 to {HEAVIEST:,}, at the first step and "
                "at the last",
                field=f"{field}.{name}",
            )
    for place, when in enumerate(("first", "last")):
        if not any(pair[place] for pair in weights.values()):
            raise FieldError(f"they sum to 0 at the {when} step, so nothing would be practised there", field=field)
    return {name: [float(each) for each in pair] for name, pair in weights.items()}


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= HEAVIEST


def asks_server(settings: Mapping[str, Any]) -> bool:
    """Whether the trainer asks the installation's vLLM server, for attempts or for a teacher's probabilities."""
    return VLLM in (settings.get("rollouts"), settings.get("teacher_from"))


def samples_elsewhere(settings: Mapping[str, Any]) -> bool:
    """Whether a vLLM server samples the attempts, the installation's or the run's own."""
    return settings.get("rollouts") in (VLLM, COLOCATE)


def staleness_bound(settings: Mapping[str, Any]) -> int:
    """Count the updates that a token may be old when it is learnt from; 0 where sampling and learning take turns."""
    bounds = {"one_step_off_async": 1, "fully_async": settings.get("max_staleness", 0)}
    return int(bounds.get(settings.get("execution", "sync"), 0))


def _check_served(values: Mapping[str, Any]) -> None:
    """Refuse what would have the server say something else of a token than the trainer can, and sampling on where no
    server could. Raises FieldError."""
    if values.get("rollouts") != VLLM and staleness_bound(values):
        why = "vLLM sleeps while the trainer learns" if values["rollouts"] == COLOCATE else "the trainer samples itself"
        raise FieldError(
            f"{values['execution']!r} wants rollouts {VLLM}; with {values['rollouts']} {why}; expected sync",
            field="execution",
        )
    if not samples_elsewhere(values):
        return
    if staleness_bound(values) and values["num_iterations"] > 1:
        raise FieldError(
            f"{values['num_iterations']} steps on the same attempts make them older than any bound says, which "
            f"{values['execution']} keeps to; expected 1",
            field="num_iterations",
        )
    if values.get("processes", 1) > 1:
        raise FieldError(
            f"more than one do not share a vLLM server yet; expected 1 with rollouts {values['rollouts']}",
            field="processes",
        )
    whole = {"top_p": 1.0, "top_k": 0, "lora.lora_dropout": 0.0}
    for name, wanted in whole.items():
        if values.get(name, wanted) != wanted:
            raise FieldError(
                f"{values[name]!r} does not go with rollouts on vLLM, where each token is weighed by its whole "
                f"probability; expected {wanted}",
                field=name,
            )
