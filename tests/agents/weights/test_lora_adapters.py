"""Which adapters a server can load beside its base, and the two that Flywheel makes itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flywheel.agents import artifacts
from flywheel.agents.models import Artifact
from flywheel.agents.weights import lora_adapters

pytestmark = pytest.mark.django_db

PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "target_modules": ["q_proj", "v_proj"]}


def adapter(place: Path, **config: Any) -> Artifact:
    place.mkdir(exist_ok=True)
    (place / lora_adapters.CONFIG).write_text(json.dumps(PLAIN | config))
    save_file({"a": torch.zeros(1)}, place / lora_adapters.WEIGHTS)
    return artifacts.store(place, "adapter")


def base(place: Path, name: str = "model.layers.0.self_attn.q_proj.weight") -> Artifact:
    place.mkdir(exist_ok=True)
    save_file({name: torch.ones(6, 4), "model.norm.weight": torch.ones(4)}, place / "model.safetensors")
    return artifacts.store(place, "model")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"r": 512, "use_rslora": True, "init_lora_weights": "gaussian"},
        {"modules_to_save": None, "use_dora": False, "rank_pattern": {}, "target_modules": "q_proj|v_proj"},
    ],
)
def test_plain_lora_can_be_served(tmp_path: Path, config: dict[str, Any]) -> None:
    lora_adapters.check(adapter(tmp_path / "a", **config))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"peft_type": "IA3"}, "type 'IA3', not LORA"),
        ({"modules_to_save": ["score"]}, "whole modules are saved beside the adapter (modules_to_save)"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "biases were trained (bias is 'lora_only')"),
        ({"lora_bias": True}, "lora_bias"),
        ({"target_parameters": ["experts.w"]}, "target_parameters"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa_niter_4"}, "its start changed the base"),
        ({"target_modules": ["q_proj", "lm_head"]}, "embeddings or the output layer (lm_head)"),
        ({"target_modules": ["model.embed_tokens"]}, "(embed_tokens)"),
        ({"r": 513}, "its rank is 513, 1 to 512 can be"),
        ({"r": True}, "its rank is True"),
    ],
)
def test_what_no_server_can_load_is_refused_with_the_reason(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(lora_adapters.NotServable) as refused:
        lora_adapters.check(adapter(tmp_path / "a", **config))
    assert reason in str(refused.value)


def test_every_reason_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(lora_adapters.NotServable, match=r"use_dora.*; biases were trained.*; its rank is 0"):
        lora_adapters.check(adapter(tmp_path / "a", use_dora=True, bias="all", r=0))


def test_an_adapter_without_its_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(lora_adapters.NotServable, match=r"has no adapter_config\.json"):
        lora_adapters.check(artifacts.store(tmp_path, "adapter"))


def test_identity_changes_nothing_and_probe_does(tmp_path: Path) -> None:
    weights = base(tmp_path / "b")
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    changes = {}
    for make in (lora_adapters.identity, lora_adapters.probe):
        place = make(weights)
        assert make(weights) == place
        tensors = load_file(place / lora_adapters.WEIGHTS)
        assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
            f"{layer}.lora_A.weight": [1, 4],
            f"{layer}.lora_B.weight": [6, 1],
        }
        changes[make] = tensors[f"{layer}.lora_B.weight"] @ tensors[f"{layer}.lora_A.weight"]
        config = json.loads((place / lora_adapters.CONFIG).read_text())
        assert (config["r"], config["target_modules"]) == (1, ["q_proj"])
    assert not changes[lora_adapters.identity].any()
    assert changes[lora_adapters.probe].abs().max() > 0.1


def test_a_base_without_known_layers_has_none(tmp_path: Path) -> None:
    with pytest.raises(lora_adapters.NotServable, match="no layer called q_proj"):
        lora_adapters.identity(base(tmp_path / "b", "model.layers.0.mixer.weight"))
