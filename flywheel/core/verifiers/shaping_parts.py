"""Parts that say nothing of right and wrong: they shape the reward from which a run learns."""

from collections.abc import Mapping
from typing import Any

from flywheel.core.verifiers import Verdict, part_checks, unscored
from flywheel.core.verifiers.rubric_parts import Case, Setting, part
from flywheel.core.verifiers.text_parts import PARTS

__all__ = ["PARTS"]


@part(
    "length",
    "Length",
    "The share by which an attempt is too long; give it a weight below 0. It is 0 up to the first length, 1 from the "
    "second on, and grows evenly between them.",
    {
        "free": Setting("Free up to", "number", "Tokens of all its answers together.", is_required=True),
        "most": Setting("In full from", "number", "Tokens, too.", is_required=True),
    },
    check=part_checks.length,
    only_shapes=True,
)
def _length(settings: Mapping[str, Any], case: Case) -> Verdict:
    """DAPO's soft overlong punishment (https://arxiv.org/abs/2503.14476, equation 13), its sign left to the weight."""
    if case.tokens is None:
        return unscored("nobody counted its tokens", "unscored")
    free, most = settings["free"], settings["most"]
    return Verdict(min(1.0, max(0.0, (case.tokens - free) / (most - free))), f"{case.tokens} tokens")
