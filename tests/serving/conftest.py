"""vLLM for real, with the reference policy, on whatever this machine has: `make test-serve`, never `make test`.

The server is started by the program that people start it with, once for all tests, and must be gone afterwards.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from django.conf import settings as django_settings
from safetensors.torch import load_file, save_file

from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.core import recipes
from flywheel.server.supervisor import die_with_parent
from tests.conftest import Build
from workers.processes import vllm_process
from workers.reference.build import POLICY

collect_ignore_glob = [] if os.environ.get("FLYWHEEL_TEST_SERVE") else ["test_*.py"]

START_S = 600.0
"""It takes a minute where nothing else runs."""
LONG = json.dumps({"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 4096})
"""A judge is asked in more words than the policy was made for. Only the table of positions gets longer by it;
`--max-model-len` alone would have vLLM read past the table's end."""


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a vLLM server of the reference policy."""
    if recipes.lacking(recipes.COLOCATE):
        pytest.skip("vLLM is not installed here, and could not be")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    program = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "workers.programs.vllm_server",
            "--port",
            url.rpartition(":")[2],
            "--",
            "--hf-overrides",
            LONG,
        ],
        cwd=recipes.SERVE.parent,
        env={**os.environ, "FLYWHEEL_HOME": str(django_settings.HOME)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    assert program.stdout is not None
    impatience = threading.Timer(START_S, program.terminate)
    impatience.start()
    try:
        line = program.stdout.readline()
        impatience.cancel()
        if not line:
            words = program.communicate(timeout=60)[1]
            if vllm_process.NO_INSTRUCTION in words:
                pytest.skip(words.strip())
            pytest.fail(f"it ended with {program.returncode}: {words}")
        assert line.startswith("vLLM is ready: base-"), line
        assert f"FLYWHEEL_VLLM_URL={url}" in line
        yield url
        program.send_signal(signal.SIGINT)
        words = program.communicate(timeout=60)[1]
        assert program.returncode == 0, words
        assert _listening(url) is False
    finally:
        impatience.cancel()
        if program.poll() is None:
            program.terminate()
            program.communicate(timeout=60)


def _listening(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


@pytest.fixture(autouse=True)
def _set(server: str, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """A server that compiles a schema leaves nothing of two cores for seconds: longer than the tests' short lease."""
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", server)
    settings.JOB_LEASE_SECONDS = 60


@pytest.fixture
def version(build: Build, tmp_path: Path) -> Callable[..., Version]:
    """`version()` is the reference policy; `version(3)` has an adapter, which the seed decides; more is its config."""

    def make(seed: int | None = None, **config: Any) -> Version:
        weights = artifacts.store(POLICY, "model")
        adapter = (
            None if seed is None else artifacts.store(make_adapter(tmp_path / f"a{seed}", seed, config), "adapter")
        )
        return build.version(base_model="flywheel-reference", weights=weights, adapter=adapter)

    return make


def make_adapter(place: Path, seed: int, more: dict[str, Any] | None = None, strength: float = 0.05) -> Path:
    """Plain LoRA of rank 2 on all projections, strong enough to change what the policy says."""
    place.mkdir(exist_ok=True)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "bias": "none"}
    (place / "adapter_config.json").write_text(json.dumps(config | {"target_modules": targets} | (more or {})))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(POLICY / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if layer.rpartition(".")[2] in targets:
            out, into = weight.shape
            a = torch.randn(2, into, generator=generator) / into**0.5
            tensors[f"base_model.model.{layer}.lora_A.weight"] = a
            tensors[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(out, 2, generator=generator) * strength
    save_file(tensors, place / "adapter_model.safetensors")
    return place
