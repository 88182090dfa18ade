"""The teacher of a run: another version whose probabilities it learns, if its algorithm learns any."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.accounts.project_settings import model_prices
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact, Version
from flywheel.agents.version_content import OPENAI
from flywheel.core.recipes import ENDPOINT, Algorithm
from flywheel.edge.refusals import Refused
from flywheel.environments.models import TaskSet
from flywheel.training.launch.fix_recommendation import turns_of

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Readings:
    """The questions of a run to a hosted teacher, at most, beside the proof of its tokens at each start."""

    model: str
    questions: int
    """One for each attempt, and one a step that shows that it still is who it was."""
    tokens: int | None
    """None where nobody knows how long attempts become."""
    usd: float | None
    """None where the tokens or their price are not known."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def is_hosted(version: Version) -> bool:
    """Whether somebody else's server has the version's model."""
    return version.weights_id is None and version.endpoint.get("kind") == OPENAI


def expected_readings(
    teacher: Version | None, settings: Mapping[str, Any], prompt: int | None, task_sets: Sequence[TaskSet]
) -> Readings | None:
    """Return what a run asks of a teacher at its endpoint, at most; None for one that is asked for nothing there.
    `prompt`: tokens of the longest prompt, where that is known."""
    if teacher is None or settings.get("teacher_from") != ENDPOINT or not is_hosted(teacher):
        return None
    batches = -(-settings["steps"] // settings.get("num_iterations", 1))
    questions = batches * (settings["batch_size"] + 1)
    tokens = None
    if prompt is not None and all(turns_of(each) == 1 for each in task_sets):
        tokens = questions * (prompt + settings["max_completion_length"])
    price = model_prices.price_of(teacher.agent.project_id, teacher.endpoint["model"], teacher.endpoint)
    usd = None if price is None or tokens is None else price.cost(tokens, questions, None)
    return Readings(teacher.endpoint["model"], questions, tokens, usd)


def unpriced(teacher: Version | None, settings: Mapping[str, Any]) -> str | None:
    """Why nobody knows what a hosted teacher costs, and what would be right: empty where it is known, None where no
    such teacher is asked."""
    if teacher is None or settings.get("teacher_from") != ENDPOINT:
        return None
    model = teacher.endpoint.get("model", "")
    if model_prices.price_of(teacher.agent.project_id, model, teacher.endpoint) is not None:
        return ""
    return f"the teacher asks its endpoint's model {model!r}, whose price nobody named; name it under Settings › Prices"


def check_place(teacher: Version | None, settings: Mapping[str, Any]) -> None:
    """Raise Refused where the teacher does not run where `teacher_from` says."""
    if teacher is None:
        return
    place = settings.get("teacher_from")
    if is_hosted(teacher) and place != ENDPOINT:
        problem = f"{teacher} is a hosted model, and {place!r} needs weights here; expected {ENDPOINT}"
    elif not is_hosted(teacher) and place == ENDPOINT:
        problem = f"{teacher} has its weights here; expected trainer or vllm"
    else:
        return
    raise Refused(problem, field="settings.teacher_from")


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
        return f"is missing: {algorithm.label} learns from another version, with weights here or hosted"
    if teacher.agent.project_id != base.agent.project_id:
        return f"{teacher} belongs to another project than {base}"
    if base.weights is None or is_hosted(teacher):  # what a hosted one can do is proved before the first step
        return ""
    if teacher.weights is None:
        return f"{teacher} has no weights here and no endpoint, and its probabilities are read from one of them"
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
