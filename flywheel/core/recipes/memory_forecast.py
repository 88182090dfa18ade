"""Peak memory that a training run will need, by its parts, and the arithmetic of a step.

The formulas are of decoders as Llama, Qwen and Mistral are built, trained by TRL in torch
(`docs/design/forecast.md` derives them and compares them with measured runs). Their sources: weights, gradients and
Adam's two moments at 4 bytes each are mixed-precision training's (Rajbhandari et al., ZeRO,
https://arxiv.org/abs/1910.02054, section 3.1); activations are counted layer by layer as in Korthikanti et al.
(https://arxiv.org/abs/2205.05198, section 4.1), but for RMSNorm, a gated MLP and fused attention; arithmetic is 2
operations a weight and token forward and 4 backward (Kaplan et al., https://arxiv.org/abs/2001.08361, table 1).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from flywheel.core.recipes import COLOCATE
from flywheel.core.recipes.training_algorithms import ALGORITHMS

Device = Literal["cpu", "cuda"]

FLOAT = 4
"""Bytes of a weight that learns, of its gradient and of each of Adam's moments."""
HALF = 2
FOUR_BITS = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a weight in 4 bits, with the scales of each 64 weights and of each 256 scales (Dettmers et al., QLoRA,
https://arxiv.org/abs/2305.14314, section 3)."""
PROCESS = 580 * 2**20
"""Bytes of a trainer on a CPU before it loads a model: Python, torch, transformers and TRL, as measured. A GPU has none
of these; what CUDA takes for itself is not among what torch allocates."""
ALLOCATOR: Mapping[Device, float] = {"cpu": 1.15, "cuda": 1.0}
"""By how much activations take more than their sizes: on a CPU the C library keeps gaps between tensors of a few
megabytes, as measured; what torch allocated on a GPU has none."""
TILE = (4096, 32_768)
"""Tokens and vocabulary of the pieces in which TRL 1.16 works out log-probabilities (`trl.kernels.chunked_logprob`)."""
TILES: Mapping[Device, int] = {"cpu": 7, "cuda": 1}
"""Copies of a piece that are alive going back: torch makes one an operation, the GPU's kernel works in place."""
ANSWER_COPIES = {False: 4, True: 8}
"""Copies of the vocabulary's scores while a token is chosen, by whether it is drawn at random."""
ASKED_MOST = 64
"""Held-out tasks that are asked on the way, at most."""
ROOM = 0.9
"""Share of a machine's memory that a proposal may fill."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What a `config.json` calls the number of its experts."""


class UnknownShapes(Exception):
    """The model's configuration does not say what a forecast needs; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of a model that a forecast needs."""

    parameters: int
    layers: int
    hidden: int
    inner: int
    """Width of the MLP."""
    queries: int
    """Width of all query heads together."""
    keys: int
    """Width of all key heads together."""
    vocabulary: int
    is_tied: bool
    """Whether the output layer's weights are the embedding's."""
    has_head_norms: bool
    """Whether queries and keys are normalised, as Qwen3 does."""
    projections: Sequence[tuple[int, int]]
    """Inputs and outputs of the linear layers that LoRA adapts."""
    is_mixture: bool = False
    """Whether its layers are mixtures of experts, of which the weights are known here and not what computing takes."""

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> "Shapes":
        """Read a `config.json` and the tensors' shapes by name. Raises UnknownShapes."""
        text = config.get("text_config") or config
        names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        numbers: dict[str, int] = {}
        for name in names:
            value = text.get(name)
            if not isinstance(value, int) or value < 1:
                raise UnknownShapes(f"config.json has no {name}")
            numbers[name] = value
        heads = numbers["num_attention_heads"]
        width = text.get("head_dim") or numbers["hidden_size"] // heads
        matrices = [
            shape
            for name, shape in tensors.items()
            if len(shape) == 2 and not any(part in name for part in ("embed", "lm_head", "wte", "wpe"))
        ]
        return cls(
            parameters=sum(math.prod(shape) for shape in tensors.values()),
            layers=numbers["num_hidden_layers"],
            hidden=numbers["hidden_size"],
            inner=numbers["intermediate_size"],
            queries=heads * width,
            keys=(text.get("num_key_value_heads") or heads) * width,
            vocabulary=numbers["vocab_size"],
            is_tied=not any("lm_head" in name for name in tensors),
            has_head_norms=any("q_norm" in name for name in tensors),
            projections=[(shape[1], shape[0]) for shape in matrices],
            is_mixture=any(isinstance(text.get(name), int) and text[name] > 1 for name in EXPERTS),
        )

    @property
    def head(self) -> int:
        """Weights of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def in_linear_layers(self) -> int:
        """Weights of every linear layer but the output's."""
        return sum(inputs * outputs for inputs, outputs in self.projections)

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter on every linear layer but the output's."""
        return sum(rank * (inputs + outputs) for inputs, outputs in self.projections)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the rows, or of the prompts where the policy answers itself."""

    typical: int
    longest: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is forecast. `settings` are complete."""

    shapes: Shapes
    algorithm: str
    settings: Mapping[str, Any]
    tuning: Mapping[str, Any]
    lengths: Lengths
    device: Device = "cpu"
    held_out: int = ASKED_MOST
    """Held-out tasks."""
    teacher: int = 0
    """Weights of the teacher; 0 for none."""
    memory: int = 0
    """Bytes of the device; 0 where nobody has told."""

    @property
    def is_lora(self) -> bool:
        """Whether an adapter is trained, on whatever base."""
        return bool(self.tuning["mode"] != "full")

    @property
    def is_in_four_bits(self) -> bool:
        return bool(self.tuning["mode"] == "qlora")

    @property
    def is_in_half(self) -> bool:
        """Whether the base, and what it makes of a token, has 16 bits."""
        return self.device == "cuda" and self.tuning["mode"] == "lora"

    @property
    def practises(self) -> bool:
        return ALGORITHMS[self.algorithm].practises

    @property
    def processes(self) -> int:
        return int(self.settings.get("processes", 1))

    @property
    def shards(self) -> int:
        """Processes that divide gradients and optimizer among themselves; 1 where each has them all."""
        return self.processes if self.settings.get("sharding", "none") != "none" else 1

    @property
    def divides_weights(self) -> bool:
        return bool(self.settings.get("sharding") == "fsdp2")

    @property
    def share(self) -> int:
        """Rows, pairs or attempts of each batch that a process has."""
        return int(self.settings["batch_size"]) // self.processes

    @property
    def micro(self) -> int:
        """Rows, pairs or attempts that a process learns from at once."""
        return int(self.settings["micro_batch_size"] or self.share)

    @property
    def sequences(self) -> int:
        """Sequences in a row: a pair has two."""
        return 2 if ALGORITHMS[self.algorithm].data == "pairs" else 1

    @property
    def has_reference(self) -> bool:
        """Whether a second copy of the weights is kept; a LoRA's start is its base, which is there."""
        if self.is_lora:
            return False
        return not self.practises if self.algorithm in ("dpo", "kto") else bool(self.settings.get("beta"))

    @property
    def learning(self) -> int:
        """Weights that learn."""
        return self.shapes.adapter(self.tuning["rank"]) if self.is_lora else self.shapes.parameters

    def tokens(self, of_row: int) -> int:
        """Tokens of a sequence that is learnt from, given those of its row."""
        if self.practises:
            return of_row + int(self.settings["max_completion_length"])
        most = int(self.settings["max_length"])
        return most if self.settings.get("trl.packing") else min(of_row, most)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Peak memory of a process in bytes, by its parts, largest first."""

    moment: str
    """When the peak is reached: `learning`, `updating`, `answering`, `sampling` or `loading`."""
    parts: Mapping[str, int]
    operations: float
    """Floating-point operations of a process in a step."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        """`{"moment", "total", "operations", "parts": [{"name", "bytes"}]}`"""
        parts = [{"name": name, "bytes": size} for name, size in self.parts.items()]
        return {"moment": self.moment, "total": self.total, "operations": self.operations, "parts": parts}


def forecast(plan: Plan) -> Forecast:
    """Forecast the peak: the largest of the moments that a run passes through."""
    kept, whole = _kept(plan), _weights(plan)
    moments = {
        "learning": kept | _learning(plan),
        "updating": kept | _updating(plan),
        "answering": kept | {"weights": whole + (kept["weights"] if plan.divides_weights else 0)} | _answering(plan),
        "loading": {"libraries": kept["libraries"], "weights": whole, "model file": plan.shapes.parameters * FLOAT},
    }
    if plan.device == "cuda":
        moments.pop("loading")  # the file is read on the CPU's side
        if plan.settings.get("rollouts") == COLOCATE:
            moments["sampling"] = kept | {"vLLM": int(plan.memory * plan.settings["vllm_memory_share"])}
    moment, parts = max(moments.items(), key=lambda item: sum(item[1].values()))
    ordered = dict(sorted(((name, size) for name, size in parts.items() if size), key=lambda item: -item[1]))
    return Forecast(moment, ordered, _operations(plan))


def _kept(plan: Plan) -> dict[str, int]:
    """Parts that are there from the first step to the last."""
    parts = plan.processes if plan.divides_weights else 1
    return {
        "libraries": PROCESS if plan.device == "cpu" else 0,
        "weights": _weights(plan) // parts,
        "optimizer": plan.learning * 2 * FLOAT // plan.shards,
        "reference model": plan.shapes.parameters * FLOAT // parts if plan.has_reference else 0,
        "teacher": plan.teacher * FLOAT,
        "gradients to exchange": plan.learning * FLOAT if plan.processes > plan.shards else 0,
    }


def _weights(plan: Plan) -> int:
    """Bytes of all weights, the adapter's too."""
    weights = float(plan.shapes.parameters * (HALF if plan.is_in_half else FLOAT))
    if plan.is_in_four_bits:
        weights -= plan.shapes.in_linear_layers * (FLOAT - FOUR_BITS)  # the others are kept in 32 bits
    return int(weights) + (plan.learning * FLOAT if plan.is_lora else 0)


def _learning(plan: Plan) -> dict[str, int]:
    """Parts where the backward pass begins: every activation is there, a layer's gradients, and the loss's own memory.

    Gradients are there from the micro-batch before; in the first one only the output layer's.
    """
    shapes = plan.shapes
    length = plan.tokens(plan.lengths.longest)
    tokens = plan.micro * plan.sequences * length
    of_layer = _layer(plan, length) * tokens
    going_back = (4 * shapes.inner + 4 * shapes.hidden) * tokens * FLOAT
    layers = of_layer * shapes.layers
    if plan.settings["gradient_checkpointing"]:
        layers = tokens * shapes.hidden * FLOAT * shapes.layers + of_layer
    around = tokens * shapes.hidden * FLOAT * 7  # the embedding, the last norm, what the loss copies, its gradients
    scored = min(tokens, TILE[0]) * min(shapes.vocabulary, TILE[1]) * FLOAT * TILES[plan.device]
    head = 0 if plan.is_lora else shapes.head * FLOAT
    has_earlier = plan.micro < plan.share
    casts = shapes.parameters * HALF if plan.device == "cuda" and not plan.is_lora else 0
    if plan.is_in_four_bits:  # a matrix is written out for its product
        casts = max(inputs * outputs for inputs, outputs in shapes.projections) * HALF
    return {
        "activations": int((layers + going_back + around) * ALLOCATOR[plan.device]),
        "loss": scored + head,
        "gradients": plan.learning * FLOAT // plan.shards if has_earlier else 0,
        "16-bit copies": casts,
    }


def _updating(plan: Plan) -> dict[str, int]:
    """Parts at the end of the backward pass and in the step: all gradients, and the embedding's before it is added."""
    embedding = 0 if plan.is_lora else plan.shapes.head * FLOAT
    return {"gradients": plan.learning * FLOAT // plan.shards + embedding}


def _answering(plan: Plan) -> dict[str, int]:
    """Parts while answers are written: keys and values of every token so far, the prompts' one pass, and the scores."""
    shapes, settings = plan.shapes, plan.settings
    asked = plan.share if plan.practises else min(ASKED_MOST, plan.held_out)
    at_once = min(int(settings["eval_batch_size"]), max(1, asked))
    number = HALF if plan.is_in_half else FLOAT
    prompt = plan.lengths.longest
    if not ALGORITHMS[plan.algorithm].makes_policy:  # it is only read
        return {"answers": at_once * prompt * (3 * shapes.inner + 6 * shapes.hidden) * number}
    cache = 2 * shapes.layers * shapes.keys * (prompt + int(settings["max_completion_length"])) * at_once * number
    prefill = at_once * prompt * (3 * shapes.inner + 6 * shapes.hidden) * number
    scores = at_once * shapes.vocabulary * FLOAT * ANSWER_COPIES[plan.practises]
    return {"answers": cache + cache // max(1, shapes.layers) + max(prefill, scores)}


def _layer(plan: Plan, length: int) -> int:
    """Bytes of a layer's activations for each token of so long a sequence that torch keeps for the backward pass.

    Of two norms the input, the normalised input and the output, which is the linear layers' input; of attention the
    queries, the keys and values of every query head and the result; of the MLP gate, up, the activated gate and their
    product. Each layer keeps a mask of its own, a number for every pair of tokens. A frozen norm needs no normalised
    input. Under autocast what enters a linear layer is kept in 16 bits, and
    what a norm works out in 32.
    """
    shapes = plan.shapes
    norms = (4 if plan.is_lora else 6) * shapes.hidden
    if shapes.has_head_norms:
        norms += (1 if plan.is_lora else 2) * (shapes.queries + shapes.keys)
    rest = 4 * shapes.queries + 4 * shapes.inner + length
    if plan.is_lora:
        rest += 7 * int(plan.tuning["rank"])
    if plan.device == "cpu":
        return (norms + rest) * FLOAT
    return norms * FLOAT + rest * HALF


def _operations(plan: Plan) -> float:
    """Operations of a step: 2 a weight and token for each pass forward, as many again for the gradients of the inputs
    and for those of the weights that learn; and attention's 4 a layer, width and pair of tokens. What checkpointing
    computes once more are the layers, without the output layer, and each only up to what its last matrix takes in:
    there torch's checkpoint stops, unless an adapter on that matrix wants its own input too."""
    shapes, settings = plan.shapes, plan.settings
    length = plan.tokens(plan.lengths.typical)
    tokens = plan.share * plan.sequences * length
    layers = 2.0 * tokens * shapes.in_linear_layers + 2.0 * shapes.layers * shapes.queries * tokens * length
    forward = layers + 2.0 * tokens * shapes.head
    again = layers - (0.0 if plan.is_lora else 2.0 * tokens * shapes.layers * shapes.inner * shapes.hidden)
    passes = 2.0 if plan.is_lora else 3.0
    passes += again / forward if settings["gradient_checkpointing"] else 0.0
    passes += plan.algorithm in ("dpo", "kto") or bool(settings.get("beta"))
    passes += plan.practises  # its own attempts are written first
    passes += plan.teacher / shapes.parameters  # which reads them once
    return float(forward * passes)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings that would fit, those that differ, and what they need."""

    settings: Mapping[str, Any]
    mode: str
    """`lora` or `qlora` where all weights, or a LoRA's base, do not fit; empty where it stays."""
    total: int


def proposal(plan: Plan, memory: int, modes: Sequence[str] = ("lora",)) -> Proposal | None:
    """Propose the least change with which a run fits into so many bytes; None where nothing does.

    A smaller micro-batch costs nothing but some speed, checkpointing a third of it, and LoRA, or QLoRA, is another
    method: they are tried in that order, as far as they are among the `modes`.
    """
    for changed in _changes(plan, modes):
        total = forecast(changed).total
        if total <= ROOM * memory:
            names = ("micro_batch_size", "gradient_checkpointing", "eval_batch_size")
            settings = {name: changed.settings[name] for name in names}
            differing = {name: value for name, value in settings.items() if plan.settings[name] != value}
            mode = changed.tuning["mode"]
            return Proposal(differing, mode if mode != plan.tuning["mode"] else "", total)
    return None


def _changes(plan: Plan, modes: Sequence[str]) -> Iterator[Plan]:
    least = 2 if plan.algorithm == "kto" else 1
    sizes = [size for size in range(plan.micro, 0, -1) if plan.share % size == 0 and size >= least]
    lighter = modes if plan.tuning["mode"] == "full" else () if plan.is_in_four_bits else set(modes) - {"lora"}
    tunings = [plan.tuning, *({"rank": 8, "alpha": 16, **plan.tuning, "mode": mode} for mode in lighter)]
    for tuning in tunings:
        for checkpointing in sorted({bool(plan.settings["gradient_checkpointing"]), True}):
            for size in sizes:
                asked = min(int(plan.settings["eval_batch_size"]), max(8, size))
                for answers in (int(plan.settings["eval_batch_size"]), asked):
                    settings = {
                        "micro_batch_size": plan.settings["micro_batch_size"] if size == plan.micro else size,
                        "gradient_checkpointing": checkpointing,
                        "eval_batch_size": answers,
                    }
                    yield replace(plan, tuning=tuning, settings={**plan.settings, **settings})
