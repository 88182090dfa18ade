"""The policy under training: loading base, tokenizer and adapter, saving the final artifact."""

import contextlib
import copy
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, prepare_model_for_kbit_training
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    set_seed,
)

from flywheel.core import recipes
from flywheel.core.envs import Environment
from flywheel.core.recipes import ELSEWHERE
from flywheel.core.traces import tooling
from workers.engines import context_length
from workers.engines.tool_calls import templated
from workers.processes import model_process
from workers.trainers.run import checkpoints
from workers.trainers.run.run_directory import FINAL, Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.run.run_spec import Source, Spec, tools_of

_ARTIFACT = {".safetensors", ".json", ".jinja", ".txt", ".model"}
"""What a final artifact may hold: weights, configuration, tokenizer. No pickles, no code."""
_STATE = {checkpoints.MANIFEST, "trainer_state.json", "value_head.safetensors", "curriculum.json", "score.json"}
"""Files of a checkpoint with such an ending that are of the training and not of what it made."""
SMALL = 5_000_000
"""Below so many parameters one CPU thread is as quick as several, and where other work shares the cores far quicker:
threads that wait for each other at every operation took five times as long on two busy cores."""

BOUNDLESS = 2**30
"""Tokens that are no limit: of a model whose configuration names none, where a number must stand."""


class Policy(NamedTuple):
    model: Any
    tokenizer: Any
    lora: LoraConfig | None
    """A fresh adapter that the trainer puts on; None when all weights or an existing adapter are trained."""


def load(run: Run) -> Policy:
    """The policy that the spec names, ready for training. Raises TrainingError of kind model, adapter or bad_spec."""
    spec = run.spec
    check_source(spec.base, "base", "model")
    set_seed(spec.seed)
    with model_process.mapping(spec.base.path):
        model, tokenizer = _base(spec)
    if model.num_parameters() < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    if spec.adapter is not None:
        check_source(spec.adapter, "adapter", "adapter")
        model = with_adapter(run, model, spec.adapter, is_trainable=spec.mode != "full")
        if spec.mode == "full":
            model = model.merge_and_unload().requires_grad_(True)  # PEFT leaves the base frozen
        return Policy(model, tokenizer, None)
    return Policy(model, tokenizer, None if spec.mode == "full" else lora_of(spec))


def weightless(spec: Spec) -> Policy:
    """The policy's tokenizer, chat template and limits on a stand-in of a few weights: all that a trainer needs to make
    rows into tokens, in no memory. Raises TrainingError of kind model."""
    path = spec.base.path
    with refused(path):
        known = {"local_files_only": True, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(path, **known)
        tokenizer = AutoTokenizer.from_pretrained(path, **known)
        ends = GenerationConfig.from_pretrained(path) if (path / "generation_config.json").exists() else config
    room = getattr(config, "max_position_embeddings", None) or BOUNDLESS
    small: dict[str, Any] = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 8)
    small |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1)
    model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=room, **small))
    model.generation_config.eos_token_id = getattr(ends, "eos_token_id", None)
    # An adapter spares DPO the copy of the model that it would compare with.
    return Policy(model, _ready(spec, model, tokenizer), LoraConfig(r=1, target_modules="all-linear"))


def reference(run: Run, loaded: Policy) -> Any:
    """Return the start, by which preferences hold the policy; None where it is the base below an adapter.

    Left to itself TRL loads it from the base's path: that is not the start when an adapter was merged, and it cannot
    where the configuration names no architecture.
    """
    return copy.deepcopy(loaded.model) if run.spec.mode == "full" else None


def teacher(run: Run) -> Any:
    """Return the policy whose probabilities are learnt, ready to be asked. Raises TrainingError, of kind model where
    it writes in other tokens than the run's own policy."""
    spec, taught = run.spec, run.spec.teacher
    assert taught is not None
    assert taught.base is not None
    check_source(taught.base, "teacher.base", "model")
    check_tokens(spec, taught.base)
    own = dataclasses.replace(spec, base=taught.base, mode="lora")  # what does not learn need not be kept in 32 bits
    with model_process.mapping(taught.base.path):
        model, _ = _base(own)
    if taught.adapter is not None:
        check_source(taught.adapter, "teacher.adapter", "adapter")
        # Left beside the base: in the rounding of 16 bits a light one would vanish.
        model = with_adapter(run, model, taught.adapter, is_trainable=False)
    return model.eval().requires_grad_(False)


def check_tokens(spec: Spec, taught: Source) -> None:
    """Raise TrainingError unless the teacher's tokenizer has the policy's own tokens."""
    mine, theirs = (tokenizer_of(each.path).get_vocab() for each in (spec.base, taught))
    if problem := _other_tokens(mine, theirs):
        raise TrainingError(
            "model",
            f"teacher.base: {problem}; probabilities are compared token by token, so both must have one tokenizer",
        )


def tokenizer_of(path: Path) -> Any:
    """The tokenizer of a model as it is. Raises TrainingError of kind model."""
    with refused(path):
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def _other_tokens(student: Mapping[str, int], teacher: Mapping[str, int]) -> str:
    """Say how two vocabularies differ; empty where they do not."""
    different = sorted(student.items() ^ teacher.items(), key=lambda each: each[1])
    if not different:
        return ""
    number = different[0][1]
    words = ({place: text for text, place in each.items()}.get(number) for each in (teacher, student))
    mine, yours = (repr(text) if text is not None else "nothing" for text in words)
    return f"its token {number} is {mine}, and the policy's is {yours}"


def longest(model: Any, settings: Mapping[str, Any]) -> tuple[int, str]:
    """The most tokens of a row, and what limits them: `max_length`, or fewer where the model has fewer positions."""
    asked, room = settings["max_length"], context_length.room_of(model)
    if room is None or asked <= room:
        return asked, f"max_length ({asked})"
    return room, f"all the model takes ({room})"


def training_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], env: Environment) -> Dataset:
    """These columns of the rows, the place of each as `row`, and the tools of each row's environment, as evals tell of
    them; a row from elsewhere has its own."""
    kept = [{"row": place, **{name: row[name] for name in names}} for place, row in enumerate(rows)]
    told = tools_shown(rows, env)
    if any(told):
        # As text, or Arrow gives each tool all properties.
        kept = [row | {"tools": json.dumps(tools or None)} for row, tools in zip(kept, told, strict=True)]
    return Dataset.from_list(kept)


def tools_shown(rows: Sequence[Mapping[str, Any]], env: Environment) -> list[list[dict[str, Any]]]:
    """The tools that each row's prompt tells of."""
    return [_tools_shown(row, tools_of(env, row.get("environment", ""))) for row in rows]


def _tools_shown(row: Mapping[str, Any], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that a row's prompt tells of: the environment's as they are there, also where a row from elsewhere has
    the same."""
    if row.get("origin") not in ELSEWHERE:
        return tools
    own: list[dict[str, Any]] = tooling.definitions(list(row.get("tools") or ()))
    return tools if own == [tooling.plain(tool) for tool in tools] else own


def save_kept(run: Run, checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Publish `final/`, the artifact that leaves the run directory, of the weights of a checkpoint or of the best ones,
    and return its files. Raises TrainingError.

    Weights learn in 32 bits and leave in the base's own, so that they are as large and as quick as what they are
    compared with.
    """

    def write(aside: Path) -> None:
        is_whole = run.spec.mode == "full"
        for path in checkpoint.iterdir():
            is_state = path.name in _STATE or path.suffix not in _ARTIFACT
            if not is_state and not (is_whole and ".safetensors" in path.name):
                shutil.copyfile(path, aside / path.name)
        if is_whole:
            with refused(checkpoint):
                AutoModelForCausalLM.from_pretrained(
                    checkpoint,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    dtype=_declared(run.spec) or torch.float32,
                ).save_pretrained(aside)

    return publish(run, write)


def _declared(spec: Spec) -> Any:
    """The type of the base's weights; None where it does not say."""
    return AutoConfig.from_pretrained(spec.base.path, local_files_only=True, trust_remote_code=False).dtype


def publish(run: Run, write: Callable[[Path], None]) -> dict[str, dict[str, Any]]:
    """Publish `final/` as `write` has written it aside, and return its files."""
    aside = run.work / FINAL
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    write(aside)
    for path in aside.iterdir():
        if path.suffix not in _ARTIFACT:
            path.unlink()
    files = checkpoints.files_of(aside)
    checkpoints.move(aside, run.path / FINAL)
    return files


def _base(spec: Spec) -> tuple[Any, Any]:
    # The base of an adapter does not learn, so on a GPU it need not be kept in 32 bits; what QLoRA reads in 16 it makes
    # anew, and does not keep the file mapped.
    frozen = torch.cuda.is_available() and torch.cuda.is_bf16_supported() and spec.mode != "full"
    if why := recipes.lacking(spec.mode):
        raise TrainingError("bad_spec", f"tuning.mode: {why}")
    with refused(spec.base.path):
        tokenizer = AutoTokenizer.from_pretrained(spec.base.path, local_files_only=True, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            spec.base.path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.bfloat16 if frozen or spec.mode == "qlora" else torch.float32,
            quantization_config=_four_bits() if spec.mode == "qlora" else None,
        )
        if spec.mode == "qlora":
            # TRL sees to checkpointing.
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # type: ignore[no-untyped-call]
            for module in model.modules():
                # On some CPUs bitsandbytes 0.50 would pack and round the weights another way for the first answer that
                # is only read, and again for what learns.
                if hasattr(module, "support_avx512bf16_for_cpu"):
                    module.support_avx512bf16_for_cpu = False
    return model, _ready(spec, model, tokenizer)


def _four_bits() -> BitsAndBytesConfig:
    """The base as QLoRA keeps it (Dettmers et al., https://arxiv.org/abs/2305.14314, sections 2 and 3)."""
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


@contextlib.contextmanager
def refused(path: Path) -> Iterator[None]:
    """Turn what the libraries raise while they load something into an error of the model."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError) as error:
        raise TrainingError("model", f"{path} does not load: {error}") from error
    except Exception as error:  # safetensors raises a class of its own for a damaged file
        raise TrainingError("model", f"{path} does not load: {type(error).__name__}: {error}") from error


def _ready(spec: Spec, model: Any, tokenizer: Any) -> Any:
    """The tokenizer as training wants it. Raises TrainingError."""
    if not tokenizer.chat_template:
        raise TrainingError("model", f"{spec.base.path}: its tokenizer has no chat template, and prompts are chats")
    if not ends_of(model, tokenizer):
        raise TrainingError(
            "model", f"{spec.base.path}: neither model nor tokenizer names the token that ends an answer"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return templated(tokenizer, spec.base.chat_template_kwargs)


def with_adapter(run: Run, model: Any, source: Source, *, is_trainable: bool) -> Any:
    weights = source.path / "adapter_model.safetensors"
    if not weights.is_file() or not (source.path / "adapter_config.json").is_file():
        raise TrainingError("adapter", f"{source.path}: adapter_model.safetensors and adapter_config.json are wanted")
    try:
        tuned = PeftModel.from_pretrained(model, source.path, is_trainable=is_trainable)
        with safe_open(weights, "pt") as file:
            given = set(file.keys())
    except Exception as error:
        raise TrainingError("adapter", f"{source.path} does not fit {model.name_or_path}: {error}") from error
    wanted = set(get_peft_model_state_dict(tuned))
    if given != wanted:
        strange = ", ".join(sorted(given ^ wanted)[:3])
        raise TrainingError("adapter", f"{source.path} does not fit {model.name_or_path}: {strange} is not in both")
    rank = getattr(tuned.peft_config["default"], "r", None)
    if is_trainable and rank != run.spec.rank:
        run.warn(f"the adapter that is trained on has rank {rank}; tuning.rank {run.spec.rank} does not apply")
    return tuned


def lora_of(spec: Spec, **fields: Any) -> LoraConfig:
    """A fresh adapter as the spec wants it, with these fields of another task than a policy's. Raises TrainingError."""
    extra = {key.removeprefix("lora."): value for key, value in spec.settings.items() if key.startswith("lora.")}
    try:
        return LoraConfig(
            r=spec.rank,
            lora_alpha=spec.alpha,
            **{"task_type": "CAUSAL_LM", "target_modules": "all-linear", "lora_dropout": 0.0, **extra, **fields},
        )
    except (TypeError, ValueError) as error:
        raise TrainingError("bad_spec", f"settings.lora: {error}") from error


def check_source(source: Source, name: str, kind: str) -> None:
    if not source.path.is_dir():
        raise TrainingError(kind, f"{name}.path: {source.path} is no directory")
    if not source.digest:
        return
    try:
        found = checkpoints.directory_digest(source.path)
    except OSError as error:
        raise TrainingError(kind, f"{source.path} cannot be read: {error}") from error
    if found != source.digest:
        raise TrainingError(kind, f"{name}.digest: {source.path} has {found}, the spec says {source.digest}")


def ends_of(model: Any, tokenizer: Any) -> list[int]:
    declared = model.generation_config.eos_token_id
    ends = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return sorted({*ends, tokenizer.eos_token_id} - {None})
