"""LoRA adapters as a server loads them beside a base: which can be, and the two that Flywheel makes itself.

The *identity* adapter changes nothing (its B is zero). It stands for a version without an adapter, because the CPU
build of vLLM gives rows of the bare base somebody else's adapter when both are in one batch (docs/design/serving.md).
The *probe* changes every answer: whoever gets a part of it shows that.
"""

import json
import math
import os
import random
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from flywheel.agents import artifacts
from flywheel.agents.models import Artifact
from flywheel.edge.refusals import Refused

RANK_MAX = 512
TARGETS = ("q_proj", "v_proj", "qkv_proj", "query_key_value")
"""The layers that the two adapters sit in, by what their makers call them."""
PROBE_SCALE = 4
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_HEADS = ("lm_head", "embed_tokens", "embed_in", "embed_out", "wte")
_CHANGED_BASE = ("pissa", "olora", "loftq", "corda", "eva")
_MUST_BE_UNSET = {
    "modules_to_save": "whole modules are saved beside the adapter",
    "use_dora": "DoRA scales the weights, which a server of adapters cannot",
    "target_parameters": "single parameters are adapted, which a server of adapters cannot",
    "trainable_token_indices": "embeddings of single tokens are adapted",
    "lora_bias": "the adapter has biases",
    "rank_pattern": "ranks differ by layer",
    "alpha_pattern": "scales differ by layer, which vLLM would not read",
    "layer_replication": "layers are repeated",
}


class NotServable(Refused):
    """The adapter cannot be loaded beside a base at run time; the message says why."""

    kind = "not_servable"


def check(adapter: Artifact) -> None:
    """Raise NotServable, with every reason, unless a server can load the adapter beside its base."""
    for name in (CONFIG, WEIGHTS):
        if name not in adapter.manifest:
            raise NotServable(f"{adapter} has no {name}")
    try:
        config = json.loads(artifacts.read(adapter, CONFIG))
    except ValueError as error:
        raise NotServable(f"{adapter}: {CONFIG} is not JSON: {error}") from error
    if found := list(reasons(config if isinstance(config, dict) else {})):
        raise NotServable(f"{adapter} cannot be served beside its base: {'; '.join(found)}")


def reasons(config: dict[str, Any]) -> Iterator[str]:
    """Why an adapter of this configuration, as PEFT has it, cannot be served beside its base."""
    if config.get("peft_type") != "LORA":
        yield f"it is of type {config.get('peft_type')!r}, not LORA"
    for name, why in _MUST_BE_UNSET.items():
        if config.get(name):
            yield f"{why} ({name})"
    if config.get("bias", "none") != "none":
        yield f"biases were trained (bias is {config['bias']!r})"
    if str(config.get("init_lora_weights")).lower().startswith(_CHANGED_BASE):
        yield f"its start changed the base (init_lora_weights is {config['init_lora_weights']!r})"
    rank = config.get("r")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= RANK_MAX:
        yield f"its rank is {rank!r}, 1 to {RANK_MAX} can be"
    targets = config.get("target_modules")
    named = targets if isinstance(targets, list) else [targets]
    if heads := sorted({head for head in _HEADS for target in named if head in str(target)}):
        yield f"it adapts embeddings or the output layer ({', '.join(heads)})"


def identity(base: Artifact) -> Path:
    """A directory with the adapter that changes nothing. Raises NotServable for a base without known layers."""
    return _made(base, "identity")


def probe(base: Artifact) -> Path:
    """A directory with the adapter that changes every answer. Raises NotServable as `identity` does."""
    return _made(base, "probe")


def _made(base: Artifact, kind: str) -> Path:
    """Written once, whole or not at all, beside what is kept of artifacts."""
    place: Path = settings.HOME / "cache" / f"{kind}-{base.digest}"
    if place.is_dir():
        return place
    layers = _layers(base)
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=place.parent, prefix=".making-"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": 1,
        "lora_alpha": PROBE_SCALE,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
    }
    (aside / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    _write(aside / WEIGHTS, _tensors(layers, random.Random(base.digest), is_probe=kind == "probe"))
    try:
        os.replace(aside, place)
    except OSError:
        if not place.is_dir():  # somebody else may have made it meanwhile: the same bytes
            raise
        shutil.rmtree(aside)
    return place


def _layers(base: Artifact) -> dict[str, tuple[int, int]]:
    """The attention's projections by name, with how many numbers they give and take."""
    found: dict[str, tuple[int, int]] = {}
    for name in sorted(base.manifest):
        if name.endswith(".safetensors"):
            for tensor, shape in artifacts.shapes(base, name).items():
                layer = tensor.removesuffix(".weight")
                if layer != tensor and layer.rpartition(".")[2] in TARGETS and len(shape) == 2:
                    found[layer] = shape[0], shape[1]
    if not found:
        raise NotServable(f"{base} has no layer called {', '.join(TARGETS)}, so no identity adapter can be made for it")
    return found


def _tensors(
    layers: dict[str, tuple[int, int]], chance: random.Random, *, is_probe: bool
) -> Iterator[tuple[str, tuple[int, int], "array[float]"]]:
    for name, (out, into) in layers.items():
        a = array("f", (chance.gauss(0, 1 / math.sqrt(into)) for _ in range(into)))
        b = array("f", (chance.gauss(0, 1) if is_probe else 0.0 for _ in range(out)))
        yield f"base_model.model.{name}.lora_A.weight", (1, into), a
        yield f"base_model.model.{name}.lora_B.weight", (out, 1), b


def _write(path: Path, tensors: Iterator[tuple[str, tuple[int, int], "array[float]"]]) -> None:
    """A safetensors file: the length of a JSON header, the header, the numbers."""
    header: dict[str, Any] = {}
    content = bytearray()
    for name, shape, numbers in tensors:
        start = len(content)
        content += numbers.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(content)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + content)
