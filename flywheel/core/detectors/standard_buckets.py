"""The kinds of failure, and who proposes them.

A bucket is what a person files a failure under. `BUCKETS` are those that every project has; a project may define more,
each of the family of one of these. Keys are stored, so they never change meaning.
Detectors (`flywheel.core.detectors`) only propose. A loop or an ignored tool error is evidence, not a bucket: what
must change is the agent's planning, or that it finishes what it began, and buckets are named for what must change.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flywheel.core.detectors import DETECTORS, Context, Detector, Proposal, detect

__all__ = [
    "BUCKETS",
    "DETECTORS",
    "Bucket",
    "Context",
    "Detector",
    "Proposal",
    "detect",
    "detector_named",
    "keys_named",
    "name_of",
]


@dataclass(frozen=True, slots=True)
class Bucket:
    key: str
    label: str
    description: str
    """When a failure belongs here, in one sentence."""
    shortcut: str
    """The key that chooses it in the queue; each bucket has its own, or none."""
    fix: str
    """A hint of what usually helps; the fix ladder decides with numbers."""
    parent: str = ""
    """Of a bucket that a project defined: the one of `BUCKETS` that it is a kind of."""
    is_archived: bool = False
    """Not offered any more; what was filed under it stays."""

    @property
    def family(self) -> str:
        """The key of `BUCKETS` whose rules hold for it: what the fix ladder counts."""
        return self.parent or self.key


def name_of(key: str, known: Mapping[str, Bucket]) -> str:
    """In running text: `wrong tool`. A bucket that is not known shows its key."""
    return known[key].label.lower() if key in known else key.replace("_", " ")


def detector_named(key: str) -> str:
    """The name of a detector as people read it: what it finds. One that is not known any more shows its key."""
    return DETECTORS[key].description if key in DETECTORS else key.replace("_", " ")


def keys_named(text: str, known: Mapping[str, Bucket]) -> list[str]:
    """The keys of the buckets that are called so, by key or by label: `Invented tool`, `invented_tool`. The text itself
    where none is."""
    named = [key for key, bucket in known.items() if _written(text) in (key, _written(bucket.label))]
    return named or [text]


def _written(label: str) -> str:
    return "_".join(re.findall(r"\w+", label.lower()))


BUCKETS: dict[str, Bucket] = {
    bucket.key: bucket
    for bucket in (
        Bucket(
            "format_error",
            "Broken format",
            "The output cannot be read as the call or answer that was wanted: broken JSON, a call written as prose.",
            "1",
            "Constrained output or a clearer prompt first; SFT on correct outputs where that does not hold.",
        ),
        Bucket(
            "wrong_tool",
            "Wrong tool",
            "A tool that exists was called where another one was wanted.",
            "2",
            "Clearer tool descriptions; SFT on corrected calls.",
        ),
        Bucket(
            "wrong_arguments",
            "Wrong arguments",
            "The right tool with arguments that are missing, malformed, invented, or not what was asked for.",
            "3",
            "SFT on corrected calls, then RLVR with the verifier.",
        ),
        Bucket(
            "bad_planning",
            "Bad planning",
            "The steps do not lead to the goal: loops, a wrong order, work that nobody asked for.",
            "4",
            "Environment RL over whole episodes.",
        ),
        Bucket(
            "unsafe_action",
            "Unsafe action",
            "Something was done that does harm or that policy forbids, without being asked for.",
            "5",
            "A guard in front of the tool first; then DPO or RLVR with a safety penalty.",
        ),
        Bucket(
            "retrieval_failure",
            "Retrieval failure",
            "What was needed was not found, and the agent went on without it.",
            "6",
            "The index, the query, or the search tool; rarely the model.",
        ),
        Bucket(
            "hallucinated_api",
            "Invented tool",
            "A tool, function or endpoint was called that does not exist.",
            "7",
            "Tool list and descriptions in the prompt; SFT when the model remembers retired tools.",
        ),
        Bucket(
            "incomplete_execution",
            "Incomplete execution",
            "The work stopped before it was done: cut off, out of steps, or an error that was passed over.",
            "8",
            "Limits and error messages first; environment RL for giving up early.",
        ),
        Bucket(
            "inconsistent_success",
            "Inconsistent success",
            "Success that does not hold: claimed or reported against the record, or reached only on some attempts.",
            "9",
            "RLVR where attempts sometimes pass; a check of effects where success is only claimed.",
        ),
        Bucket("other", "Other", "None of these; say in the note what it is.", "0", "Read the notes first."),
    )
}
