"""Which split a task belongs to: decided by its source cluster alone, before anything else is known of it."""

import hashlib

from flywheel.core.envs.kinds import KINDS
from flywheel.environments.models import Environment, Split


def split_of(
    *, cluster: str, slice: str, salt: str, held_out_share: float, reserved_slices: list[str], sealed_share: float = 0
) -> Split:
    """The split of a cluster's tasks, by hash: siblings (same session, same customer) never straddle.

    The sealed share is a part of the held-out one.

    A task of a reserved slice is measured when its cluster is held out, and set aside otherwise: it may not be trained
    on, and its cluster is. `salt` (the environment's identity) makes splits of environments independent.
    """
    number = int.from_bytes(hashlib.sha256(f"{salt}\0{cluster}".encode()).digest()[:8])
    if number / 2**64 < held_out_share:
        return Split.SEALED if number / 2**64 < sealed_share else Split.HELD_OUT
    return Split.SET_ASIDE if slice in reserved_slices else Split.TRAIN


def split_in(environment: Environment, *, cluster: str, slice: str) -> Split:
    """The split of a cluster's tasks in this environment; what an external server judges is only ever measured."""
    if KINDS[environment.kind].is_external:
        return Split.HELD_OUT
    return split_of(
        cluster=cluster,
        slice=slice,
        salt=f"{environment.project.slug}/{environment.name}",
        held_out_share=environment.held_out_share,
        reserved_slices=environment.reserved_slices,
        sealed_share=environment.sealed_share,
    )
