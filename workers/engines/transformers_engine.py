"""A policy asked in this process, through transformers: the embedded default, the same on CPU and GPU.

Answers are reproducible: see `generation`. (Another device or precision may round another way and then tell another
story; that is true of every engine.)

Only safetensors are read, nothing is fetched, no code that came with a model is run.
"""

import json
import math
import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

# Set before transformers is imported, which reads them once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.generation.stopping_criteria import StoppingCriteria
from transformers.utils import logging as transformers_logging

from flywheel.core.envs.policy_rollouts import UNASKED, ChatRequest, ChatResponse, EngineError
from workers.engines import context_length, generation
from workers.engines.streamed_answers import Call, Heard, StreamedAnswer
from workers.engines.tool_calls import answer_of, prompt_tokens, templated
from workers.processes import model_process

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

SMALL = 5_000_000
"""Below so many parameters one CPU thread is as quick as several, and where other work shares the cores twelve times
quicker: the threads wait for each other at every operation."""
_THREADS = torch.get_num_threads()


class TooLong(ValueError):
    """The conversation and the answer asked for do not fit into the model's context."""


class TransformersEngine:
    def __init__(
        self,
        model_dir: Path,
        adapter_dir: Path | None = None,
        batch_size: int = 64,
        device: str = "auto",
        dtype: str = "auto",
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`device`: auto, cpu, cuda, cuda:1, …; `dtype`: auto (what the model's configuration says), float32, bfloat16,
        float16; `chat_template_kwargs`: settings of the chat template, such as `{"enable_thinking": False}`."""
        self.batch_size = batch_size
        with model_process.mapping(model_dir):
            self._model = _load_model(model_dir, _dtype(dtype))
        if adapter_dir is not None:
            _add_adapter(self._model, adapter_dir)
        self._tokenizer = load_tokenizer(model_dir, chat_template_kwargs)
        self._device = _device(device)
        self._model.to(self._device).eval()
        if self._device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1 if self._model.num_parameters() < SMALL else _THREADS)
        self._room = context_length.room_of(self._model)
        self._stop_ids = _stop_ids(self._model, self._tokenizer)

    @property
    def is_closed(self) -> bool:
        return self._model is None

    @property
    def _pad_id(self) -> int:
        pad = self._tokenizer.pad_token_id
        return cast(int, pad if pad is not None else min(self._stop_ids))

    def chat(
        self,
        requests: Sequence[ChatRequest],
        rendered: Callable[[int], None] | None = None,
        spoken: Sequence[StreamedAnswer] = (),
    ) -> list[ChatResponse]:
        """A response's latency is its share of its batch: the batch's wall time divided by its requests.

        `rendered` is called after each request that has become tokens, with how many are left. With `spoken`, one for
        each request, they are told the tokens as they are drawn.
        """
        responses: list[ChatResponse | None] = [None] * len(requests)
        prompts: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            try:
                prompts[index] = self._encode(request)
            except ValueError as error:
                responses[index] = ChatResponse(error=str(error), is_too_long=isinstance(error, TooLong))
            if rendered is not None:
                rendered(len(requests) - index - 1)
        # Neighbours in length share a batch, so that little is padded.
        order = sorted(prompts, key=lambda index: len(prompts[index]))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            answers = self._generate(
                [requests[index] for index in batch],
                [prompts[index] for index in batch],
                [spoken[index] for index in batch] if spoken else (),
            )
            for index, answer in zip(batch, answers, strict=True):
                responses[index] = answer
        return [response for response in responses if response is not None]

    def speak(
        self,
        calls: Sequence[Call],
        tell: Callable[[Heard], None],
        gone: Container[int],
        rendered: Callable[[int], None] | None = None,
    ) -> None:
        """Tell of each call its answer as it comes, and its end as soon as it has come; nothing more is drawn for those
        in `gone`."""
        spoken = [StreamedAnswer(self._tokenizer, call, tell, gone) for call in calls]
        for one, answer in zip(spoken, self.chat([call.request for call in calls], rendered, spoken), strict=True):
            one.conclude(answer)  # where it was not asked

    def close(self) -> None:
        self._model = None  # which also ends what another thread generates
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _encode(self, request: ChatRequest) -> list[int]:
        ids = prompt_tokens(self._tokenizer, [message.to_openai() for message in request.messages], request.tools)
        if problem := context_length.overflow(len(ids), request.sampling.max_tokens, self._room):
            raise TooLong(problem)
        return ids

    @torch.inference_mode()
    def _generate(
        self, requests: Sequence[ChatRequest], prompts: Sequence[Sequence[int]], spoken: Sequence[StreamedAnswer] = ()
    ) -> list[ChatResponse]:
        model, unasked = self._model, [ChatResponse(error=UNASKED)] * len(requests)
        if model is None:
            return unasked
        started = time.monotonic()

        def read(row: int, tokens: Sequence[int]) -> ChatResponse:
            since_ms = (time.monotonic() - started) * 1000
            return answer_of(self._tokenizer, prompts[row], tokens, self._stop_ids, since_ms, requests[row].tools)

        telling = [generation.Telling(spoken, self._stop_ids, read)] if spoken else []
        try:
            output = generation.draw(
                model, prompts, requests, ends=self._stop_ids, pad=self._pad_id, until=[_Closed(self), *telling]
            )
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"{len(prompts)} conversations of {max(map(len, prompts))} tokens do not fit into the memory of "
                f"{self._device}; a smaller batch_size than {self.batch_size} is needed"
            ) from error
        if self.is_closed:
            return unasked
        share_ms = (time.monotonic() - started) * 1000 / len(prompts)
        return [
            self._answer(prompt, drawn, request, share_ms)
            for drawn, prompt, request in zip(output, prompts, requests, strict=True)
        ]

    def _answer(
        self, prompt: Sequence[int], drawn: generation.Drawn, request: ChatRequest, latency_ms: float
    ) -> ChatResponse:
        answer = answer_of(self._tokenizer, prompt, drawn.tokens, self._stop_ids, latency_ms, request.tools)
        if not request.tells_tokens:
            return answer
        return replace(answer, token_ids=tuple(drawn.tokens), logprobs=tuple(drawn.logprobs))


class _Closed(StoppingCriteria):
    """Ends all rows when nobody wants them any more."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self._engine.is_closed, device=input_ids.device)


# Loading --------------------------------------------------------------------------------------------------------------


def _load_model(model_dir: Path, dtype: Any) -> Any:
    _require(model_dir, "config.json", "a model's configuration")
    if not any(model_dir.glob("*.safetensors")):
        others = sorted(path.name for path in model_dir.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".ckpt"})
        hint = f"; {', '.join(others)} cannot be loaded safely, save them as safetensors" if others else ""
        raise EngineError(f"{model_dir} holds no *.safetensors file{hint}")
    try:
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model_dir,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, in a sentence of ours
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, SafetensorError) as error:
        raise EngineError(f"the model in {model_dir} does not load: {error}") from error
    model, info = loaded
    for name, found, wanted in sorted(info["mismatched_keys"]):
        raise EngineError(
            f"{model_dir}: tensor {name} has shape {list(found)}, but config.json asks for {list(wanted)}; "
            f"weights and configuration must come from one model"
        )
    if missing := sorted(info["missing_keys"]):
        raise EngineError(
            f"{model_dir}: the weights lack {len(missing)} tensors that config.json asks for, first {missing[0]}"
        )
    return model


def load_tokenizer(model_dir: Path, settings: Mapping[str, Any] | None = None) -> Any:
    """The tokenizer of these weights, `templated` with these settings. Raises EngineError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"the tokenizer in {model_dir} does not load: {error}") from error
    if not tokenizer.chat_template:
        raise EngineError(f"the tokenizer in {model_dir} has no chat template; put one into chat_template.jinja")
    return templated(tokenizer, settings)


_FREE = frozenset(
    {
        "base_model_name_or_path",
        "inference_mode",
        "lora_alpha",
        "lora_dropout",
        "peft_version",
        "r",
        "revision",
        "target_modules",
        "use_rslora",
    }
)
"""What an adapter's configuration may say as it likes; some of it is checked further below."""

_A, _B = ".lora_A.weight", ".lora_B.weight"

_FIXED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian"),
}
"""What it may say only so. Anything else must be unset, as its default is."""


def _add_adapter(model: Any, adapter_dir: Path) -> None:
    """Add the adapter, W + alpha / r · B A, which is all that plain LoRA is: to weights of 32 bits, and beside shorter
    ones, in whose rounding a small update would vanish. PEFT and servers keep it beside them, too."""
    config = _adapter_config(adapter_dir)
    tensors = _adapter_tensors(adapter_dir)
    _check_fit(model, adapter_dir, config, {name: list(tensor.shape) for name, tensor in tensors.items()})
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    with torch.no_grad():
        for name in tensors:
            if not name.endswith(_A):
                continue
            module = model.get_submodule(name.removesuffix(_A))
            down, up = tensors[name].float(), tensors[name.removesuffix(_A) + _B].float()
            if module.weight.dtype == torch.float32:
                module.weight.add_(scale * (up @ down))
            else:
                module.register_buffer("lora_down", down, persistent=False)
                module.register_buffer("lora_up", scale * up, persistent=False)
                module.register_forward_hook(_add_beside)


def _add_beside(module: Any, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    delta: torch.Tensor = given[0].float() @ module.lora_down.T @ module.lora_up.T
    return (output + delta).to(output.dtype)


def _adapter_config(adapter_dir: Path) -> dict[str, Any]:
    path = _require(adapter_dir, "adapter_config.json", "an adapter's configuration")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise EngineError(f"{path} must hold an object")
    for key, allowed in _FIXED.items():
        if config.get(key, allowed[0]) not in allowed:
            raise EngineError(f"{path}: {key} is {config[key]!r}; {' or '.join(map(repr, allowed))} is supported")
    for key, value in config.items():
        if key not in _FREE and key not in _FIXED and value not in (None, False, [], {}) and not _default(key, value):
            raise EngineError(f"{path}: {key} is {value!r}; only plain LoRA is supported, where it is not set")
    rank, alpha, targets = (config.get(key) for key in ("r", "lora_alpha", "target_modules"))
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise EngineError(f"{path}: r is {rank!r}; a whole number of at least 1 is wanted")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise EngineError(f"{path}: lora_alpha is {alpha!r}; a number above 0 is wanted")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise EngineError(f"{path}: target_modules is {targets!r}; a list of module names is wanted")
    return config


def _default(key: str, value: Any) -> bool:
    from peft import LoraConfig

    return bool(getattr(LoraConfig(), key, None) == value)


def _adapter_tensors(adapter_dir: Path) -> dict[str, torch.Tensor]:
    """The adapter's tensors by their names without PEFT's prefix."""
    path = _require(adapter_dir, "adapter_model.safetensors", "an adapter's weights")
    try:
        tensors = {name.removeprefix("base_model.model."): tensor for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise EngineError(f"{path} is not a safetensors file: {error}") from error
    if not tensors:
        raise EngineError(f"{path} holds no tensors")
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise EngineError(f"{path}: tensor {name} holds infinite or undefined numbers")
    return tensors


def _check_fit(model: Any, adapter_dir: Path, config: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    rank, targets = config["r"], tuple(config["target_modules"])
    modules = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    wanted = {name for name in modules if any(f".{name}".endswith(f".{target}") for target in targets)}
    for name, shape in shapes.items():
        owner = name.removesuffix(_A).removesuffix(_B)
        module = modules.get(owner)
        if owner == name or module is None:
            raise EngineError(f"{adapter_dir}: tensor {name} belongs to no linear layer of the model")
        fit = [rank, module.in_features] if name.endswith(_A) else [module.out_features, rank]
        if shape != fit:
            raise EngineError(
                f"{adapter_dir}: tensor {name} has shape {shape}, the model takes {fit}; "
                f"the adapter was made for another model or rank"
            )
        other = owner + (_B if name.endswith(_A) else _A)
        if other not in shapes:
            raise EngineError(f"{adapter_dir}: tensor {name} is there, its partner {other} is missing")
    given = {name.removesuffix(_A) for name in shapes if name.endswith(_A)}
    if odd := sorted(wanted ^ given):
        raise EngineError(
            f"{adapter_dir}: adapter_config.json targets {len(wanted)} modules and adapter_model.safetensors has "
            f"{len(given)}; they differ at {odd[0]}"
        )


def _require(directory: Path, name: str, what: str) -> Path:
    if not (directory / name).is_file():
        raise EngineError(f"{directory} is not {what}: there is no {name}")
    return directory / name


def _stop_ids(model: Any, tokenizer: Any) -> set[int]:
    configured = model.generation_config.eos_token_id
    several = configured if isinstance(configured, list) else [configured]
    ids = {token for token in (*several, tokenizer.eos_token_id) if token is not None}
    if not ids:
        raise EngineError("neither the model nor its tokenizer names an end-of-answer token")
    return ids


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"device {name!r} is unknown; auto, cpu or cuda is wanted") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"device {name!r} is asked for, but this machine has no CUDA device")
    return device


def _dtype(name: str) -> Any:
    names = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in names:
        raise EngineError(f"dtype {name!r} is unknown; one of {', '.join(names)} is wanted")
    return names[name]
