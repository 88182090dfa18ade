"""Why a run ended without a policy, in the words of `training_error` and `result.json`."""

import errno
from collections.abc import Iterator

from jinja2 import TemplateError

from workers.processes import model_process

KINDS = (
    "bad_spec",
    "data",
    "contamination",
    "model",
    "adapter",
    "verifier",
    "broker",
    "sampler",
    "teacher",
    "nan",
    "disk_full",
    "out_of_memory",
    "internal",
)

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ARCHIVE = "inline_container.cc"
"""Where torch writes its archives; it does not say why it could not."""
_DISK_WORDS = ("No space left on device", "File too large", "Disk quota exceeded", _ARCHIVE)


class TrainingError(Exception):
    """A run cannot go on. `kind` is one of KINDS; the message says what happened and what to do."""

    def __init__(self, kind: str, message: str) -> None:
        assert kind in KINDS
        super().__init__(message)
        self.kind = kind
        self.message = message


def classify(error: BaseException) -> TrainingError:
    """Whatever was raised, as a TrainingError. Libraries wrap a full disk or memory in exceptions of their own."""
    if isinstance(error, TrainingError):
        return error
    for cause in _chain(error):
        text = str(cause)
        if (isinstance(cause, OSError) and cause.errno in _DISK) or any(word in text for word in _DISK_WORDS):
            said = "in the middle of a checkpoint" if _ARCHIVE in text else text.strip()[:300]
            return TrainingError(
                "disk_full", f"the disk is full ({said}); the last checkpoint is kept: make room and resume"
            )
        if isinstance(cause, TemplateError):
            return TrainingError(
                "model",
                f"its chat template refuses what the run shows it: {text.strip()[:300]}. Choose a base whose template "
                "takes the tools and roles of these rows",
            )
        is_shortage = model_process.is_shortage(cause)
        if is_shortage or "out of memory" in text:
            why = f"the trainer broke: {model_process.shortage()}" if is_shortage else "the GPU's memory ran out"
            return TrainingError(
                "out_of_memory", f"{why}; lower micro_batch_size or max_completion_length ({text.strip()[:300]})"
            )
    return TrainingError("internal", f"{type(error).__name__}: {error}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
