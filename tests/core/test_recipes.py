"""The table of algorithms and settings: complete, consistent, and strict towards what it is given."""

import importlib.util
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core import recipes
from flywheel.core.errors import FieldError
from flywheel.core.recipes import ALGORITHMS, SETTINGS, validate
from flywheel.core.recipes.training_settings import GROUPS, OWN


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_are_valid(algorithm: str) -> None:
    assert validate(algorithm, {}) == recipes.defaults(algorithm)
    assert validate(algorithm, recipes.defaults(algorithm)) == recipes.defaults(algorithm)
    assert importlib.util.find_spec(f"workers.trainers.{ALGORITHMS[algorithm].trainer}")


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_an_algorithm_has_defaults_of_its_own_only_for_settings_that_it_has(algorithm: recipes.Algorithm) -> None:
    assert set(algorithm.own) <= {name for name, setting in SETTINGS.items() if algorithm.name in setting.algorithms}


def test_what_is_offered_follows_from_the_data_or_the_fix() -> None:
    assert [recipes.offered(data=data).name for data in ("sft", "pairs", "tasks", "thumbs", "scored")] == [
        "sft",
        "dpo",
        "grpo",
        "kto",
        "awr",
    ]
    assert [recipes.offered(fix=fix).name for fix in ("sft", "dpo", "rlvr")] == ["sft", "dpo", "grpo"]
    assert recipes.offered(fix="prompt").name == "sft"


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_settings_are_whole(setting: recipes.Setting) -> None:
    assert set(setting.algorithms) <= set(ALGORITHMS)
    assert setting.why.endswith(".")
    assert setting.type in (int, float, bool, str)
    assert bool(setting.choices) == (setting.type is str)


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ("a2c", {}, "algorithm: 'a2c' is unknown; expected one of sft, dpo, grpo"),
        ("sft", {"steps": 0}, "steps: 0 is out of range; expected a whole number from 1 to 1e+06"),
        ("sft", {"steps": 1.5}, "steps: 1.5 is not a whole number"),
        ("sft", {"steps": True}, "steps: True is not a whole number"),
        ("sft", {"steps": "10"}, "steps: '10' is not a whole number"),
        ("sft", {"learning_rate": float("nan")}, "learning_rate: nan is not a number"),
        ("sft", {"lr_schedule": "steep"}, "lr_schedule: 'steep' is not right; expected one of linear, cosine"),
        ("sft", {"temperature": 1}, "temperature: does not apply to SFT, only to grpo"),
        ("sft", {"batch": 1}, "batch: is no setting of SFT; "),
        ("sft", {"micro_batch_size": 5}, "micro_batch_size: 5 does not divide batch_size 32"),
        ("kto", {"batch_size": 1}, "batch_size: 1 is too few for KTO"),
        ("kto", {"micro_batch_size": 1}, "micro_batch_size: 1 is too few for KTO"),
        ("grpo", {"batch_size": 20}, "batch_size: 20 is no multiple of num_generations 8; 16 would be right"),
        ("grpo", {"batch_size": 4}, "batch_size: 4 is no multiple of num_generations 8; 8 would be right"),
        ("ppo", {"batch_size": 5}, "batch_size: 5 is no multiple of num_generations 2; 4 would be right"),
        ("ppo", {"gae_lambda": 1.1}, "gae_lambda: 1.1 is out of range; expected a number from 0 to 1"),
        ("ppo", {"dynamic_sampling": True}, "dynamic_sampling: does not apply to PPO, only to grpo"),
        ("grpo", {"value_clip": 0.1}, "value_clip: does not apply to GRPO, only to ppo"),
        ("importance_sampling", {"scale_rewards": "group"}, "scale_rewards: does not apply to Importance sampling"),
        ("grpo", {"epsilon_high": 0.1}, "epsilon_high: 0.1 is below epsilon"),
        ("grpo", {"rollouts": "sglang"}, "rollouts: 'sglang' is not right; expected one of trainer, vllm, colocate"),
        ("rloo", {"step_rewards": True}, "step_rewards: does not apply to RLOO, only to grpo"),
        ("rloo", {"scale_rewards": "group"}, "scale_rewards: does not apply to RLOO"),
        ("grpo", {"rollouts": "vllm", "top_p": 0.9}, "top_p: 0.9 does not go with rollouts on vLLM"),
        ("ppo", {"rollouts": "vllm", "lora.lora_dropout": 0.1}, "lora.lora_dropout: 0.1 does not go with rollouts"),
        ("grpo", {"rollouts": "vllm", "processes": 2}, "processes: more than one do not share a vLLM server"),
        ("distillation", {"teacher_from": "vllm", "temperature": 0.7}, "temperature: 0.7 does not go with"),
        ("grpo", {"teacher_from": "vllm"}, "teacher_from: does not apply to GRPO, only to distillation"),
        ("sft", {"sharding": "fsdp2"}, "sharding: 'fsdp2' divides a run among processes, and there is 1"),
        ("sft", {"sharding": "zero3"}, "sharding: 'zero3' is not right; expected one of none, fsdp2, deepspeed"),
        ("ppo", {"sharding": "fsdp2"}, "sharding: does not apply to PPO, only to sft, dpo, grpo"),
        ("dpo", {"sharding": "deepspeed", "processes": 2, "device": "cpu"}, "sharding: 'deepspeed' needs GPUs"),
        (
            "grpo",
            {"rollouts": "vllm", "execution": "fully_async", "max_staleness": 0},
            "max_staleness: 0 is out of range; expected a whole number from 1 to 16",
        ),
        (
            "grpo",
            {"execution": "fully_async"},
            "execution: 'fully_async' wants rollouts vllm; with trainer the trainer",
        ),
        (
            "ppo",
            {"rollouts": "colocate", "execution": "one_step_off_async"},
            "execution: 'one_step_off_async' wants rollouts vllm; with colocate vLLM sleeps while the trainer learns; "
            "expected sync",
        ),
        ("grpo", {"rollouts": "colocate", "top_k": 5}, "top_k: 5 does not go with rollouts on vLLM"),
        ("rloo", {"rollouts": "colocate", "processes": 2}, "processes: more than one do not share a vLLM server"),
        (
            "grpo",
            {"rollouts": "colocate", "vllm_memory_share": 1.0},
            "vllm_memory_share: 1.0 is out of range; expected a number from 0.05 to 0.9",
        ),
        (
            "ppo",
            {"rollouts": "vllm", "execution": "one_step_off_async", "num_iterations": 2},
            "num_iterations: 2 steps on the same attempts make them older",
        ),
        ("grpo", {"trl.output_dir": "/"}, "trl.output_dir: '/' cannot be set"),
        ("grpo", {"trl.trust_remote_code": True}, "trl.trust_remote_code: True cannot be set"),
        ("grpo", {"trl.loss_type": "dapo"}, "trl.loss_type: 'dapo' is set through the algorithm"),
        ("grpo", {"trl.learning_rate": 1}, "trl.learning_rate: 1 is set through learning_rate"),
        ("grpo", {"trl.generation_kwargs": {"a": 1}}, "trl.generation_kwargs: {'a': 1} cannot be set"),
        ("grpo", {"trl.anything": {"a": 1}}, "trl.anything: {'a': 1} is not a text"),
    ],
)
def test_refuses(algorithm: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        validate(algorithm, settings)
    assert str(caught.value).startswith(said)


def test_whole_numbers_become_the_type() -> None:
    values = validate("grpo", {"steps": 10.0, "temperature": 1})
    assert (type(values["steps"]), type(values["temperature"])) == (int, float)


def test_library_fields_pass() -> None:
    values = validate("sft", {"trl.optim": "sgd", "lora.target_modules": ["q_proj"], "lora.use_rslora": True})
    assert values["lora.target_modules"] == ["q_proj"]


def test_the_recipes_that_are_easily_got_wrong() -> None:
    assert validate("cispo", {})["epsilon_high"] == 5.0
    assert validate("dapo", {})["epsilon_high"] == 0.28
    assert validate("dapo", {})["mask_truncated_completions"]
    assert validate("dr_grpo", {})["scale_rewards"] == "none"
    assert validate("importance_sampling", {})["epsilon_high"] == 2.0
    assert ALGORITHMS["gspo"].fixed["importance_sampling_level"] == "sequence"


def test_attempts_are_as_old_as_the_mode_allows() -> None:
    bounds = [
        recipes.staleness_bound({"execution": mode, "max_staleness": 3}) for mode in SETTINGS["execution"].choices
    ]
    assert (bounds, recipes.staleness_bound({})) == ([0, 1, 3], 0)


def test_big_models_learn_slower() -> None:
    assert recipes.defaults("sft", parameters=7_000_000_000)["learning_rate"] == 1e-5
    assert recipes.defaults("grpo", parameters=7_000_000_000, mode="lora")["learning_rate"] == 1e-5
    assert recipes.defaults("sft", parameters=700_000)["learning_rate"] == 1e-3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_big_models_are_proposed_what_fits_into_memory(algorithm: str) -> None:
    small, big = (recipes.defaults(algorithm, parameters=count) for count in (700_000, 1_500_000_000))
    assert (small["micro_batch_size"], small["gradient_checkpointing"]) == (0, False)
    shares = (0.0, 0.1) if ALGORITHMS[algorithm].makes_policy else (0.2, 0.2)
    assert (small["validation_share"], big["validation_share"]) == shares
    assert (big["micro_batch_size"], big["gradient_checkpointing"]) == (4, True)
    assert big.get("max_completion_length", 512) == 512
    assert recipes.validate(algorithm, big) == big, "what is proposed can be launched"
    assert big.keys() == small.keys()
    assert [recipes.usual_mode(count) for count in (None, 700_000, 1_500_000_000)] == ["full", "full", "lora"]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**7), 10**7),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["linear", "best", "", "none", *(choice for each in SETTINGS.values() for choice in each.choices)]),
)


@given(st.sampled_from(sorted(SETTINGS)), VALUES)
def test_a_settings_schema_takes_what_the_setting_takes(name: str, value: Any) -> None:
    def is_taken() -> bool:
        try:
            SETTINGS[name].check(value)
        except FieldError:
            return False
        return True

    schema = SETTINGS[name].schema()
    assert jsonschema.Draft202012Validator(schema).is_valid(value) == is_taken()


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_an_algorithms_schema_has_its_settings_and_no_others(algorithm: str) -> None:
    described = jsonschema.Draft202012Validator(recipes.schema(algorithm))
    assert described.is_valid(recipes.defaults(algorithm) | {"trl.adam_beta2": 0.9, "lora.lora_dropout": None})
    others = {name: SETTINGS[name].default for name in SETTINGS.keys() - recipes.defaults(algorithm).keys()}
    wrong = others | {"verbosity": 1, "trlx": 1}
    assert not any(described.is_valid({name: value}) for name, value in wrong.items())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_form_puts_few_settings_forward_and_every_other_is_in_a_group(name: str) -> None:
    algorithm = ALGORITHMS[name]
    own = [each for each in SETTINGS.values() if name in each.algorithms]
    shown = [each.name for each in own if each.is_shown(algorithm)]
    assert {"steps", "learning_rate", "validation_share"} <= set(shown)
    assert len(shown) <= 5
    assert {each.group for each in own} <= {OWN, *GROUPS}


def test_the_groups_name_settings_that_there_are_each_once() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert set(named) <= SETTINGS.keys()
    assert len(named) == len(set(named))
