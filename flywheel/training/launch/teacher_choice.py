"""The teacher of a run: another version whose probabilities it learns, if its algorithm learns any."""

import json
from typing import Any

from flywheel.agents import artifacts
from flywheel.agents.models import Artifact, Version
from flywheel.core.recipes import Algorithm
from flywheel.edge.refusals import Refused

TOKENIZER = "tokenizer.json"


def check_teacher(algorithm: Algorithm, base: Version, teacher: Version | None, *, is_moved: bool = False) -> None:
    """Raise Refused for a teacher that is missing or none, and for one that `base` cannot learn from. What the files do
    not tell here the trainer sees once more. `is_moved`: whether the weights that learn will have moved from those of
    `base`, which may then teach them."""
    if problem := _problem(algorithm, base, teacher, is_moved):
        raise Refused(problem, field="teacher")


def _problem(algorithm: Algorithm, base: Version, teacher: Version | None, is_moved: bool) -> str:
    if not algorithm.has_teacher:
        return f"{algorithm.label} learns from no teacher" if teacher else ""
    if teacher is None:
        return f"is missing: {algorithm.label} learns from another version, one with weights here"
    if teacher.agent.project_id != base.agent.project_id:
        return f"{teacher} belongs to another project than {base}"
    if teacher.weights is None or base.weights is None:
        return f"{teacher} has no weights here, and its probabilities are read from them"
    if not is_moved and (teacher.weights_id, teacher.adapter_id) == (base.weights_id, base.adapter_id):
        return f"{teacher} has the weights of {base}, which can teach it nothing; choose a better version"
    if base.weights_id == teacher.weights_id:  # adapters of one base
        return ""
    mine, yours = _vocabulary(base.weights), _vocabulary(teacher.weights)
    if mine and yours and (different := mine.items() ^ yours.items()):
        return (
            f"{teacher} has another tokenizer than {base}: {len({place for _, place in different}):,} tokens differ; "
            "probabilities are compared token by token, so choose a version of the same model family"
        )
    return ""


def _vocabulary(weights: Artifact) -> dict[str, int]:
    """The ids of a model's tokens by their text; empty where its tokenizer says it in another way."""
    if TOKENIZER not in weights.manifest:
        return {}
    content: Any = json.loads(artifacts.read(weights, TOKENIZER))
    listed = content.get("model", {}).get("vocab")
    if not isinstance(listed, dict):
        return {}
    return listed | {token["content"]: token["id"] for token in content.get("added_tokens", ())}
