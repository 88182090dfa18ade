"""`spec.json` and the rows it names: read, checked, and refused with the field that is wrong."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from flywheel.core import digests, recipes
from flywheel.core.envs import Environment, Task, build
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.envs.wrappers.mixed_environment import Mixed
from flywheel.core.errors import FieldError
from flywheel.core.evidence import compared_items, contamination
from flywheel.core.verifiers import Runners, VerifierError, rubric
from workers.judging import broker_line
from workers.judging.reward_models import RewardModels, load_here
from workers.trainers.run.run_failures import TrainingError

T = TypeVar("T")
ANY_TRAINER = ""
"""Instead of a trainer's name, for who looks at a run directory of any algorithm."""
SOURCES = "FLYWHEEL_SOURCES"
"""The environment variable with the folder that has models and adapters, each under its digest, on a machine where they
are not at the paths of the spec."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model or adapter directory. An empty digest is not checked."""

    path: Path
    digest: str
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a model's chat template, as evals have them."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A policy whose probabilities are learnt."""

    base: Source | None
    """None where somebody else serves it."""
    adapter: Source | None
    served_base: str
    """The base's name on the vLLM server that tells the probabilities; empty where that is not who tells them."""
    hosted: str = ""
    """The digest of a hosted version, which the worker's broker asks; empty where its weights are here."""
    model: str = ""
    """The name of a hosted version's model."""


@dataclass(frozen=True, slots=True)
class Rows:
    path: Path
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class Spec:
    run: str
    algorithm: str
    seed: int
    base: Source
    adapter: Source | None
    environment: Mapping[str, Any]
    mode: str
    rank: int
    alpha: int
    settings: Mapping[str, Any]
    eval_every: int
    eval_limit: int
    checkpoint_every: int
    keep_attempts: int
    """How many of the attempts that it learns from are kept for people to look at; 0 for none."""
    train: Rows
    held_out: Rows | None
    replay: Rows | None
    """Rows that are imitated beside the attempts."""
    environment_weights: Mapping[str, Sequence[float]]
    """Of each environment, at the first step and at the last; empty where tasks take turns."""
    validation: Rows | None
    """Tasks of the train side that are asked on the way; rows of their clusters are not trained on. A reward model
    keeps some of its pairs aside instead."""
    validation_every: int
    validation_limit: int
    teacher: Teacher | None
    reward: rubric.Rubric | None
    """The recipe that it learns from, beside the environment's verifier; None where that is its reward."""
    reward_models: Mapping[str, Source]
    """Those that the verifier asks, by the digest that its parts have of them."""
    served_base: str
    """The base's name on the vLLM server that samples the attempts; empty where the trainer does."""
    digest: str
    """Of the spec itself: a checkpoint is only resumed under the spec that made it."""

    @property
    def recipe(self) -> recipes.Algorithm:
        return recipes.ALGORITHMS[self.algorithm]

    @property
    def sources(self) -> list[Source]:
        """All models and adapters that a trainer loads."""
        taught = (self.teacher.base, self.teacher.adapter) if self.teacher else ()
        return [each for each in (self.base, self.adapter, *taught, *self.reward_models.values()) if each]


def read(directory: Path, trainer: str) -> Spec:
    """The checked spec of a run directory for the trainer that was started."""
    try:
        value = json.loads((directory / "spec.json").read_bytes())
    except OSError as error:
        raise TrainingError("bad_spec", f"spec.json: cannot be read: {error}") from error
    except ValueError as error:
        raise TrainingError("bad_spec", f"spec.json: is not JSON: {error}") from error
    spec = _spec(directory, value)
    if trainer not in (ANY_TRAINER, spec.recipe.trainer):
        raise _bad("algorithm", spec.algorithm, f"python -m workers.trainers.{spec.recipe.trainer} runs it")
    return spec


def runners(spec: Spec) -> Runners:
    """Those whom verifiers and a recipe ask: the worker's broker, and the run's reward models."""
    models = _models(tuple((digest, source.path) for digest, source in spec.reward_models.items()))
    return replace(broker_line.runners(), reward_model=models)


@lru_cache(maxsize=1)
def _models(places: tuple[tuple[str, Path], ...]) -> RewardModels:
    """The same ones for the verifier and the recipe, so that none is in memory twice."""
    return RewardModels(dict(places), load_here)


def environment(spec: Spec) -> Environment:
    try:
        asked = spec.environment
        agent = AgentConfig.from_json(asked["agent"]) if "agent" in asked else None
        config, verifier = asked.get("config", {}), asked.get("verifier", {})
        return build(asked.get("kind", ""), config, verifier, runners(spec), agent)
    except VerifierError as error:
        raise TrainingError("bad_spec", f"environment: {error}") from error
    except KeyError as error:
        raise _bad("environment.kind", error.args[0], "a known environment kind is wanted") from error


def opened(spec: Spec) -> tuple[Environment, "Data"]:
    """The run's environment and its verified rows, which belong to it."""
    env, rows = environment(spec), data(spec)
    if spec.environment_weights:
        _check_weights(spec.environment_weights, set(env.parts) if isinstance(env, Mixed) else set())
    if isinstance(env, Mixed):
        named = {row.get("environment", "") for row in rows.train} | {task.environment for task in rows.held_out}
        if strange := sorted(named - set(env.parts)):
            known = ", ".join(env.parts)
            raise TrainingError("data", f"environment: {strange[0]!r} is none of the run's environments; {known} are")
    return env, rows


def tools_of(env: Environment, name: str) -> list[dict[str, Any]]:
    """The tools that a row's prompt tells of: its own environment's, where the run has several."""
    return env.parts[name].tools if isinstance(env, Mixed) else env.tools


@dataclass(frozen=True, slots=True)
class Data:
    train: list[dict[str, Any]]
    held_out: list[Task]
    validation: list[Task] = field(default_factory=list)
    set_aside: int = 0
    """Rows that are not trained on, so that validation says something."""
    replay: list[dict[str, Any]] = field(default_factory=list)


def data(spec: Spec) -> Data:
    """The verified rows. Held-out tasks and training rows share neither a task nor a cluster, or nothing starts."""
    train = _rows(spec.train, CHECKS[spec.recipe.data])
    held_out = [Task.from_json(row) for row in _rows(spec.held_out, _check_task)] if spec.held_out else []
    replay = _rows(spec.replay, _check_sft) if spec.replay else []
    _refuse_contamination([*train, *replay], held_out)
    asked = [Task.from_json(row) for row in _rows(spec.validation, _check_task)] if spec.validation else []
    kept, replayed = _without(train, asked), _without(replay, asked)
    if not kept or (replay and not replayed):
        raise TrainingError("data", "settings.validation_share: every row is of a task that is kept to validate on")
    aside = len(train) - len(kept) + len(replay) - len(replayed)
    return Data(kept, held_out, _unlearnt([*kept, *replayed], asked), aside, replayed)


def _without(train: list[dict[str, Any]], validation: Sequence[Task]) -> list[dict[str, Any]]:
    """Leave out the rows of these tasks and of others of their clusters."""
    tasks, clusters = {task.id for task in validation}, {task.cluster for task in validation} - {""}
    return [
        row for row in train if row.get("task_id", row.get("id")) not in tasks and row.get("cluster") not in clusters
    ]


def _unlearnt(train: Sequence[Mapping[str, Any]], validation: Sequence[Task]) -> list[Task]:
    """Leave out the tasks that rows from elsewhere give away all the same: they would be known by heart."""
    if not validation:
        return []
    items = chain.from_iterable(map(compared_items.items_of_row, train))
    known = set(contamination.check(items, map(compared_items.item_of_task, validation)).blocked)
    return [task for task in validation if task.id not in known]


def _refuse_contamination(train: Sequence[Mapping[str, Any]], held_out: Sequence[Task]) -> None:
    """Once more what the launch has checked, of the very files that are used: ids, clusters, requests with answers."""
    items = chain.from_iterable(map(compared_items.items_of_row, train))
    report = contamination.check(items, map(compared_items.item_of_task, held_out))
    blocking = [finding for finding in report.findings if finding.level in contamination.BLOCKING]
    if blocking:
        some = "; ".join(f"{contamination.LEVELS[found.level]}: {found.shared!r}" for found in blocking[:3])
        raise TrainingError(
            "contamination",
            f"{len(report.blocked)} of {report.held_out} held-out tasks are in the training data ({some}); "
            "a score on them would mean nothing, so nothing was trained",
        )


def _rows(source: Rows, check: Callable[[Mapping[str, Any]], None]) -> list[dict[str, Any]]:
    try:
        content = source.path.read_bytes()
    except OSError as error:
        raise TrainingError("data", f"{source.path.name}: cannot be read: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise TrainingError(
            "data", f"{source.path.name}: its SHA-256 is {found}, the spec says {source.sha256}; it was changed"
        )
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise TypeError("is not an object")
            check(row)
        except (ValueError, KeyError, TypeError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise TrainingError("data", f"{source.path.name}, line {number}: {what}") from error
        rows.append(row)
    if len(rows) != source.rows:
        raise TrainingError("data", f"{source.path.name}: {len(rows)} rows, the spec says {source.rows}")
    if not rows:
        raise TrainingError("data", f"{source.path.name}: no rows")
    return rows


def _check_sft(row: Mapping[str, Any]) -> None:
    _check_messages(row, "prompt", "completion")


def _check_pair(row: Mapping[str, Any]) -> None:
    _check_messages(row, "prompt", "chosen", "rejected")


def _check_task(row: Mapping[str, Any]) -> None:
    task = Task.from_json(row)
    if not isinstance(task.id, str) or not isinstance(task.prompt, str) or not isinstance(task.target, Mapping):
        raise TypeError("a task needs a text as id and prompt, and an object as target")


def _check_thumb(row: Mapping[str, Any]) -> None:
    _check_messages(row, "prompt", "completion")
    if not isinstance(row["label"], bool):
        raise TypeError(f"label: {row['label']!r} is neither true nor false")


def _check_scored(row: Mapping[str, Any]) -> None:
    _check_messages(row, "prompt", "completion")
    for name in ("group", "attempt"):
        if not isinstance(row[name], str):
            raise TypeError(f"{name}: {row[name]!r} is not a text")
    if not _is_number(row["score"]):
        raise TypeError(f"score: {row['score']!r} is not a number")
    recorded = row.get("logprobs", [])
    if not isinstance(recorded, list) or not all(map(_is_number, recorded)):
        raise TypeError("logprobs: a list of numbers is wanted, one for each token of the answer")
    tokens = row.get("token_ids", [])
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise TypeError("token_ids: a list of whole numbers is wanted")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


CHECKS: dict[recipes.Data, Callable[[Mapping[str, Any]], None]] = {
    "sft": _check_sft,
    "pairs": _check_pair,
    "tasks": _check_task,
    "thumbs": _check_thumb,
    "scored": _check_scored,
}


def _check_messages(row: Mapping[str, Any], *names: str) -> None:
    if not isinstance(row["task_id"], str):
        raise TypeError(f"task_id: {row['task_id']!r} is not a text")
    for name in names:
        messages = row[name]
        if not isinstance(messages, list) or not messages:
            raise TypeError(f"{name}: a list of messages is wanted")
        for message in messages:
            if not isinstance(message["role"], str) or not isinstance(message["content"], str):
                raise TypeError(f"{name}: a message needs a text as role and content")


def _spec(directory: Path, value: Any) -> Spec:
    if not isinstance(value, dict):
        raise TrainingError("bad_spec", "spec.json: is not an object")
    names = {
        "run", "algorithm", "seed", "base", "adapter", "environment", "tuning", "settings", "eval",
        "checkpoint_every", "keep_attempts", "data", "validation", "teacher", "reward", "reward_models",
        "served_base", "environment_weights",
    }  # fmt: skip
    for name in sorted(set(value) - names):
        raise _bad(name, value[name], f"is no field of a spec; the fields are {', '.join(sorted(names))}")
    algorithm, (mode, rank, alpha) = _get(value, "algorithm", str), _tuning(_get(value, "tuning", dict))
    try:
        settings = recipes.validate(algorithm, _get(value, "settings", dict))
        recipes.check_mode(algorithm, mode, settings)
    except FieldError as error:
        where = "" if error.field in ("algorithm", "tuning.mode") else "settings."
        raise TrainingError("bad_spec", f"{where}{error}") from error
    served_base = _get(value, "served_base", str) if recipes.samples_elsewhere(settings) else ""
    evals, rows = _get(value, "eval", dict), _get(value, "data", dict)
    validation = _get(value, "validation", dict) if "validation" in value else {"every": 1, "limit": 1}
    return Spec(
        run=_get(value, "run", str),
        algorithm=algorithm,
        seed=_whole(value, "seed", 0),
        base=_source(_get(value, "base", dict), "base"),
        adapter=None if value.get("adapter") is None else _source(_get(value, "adapter", dict), "adapter"),
        environment=_get(value, "environment", dict),
        mode=mode,
        rank=rank,
        alpha=alpha,
        settings=settings,
        eval_every=_whole(evals, "every", 1, "eval."),
        eval_limit=_whole(evals, "limit", 1, "eval."),
        checkpoint_every=_whole(value, "checkpoint_every", 1),
        keep_attempts=_whole(value, "keep_attempts", 0) if "keep_attempts" in value else 0,
        train=_source_rows(directory, _get(rows, "train", dict, "data."), "data.train"),
        held_out=None
        if rows.get("held_out") is None
        else _source_rows(directory, _get(rows, "held_out", dict, "data."), "data.held_out"),
        replay=_replay(directory, rows, recipes.ALGORITHMS[algorithm]),
        environment_weights=_get(value, "environment_weights", dict) if "environment_weights" in value else {},
        validation=_source_rows(directory, _get(rows, "validation", dict, "data."), "data.validation")
        if "validation" in value and recipes.ALGORITHMS[algorithm].makes_policy
        else None,
        validation_every=_whole(validation, "every", 1, "validation."),
        validation_limit=_whole(validation, "limit", 1, "validation."),
        teacher=_teacher(value, settings) if recipes.ALGORITHMS[algorithm].has_teacher else None,
        reward=_reward(_get(value, "reward", dict)) if "reward" in value else None,
        reward_models=_reward_models(_get(value, "reward_models", dict)) if "reward_models" in value else {},
        served_base=served_base,
        digest=digests.digest(value),
    )


def _reward(value: Mapping[str, Any]) -> rubric.Rubric:
    if value.get("kind") != rubric.REWARD:
        raise _bad("reward.kind", value.get("kind"), f"{rubric.REWARD} is wanted")
    try:
        return rubric.read(value)
    except VerifierError as error:
        raise TrainingError("bad_spec", f"reward.{error}") from error


def _replay(directory: Path, rows: Mapping[str, Any], algorithm: recipes.Algorithm) -> Rows | None:
    if "replay" not in rows:
        return None
    if not algorithm.practises:
        raise TrainingError("bad_spec", f"data.replay: {algorithm.label} imitates rows anyway; add them to its own")
    return _source_rows(directory, _get(rows, "replay", dict, "data."), "data.replay")


def _check_weights(weights: Mapping[str, Any], wanted: set[str]) -> None:
    """Raise TrainingError for weights that are not of these environments."""
    try:
        recipes.check_environment_weights(weights, wanted)
    except FieldError as error:
        raise TrainingError("bad_spec", str(error)) from error


def _teacher(spec: Mapping[str, Any], settings: Mapping[str, Any]) -> Teacher:
    if "teacher" not in spec:
        raise TrainingError("bad_spec", "teacher: is missing; Distillation learns from one")
    value = _get(spec, "teacher", dict)
    if settings["teacher_from"] == recipes.ENDPOINT:
        digest, model = (_get(value, name, str, "teacher.") for name in ("hosted", "model"))
        return Teacher(None, None, "", digest, model)
    adapter, is_served = value.get("adapter"), settings["teacher_from"] == recipes.VLLM
    if is_served and adapter is None:
        raise _bad("teacher.adapter", None, "a server is asked for an adapter, if only for one that changes nothing")
    return Teacher(
        _source(_get(value, "base", dict, "teacher."), "teacher.base"),
        None if adapter is None else _source(_get(value, "adapter", dict, "teacher."), "teacher.adapter"),
        _get(value, "served_base", str, "teacher.") if is_served else "",
    )


def _reward_models(value: Mapping[str, Any]) -> dict[str, Source]:
    return {name: _source(_get(value, name, dict, "reward_models."), f"reward_models.{name}") for name in value}


def _tuning(value: Mapping[str, Any]) -> tuple[str, int, int]:
    mode = _get(value, "mode", str, "tuning.")
    if mode not in recipes.MODES:
        raise _bad("tuning.mode", mode, f"one of {', '.join(recipes.MODES)} is wanted")
    if mode == "full":
        return mode, 0, 0
    return mode, _whole(value, "rank", 1, "tuning."), _whole(value, "alpha", 1, "tuning.")


def _source(value: Mapping[str, Any], where: str) -> Source:
    path = Path(_get(value, "path", str, f"{where}."))
    if not path.is_absolute():
        raise _bad(f"{where}.path", str(path), "an absolute path is wanted")
    digest = _get(value, "digest", str, f"{where}.")
    if folder := os.environ.get(SOURCES):
        path = Path(folder) / digest
    settings = _get(value, "chat_template_kwargs", dict, f"{where}.") if "chat_template_kwargs" in value else {}
    return Source(path, digest, settings)


def _source_rows(directory: Path, value: Mapping[str, Any], where: str) -> Rows:
    path = (directory / _get(value, "path", str, f"{where}.")).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise _bad(f"{where}.path", value["path"], "a path inside the run directory is wanted")
    sha256 = _get(value, "sha256", str, f"{where}.")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise _bad(f"{where}.sha256", sha256, "64 lower-case hexadecimal digits are wanted")
    return Rows(path, sha256, _whole(value, "rows", 1, f"{where}."))


def _get(value: Mapping[str, Any], name: str, kind: type[T], where: str = "") -> T:
    if name not in value:
        raise TrainingError("bad_spec", f"{where}{name}: is missing; {_word(kind)} is wanted")
    found = value[name]
    if not isinstance(found, kind):
        raise _bad(where + name, found, f"{_word(kind)} is wanted")
    return found


def _whole(value: Mapping[str, Any], name: str, least: int, where: str = "") -> int:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise _bad(where + name, number, f"a whole number of at least {least} is wanted")
    return number


def _word(kind: type[Any]) -> str:
    return "a text" if kind is str else "an object"


def _bad(name: str, value: Any, wanted: str) -> TrainingError:
    return TrainingError("bad_spec", f"{name}: {value!r}: {wanted}")
