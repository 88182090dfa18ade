"""Dividing a run among its processes by FSDP2, or by DeepSpeed's ZeRO-2: what TRL is told, and how a process asks a
divided model by itself.

ZeRO-2 divides gradients and optimizer and leaves each process the weights. With FSDP2 it has a share of them, and who
asks the model has the others ask it too, at every token. But a single process evaluates, and attempts end when they
end; so all have the whole weights while the model is asked, in the type that it computes in, and their shares again
when it learns.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule

from flywheel.core import recipes
from workers.trainers.run.run_failures import TrainingError

NONE = "none"

_AUTO = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
FIELDS: dict[str, dict[str, Any]] = {
    NONE: {},
    "fsdp2": {
        "fsdp": True,
        # Checkpoints have whole weights, so that what is made of them is a version like any other.
        "fsdp_config": {"version": 2, "reshard_after_forward": True, "state_dict_type": "FULL_STATE_DICT"},
    },
    "deepspeed": {
        "deepspeed": {
            **dict.fromkeys(_AUTO, "auto"),
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,  # TRL's own, which is torch's AdamW
            "zero_force_ds_cpu_optimizer": False,
        },
    },
}
"""Fields of TRL's config by the setting `sharding`."""


def fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of TRL's config that divide a run as its settings say. Raises TrainingError where that is not to be
    had here."""
    kind = settings.get("sharding", NONE)
    if why := recipes.lacking(kind):
        raise TrainingError("bad_spec", f"settings.sharding: {why}")
    if kind == "deepspeed" and not torch.cuda.is_available():
        # Tried: with accelerate 1.15 each process would learn from all rows.
        raise TrainingError(
            "bad_spec", "settings.sharding: deepspeed needs GPUs, and there are none; use fsdp2 or none"
        )
    return copy.deepcopy(FIELDS[kind])


def begin(config: Any) -> None:
    """Have accelerate divide weights on CPUs as it does on GPUs: with FSDP2 it would leave that out without a word. To
    be called between a trainer's config and the trainer."""
    if config.fsdp and config.use_cpu:
        PartialState().distributed_type = DistributedType.MULTI_GPU


@contextmanager
def whole(model: Any) -> Iterator[None]:
    """Give each process all weights meanwhile, so that it may ask the model by itself. All processes come here
    together, and not between the passes of a step."""
    if not isinstance(model, FSDPModule):
        yield
        return
    state = model._get_fsdp_state()
    state._lazy_init()
    groups = [group for part in state._state_ctx.all_states for group in part._fsdp_param_groups]
    shared = [group.post_forward_mesh_info for group in groups]
    for group in groups:
        group.post_forward_mesh_info = None  # an answer's end does not take them away
        group.unshard()
        group.wait_for_unshard()
    try:
        yield
    finally:
        # Else one would go on from more passes than the others, and wait for weights that nobody sends.
        model.reset_iter_state()
        for group, mesh in zip(groups, shared, strict=True):
            group.post_forward_mesh_info = mesh


def load(model: Any, weights: Mapping[str, Any]) -> None:
    """Load whole weights into a model, divided or not."""
    set_model_state_dict(model, dict(weights), options=StateDictOptions(full_state_dict=True))
