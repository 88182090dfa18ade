"""What vLLM is told of a base; that it does so is tried by `make test-serve`."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from workers.processes import vllm_process
from workers.processes.vllm_process import adapted_layers, command
from workers.reference.build import POLICY


def test_adapters_change_linear_layers_and_neither_embeddings_nor_the_output_layer(tmp_path: Path) -> None:
    linear = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert adapted_layers(POLICY) == linear
    matrix, vector = np.zeros((2, 2), np.float32), np.zeros(2, np.float32)
    one = {"model.embed_tokens.weight": matrix, "lm_head.weight": matrix, "model.layers.0.mlp.gate.weight": matrix}
    two = {
        "model.layers.0.input_layernorm.weight": vector,
        "model.layers.0.mlp.experts.0.w1.weight": matrix,
        "model.layers.0.mixer.A_log": matrix,
        "model.layers.0.mixer.in_proj.weight": matrix,
        "model.layers.0.mixer.in_proj.bias": vector,
    }
    save_file(one, tmp_path / "one.safetensors")
    save_file(two, tmp_path / "two.safetensors")
    assert adapted_layers(tmp_path) == ["experts", "gate", "in_proj", "w1"]


@pytest.mark.parametrize(
    ("config", "is_cpu", "is_whole"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"layer_types": ["full_attention", "sliding_attention"]}, True, True),
        ({"text_config": {"layer_types": ["linear_attention", "full_attention"]}}, True, False),
        ({"layer_types": ["conv", "full_attention"]}, True, False),
        ({"mamba_d_ssm": 4}, True, False),
        ({"model_type": "mamba2"}, True, False),
    ],
    ids=["plain", "on a GPU", "windows", "linear", "convolutions", "beside attention", "alone"],
)
def test_prompts_are_read_in_one_step_on_cpus_where_the_base_can(
    config: dict[str, Any], is_cpu: bool, is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["X"], "model_type": "qwen3"} | config))
    monkeypatch.setattr(vllm_process, "_python", lambda: Path(sys.executable))
    monkeypatch.setattr(vllm_process, "is_cpu_build", lambda: is_cpu)
    words = command(tmp_path, "base", "http://127.0.0.1:8100", rank=8, slots=2, kept=4)
    assert ("--no-enable-chunked-prefill" in words) is is_whole
