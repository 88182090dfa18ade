"""What vLLM is told of a base; that it does so is tried by `make test-serve`."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from workers.processes.vllm_process import adapted_layers
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
