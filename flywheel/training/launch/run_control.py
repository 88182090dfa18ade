"""Launch a training run: check everything a person chose, freeze it, queue it."""

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import WorkerDevice
from flywheel.accounts.project_settings import model_prices
from flywheel.agents.models import Version
from flywheel.agents.weights import lora_adapters
from flywheel.core import recipes
from flywheel.core.digests import digest
from flywheel.core.envs import kinds
from flywheel.core.errors import FieldError
from flywheel.core.verifiers import VerifierError
from flywheel.edge.refusals import Refused, check_choice
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.environments.proofs import judge_endpoints
from flywheel.environments.versions.reward_recipes import check_goes_with
from flywheel.evals.models import EvalRun
from flywheel.evals.serving import loaded_adapters
from flywheel.training.datasets import dataset_builder
from flywheel.training.launch import (
    device_choice,
    launch_estimate,
    leak_refusals,
    reward_lock,
    run_budgets,
    teacher_choice,
)
from flywheel.training.launch.fix_recommendation import baseline_of, lightest, recommendation_for
from flywheel.training.models import Dataset, PipelineStage, Recommendation, TrainingRun

MAX_SEED = 2**31 - 1
MAX_RANK = 512
LORA = {"rank": 8, "alpha": 16}
SERVER_S = 5.0
"""How long a launch waits to hear from the vLLM server."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A person's choices for a run.

    Without a dataset the fitting one is built from the set's corrected failures and, when `rollouts` names a finished
    eval run on its train split, from those attempts; `leave_out` are numbers of train tasks that it shall not have.
    """

    key: uuid.UUID
    base: Version
    algorithm: str
    task_set: TaskSet
    dataset: Dataset | None = None
    rollouts: EvalRun | None = None
    leave_out: Collection[int] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    has_all_settings: bool = False
    """Whether these are all that the run has. A run that is repeated gets no default of a setting that came later."""
    tuning: dict[str, Any] = field(default_factory=dict)
    """As suits the size of the base where it is empty."""
    seed: int = 1
    budget: dict[str, Any] = field(default_factory=dict)
    """What it may take at most (`run_budgets.py`)."""
    teacher: Version | None = None
    """The version whose probabilities it learns, for an algorithm that has one."""
    reward: RewardRecipe | None = None
    """What it learns from beside each task's verifier; that alone where it is empty."""
    replay: Dataset | None = None
    """Demonstrations to imitate beside the attempts, for an algorithm that practises."""
    environment_weights: dict[str, Any] = field(default_factory=dict)
    """The weight of each environment of a mix at the first step and at the last."""
    recommendation: Recommendation | None = None
    """What the fix ladder said before; it is asked where this is empty."""
    override_reason: str = ""
    """Why something else is done than it recommends."""
    stage: PipelineStage | None = None
    """The stage of a pipeline that the run is for."""
    follows: bool = False
    """Whether `base` only stands for the version that the stage before will have made of it."""
    speaker: Version | None = None
    """Whose prompt, tools and form that version will have, where they are not the base's: rows are written for it."""


def launch(request: LaunchRequest, actor: Actor) -> tuple[TrainingRun, bool]:
    """Freeze every reference and queue the run. Returns it and whether it is new.

    Data that has a held-out task of the set is refused, here as far as that is known without waiting and else by the
    run's worker before its trainer starts (`leak_refusals`); nobody can override that. What learns from a reward is
    refused until its audit is green or overridden (`reward_lock`). Raises Refused, also when there is nothing to train
    on.
    """
    project = request.task_set.project
    if launched := TrainingRun.objects.filter(project=project, idempotency_key=request.key).first():
        return launched, False
    chosen = check_choices(request)
    dataset = find_data(request, recipes.ALGORITHMS[request.algorithm], actor)
    return submit(request, chosen, dataset, actor)


def submit(
    request: LaunchRequest, chosen: dict[str, Any], dataset: Dataset, actor: Actor, sweep: uuid.UUID | None = None
) -> tuple[TrainingRun, bool]:
    """Queue a run of what `check_choices` and `find_data` have given, as one of a sweep if it is. Raises Refused where
    its reward is locked."""
    base, task_set = request.base, request.task_set
    audited = _check_reward(request, dataset)
    frozen = {name: chosen[name] for name in ("settings", "tuning", "seed")}
    digests = {"base": base.digest, "dataset": dataset.digest, "task_set": task_set.digest}
    digests |= {"teacher": request.teacher.digest} if request.teacher else {}
    digests |= {"reward": request.reward.digest} if request.reward else {}
    digests |= {"replay": request.replay.digest} if request.replay else {}
    weights = check_environment_weights(request, dataset)
    content = {"algorithm": request.algorithm, **digests, **frozen}
    content |= {"environment_weights": weights} if weights else {}
    forecast = launch_estimate.frozen_forecast(
        base, request.algorithm, chosen["settings"], chosen["tuning"], dataset, task_set, request.teacher
    )
    return TrainingRun.submit(
        key=request.key,
        actor=actor,
        entry="training.launch",
        about={"reason": chosen["override_reason"], "spec": content},
        project=task_set.project,
        base=base,
        dataset=dataset,
        task_set=task_set,
        teacher=request.teacher,
        reward_recipe=request.reward,
        replay=request.replay,
        environment_weights=weights,
        algorithm=request.algorithm,
        spec_digest=digest(content),
        forecast=forecast,
        outside_calls=_expected(request, chosen, dataset.task_sets or [task_set], forecast.get("longest")),
        total=chosen["settings"]["steps"],
        sweep=sweep,
        stage=request.stage,
        **chosen,
        **audited,
    )


def check(request: LaunchRequest, actor: Actor) -> dict[str, Any]:
    """Check all that a launch checks and queue nothing. Returns what the run would have, its rows built. Raises
    Refused."""
    chosen = check_choices(request)
    dataset = find_data(request, recipes.ALGORITHMS[request.algorithm], actor)
    weights = check_environment_weights(request, dataset)
    return {**chosen, "dataset": dataset, "environment_weights": weights, **_check_reward(request, dataset)}


def check_choices(request: LaunchRequest) -> dict[str, Any]:
    """Check what needs no data, and return it by the run's columns. Raises Refused."""
    check_choice(request.algorithm, recipes.ALGORITHMS, field="algorithm")
    algorithm = recipes.ALGORITHMS[request.algorithm]
    base, task_set, seed = request.base, request.task_set, request.seed
    baseline = _check_base(algorithm, base, task_set)
    teacher_choice.check_teacher(algorithm, base, request.teacher, is_moved=request.follows)
    task_sets = (request.dataset and request.dataset.task_sets) or [task_set]
    _refuse_benchmarks(algorithm, task_sets)
    tuning = check_tuning(request.tuning or {"mode": usual_mode(base)})
    settings = check_settings(algorithm, base, tuning, request.settings)
    teacher_choice.check_place(request.teacher, settings)
    if recipes.samples_elsewhere(settings):
        _refuse_untaken(tuning, settings)
    if settings.get("rollouts") == recipes.VLLM:
        _refuse_server(base, "settings.rollouts")
    if request.teacher is not None and settings.get("teacher_from") == recipes.VLLM:
        _refuse_server(request.teacher, "settings.teacher_from")
    if settings["device"] == device_choice.RAY:
        device_choice.refuse_cluster(request.algorithm, settings, task_sets, request.reward)
    if settings.get("step_rewards"):
        _refuse_judged_turns(task_sets, request.reward)
    if request.has_all_settings:
        settings = {name: settings[name] for name in request.settings}
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise Refused(f"{seed!r} is not a whole number from 0 to {MAX_SEED}", field="seed")
    recommendation = request.recommendation or recommendation_for(base, task_set)
    device_hour = model_prices.hour_of(task_set.project_id)
    return {
        "baseline": baseline,
        "tuning": tuning,
        "settings": settings,
        "seed": seed,
        "device": device_choice.device_label(settings),
        "budget": run_budgets.check(request.budget),
        "device_hour": device_hour,
        "recommendation": recommendation,
        "override_reason": _check_override(request, recommendation),
    }


def find_data(request: LaunchRequest, algorithm: recipes.Algorithm, actor: Actor) -> Dataset:
    """Return the dataset that was chosen, or build one, if it may be trained on. Raises Refused."""
    dataset, task_set, speaker = request.dataset, request.task_set, request.speaker or request.base
    if dataset is not None and request.leave_out:
        raise Refused(f"{dataset} has its rows already; tasks are left out of one that is built", field="leave_out")
    if dataset is None:
        dataset = dataset_builder.build(
            name=f"{task_set.name}-{algorithm.data}"[:100],
            kind=algorithm.data,
            task_set=task_set,
            actor=actor,
            version=speaker,
            rollouts=request.rollouts,
            leave_out=request.leave_out,
        )
    if dataset.kind != algorithm.data or dataset.task_set_id not in (None, task_set.pk):
        raise Refused(
            f"{dataset} holds {dataset.get_kind_display()} of {dataset.place}; {algorithm.label} wants "
            f"{Dataset.Kind(algorithm.data).label} of {task_set} or from elsewhere",
            field="dataset",
        )
    if dataset.project_id != task_set.project_id:
        raise Refused(f"{dataset} belongs to another project", field="dataset")
    if problem := dataset_builder.one_sided(dataset.recipe):
        raise Refused(f"{dataset} {problem}", field="dataset")
    if problem := dataset_builder.unfit(dataset, speaker):
        raise Refused(f"{problem}; build one for {speaker}", field="dataset")
    if request.replay is not None:
        _check_replay(request, algorithm, dataset, request.replay)
    leak_refusals.refuse_at_hand(request.base, dataset, task_set, request.teacher, request.replay, request.reward)
    sets = dataset.task_sets or [task_set]
    _check_recipe(algorithm, sets, request.reward)
    _refuse_silence(algorithm, sets)
    unpriced = teacher_choice.unpriced(request.teacher, request.settings)
    device_hour = model_prices.hour_of(task_set.project_id)
    run_budgets.check_dollars(request.budget, sets, device_hour, request.reward, unpriced)
    return dataset


def _check_replay(request: LaunchRequest, algorithm: recipes.Algorithm, dataset: Dataset, replay: Dataset) -> None:
    """Raise Refused for rows that cannot be imitated beside the run's attempts."""
    problem = ""
    if not algorithm.practises:
        problem = f"{algorithm.label} imitates rows anyway; mix {replay} with its data instead"
    elif replay.kind != Dataset.Kind.SFT:
        problem = f"{replay} holds {replay.get_kind_display()}; what is replayed is demonstrations"
    elif replay.project_id != request.task_set.project_id:
        problem = f"{replay} belongs to another project"
    elif unfit := dataset_builder.unfit(replay, speaker := request.speaker or request.base):
        problem = f"{unfit}; build one for {speaker}"
    elif replay.is_placed != dataset.is_placed:
        problem = f"of {dataset} and {replay} one is a mix of environments; expected both, or neither"
    else:
        told = {each.environment_version_id for each in dataset.task_sets or [request.task_set]}
        other = [each for each in replay.task_sets if each.environment_version_id not in told]
        if other:
            problem = f"{replay} has rows of {other[0].environment_version}, which the run does not practise in"
    if problem:
        raise Refused(problem, field="replay")


def check_environment_weights(request: LaunchRequest, dataset: Dataset) -> dict[str, list[float]]:
    """The weights of a mix's environments over the run; empty where none are set. Raises Refused."""
    weights = request.environment_weights
    if not weights:
        return {}
    if not (dataset.is_placed and recipes.ALGORITHMS[request.algorithm].practises):
        raise Refused(
            f"{dataset} is no mix of tasks to practise; environments have weights in a run that practises in several",
            field="environment_weights",
        )
    try:
        names = [task_set.environment_version.environment.name for task_set in dataset.task_sets]
        return recipes.check_environment_weights(weights, names)
    except FieldError as error:
        raise Refused(error.problem, field=error.field) from error


def _expected(
    request: LaunchRequest, chosen: dict[str, Any], task_sets: Sequence[TaskSet], prompt: int | None
) -> dict[str, Any]:
    """Forecast the questions of the run to others. `prompt`: tokens of the longest prompt, where that is known."""
    settings = chosen["settings"]
    asked = launch_estimate.expected_questions(
        request.algorithm, settings, task_sets, chosen["baseline"], request.reward
    )
    found = asked.to_json() if asked else {}
    if readings := teacher_choice.expected_readings(request.teacher, settings, prompt, task_sets):
        found["teacher"] = readings.to_json()
    return {"expected": found} if found else {}


def parameters_of(version: Version) -> int | None:
    """About how many weights the version has; an upper bound from the size of its files, in 16 bits each."""
    return version.weights.size // 2 if version.weights else None


def usual_mode(base: Version | None) -> str:
    """Return how this version's weights are tuned unless somebody says otherwise."""
    return recipes.usual_mode(parameters_of(base) if base else None)


def default_settings(algorithm: str, base: Version | None, mode: str) -> dict[str, Any]:
    """Every setting at its default for this algorithm and a model of this size."""
    return recipes.defaults(algorithm, parameters=parameters_of(base) if base else None, mode=mode)


def check_settings(
    algorithm: recipes.Algorithm, base: Version, tuned: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """The complete settings of the run. Raises Refused."""
    defaults = default_settings(algorithm.name, base, tuned["mode"])
    try:
        settings = recipes.validate(algorithm.name, {**defaults, **given})
        recipes.check_mode(algorithm.name, tuned["mode"], settings)
    except FieldError as error:
        where = "" if error.field == "tuning.mode" else "settings."
        raise Refused(error.problem, field=f"{where}{error.field}") from error
    if why := WorkerDevice.lacking(tuned["mode"], settings["device"]):
        raise Refused(why, field="tuning.mode")
    if why := WorkerDevice.lacking(settings.get("rollouts", ""), settings["device"]):
        raise Refused(why, field="settings.rollouts")
    if why := recipes.lacking(settings.get("sharding", "")):
        raise Refused(why, field="settings.sharding")
    return settings


def check_tuning(value: dict[str, Any]) -> dict[str, Any]:
    """Check the tuning: all weights, or an adapter of a rank. Raises Refused."""
    mode = value.get("mode")
    wanted = {"mode"} if mode == "full" else {"mode", *LORA}
    if mode not in recipes.MODES:
        raise Refused(f"{mode!r} is unknown; use {', '.join(recipes.MODES)}", field="tuning.mode")
    if unknown := sorted(set(value) - wanted):
        raise Refused(f"is not part of {mode}; {', '.join(sorted(wanted))} can be said", field=f"tuning.{unknown[0]}")
    if mode == "full":
        return {"mode": "full"}
    tuned = {**LORA, **value}
    for name in LORA:
        if isinstance(tuned[name], bool) or not isinstance(tuned[name], int) or not 1 <= tuned[name] <= MAX_RANK:
            raise Refused(f"{tuned[name]!r} is not a whole number from 1 to {MAX_RANK}", field=f"tuning.{name}")
    return tuned


def needs_reason(algorithm: str, recommendation: Recommendation) -> str:
    """Why a person must say why they choose this algorithm; empty when it is the recommended fix."""
    if not recipes.ALGORITHMS[algorithm].makes_policy:  # it fixes nothing by itself
        return ""
    first = lightest(recommendation)
    if first is None:
        return "the evidence supports no fix yet"
    return "" if first["fix"] in recipes.ALGORITHMS[algorithm].fixes else f"{first['label']} is recommended"


def _check_base(algorithm: recipes.Algorithm, base: Version, task_set: TaskSet) -> EvalRun | None:
    """The baseline that the run will be compared with; a reward model needs none. Raises Refused."""
    if base.agent.project_id != task_set.project_id:
        raise Refused(f"{base} belongs to another project than {task_set}", field="base")
    if problem := untrainable(base):
        raise Refused(problem, field="base")
    baseline = baseline_of(base, task_set)
    if baseline is None and algorithm.makes_policy:
        raise Refused(
            f"evaluate {base} on the held-out tasks of {task_set} first; without a baseline there is nothing to "
            f"compare with",
            field="base",
        )
    return baseline


def untrainable(base: Version) -> str:
    """Why a version cannot be trained; empty when it can."""
    if base.is_program:
        return (
            f"{base} is a program, whose code no trainer changes; train a version that is its model's weights, on "
            "datasets of its trajectories, and serve the result to the program"
        )
    return "" if base.weights else f"{base} uses a hosted model, which can't be trained here"


def _refuse_benchmarks(algorithm: recipes.Algorithm, task_sets: Sequence[TaskSet]) -> None:
    """Raise Refused for tasks to practise that are somebody else's."""
    for task_set in task_sets if algorithm.data == "tasks" else ():
        version = task_set.environment_version
        if kinds.KINDS[version.environment.kind].is_external:
            raise Refused(
                f"{version} is somebody else's benchmark: all its tasks are held-out, and none is trained on. Attach a "
                "tool server of your own as an environment and train on its tasks; compare the result on this one",
                field="algorithm",
            )


def _refuse_judged_turns(task_sets: Sequence[TaskSet], recipe: RewardRecipe | None) -> None:
    """Raise Refused where somebody else would have to judge or play each turn anew."""
    versions = [task_set.environment_version for task_set in task_sets]
    asking: list[tuple[Any, frozenset[str]]] = [
        (version, kinds.needs(version.environment.kind, version.config, version.verifier)) for version in versions
    ]
    asking += [(recipe, recipe.rubric.needs)] if recipe else []
    for whose, needs in asking:
        if needs & kinds.OUTSIDE:
            raise Refused(
                f"each turn is judged, and {whose} asks a judge or a server for it; judge whole episodes there",
                field="settings.step_rewards",
            )


def _refuse_untaken(tuning: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise Refused where the vLLM server could not load what is trained."""
    own = {name.removeprefix("lora."): value for name, value in settings.items() if name.startswith("lora.")}
    if why := list(lora_adapters.reasons({"peft_type": "LORA", "r": tuning["rank"]} | own)):
        raise Refused(f"vLLM cannot load what is trained: {'; '.join(why)}", field="settings.rollouts")


def _refuse_server(version: Version, field: str) -> None:
    """Raise Refused where the vLLM server cannot be asked for the version: it is not there, or has another base."""
    try:
        loaded_adapters.check(version)
        loaded_adapters.check_base(version, time.monotonic() + SERVER_S)
    except (lora_adapters.NotServable, loaded_adapters.ServerError) as error:
        raise Refused(str(error), field=field) from error


def _check_recipe(algorithm: recipes.Algorithm, task_sets: Sequence[TaskSet], recipe: RewardRecipe | None) -> None:
    """Raise Refused for a reward recipe that the run could not learn from."""
    if recipe is None:
        return
    if not algorithm.is_reinforced:
        raise Refused(f"{algorithm.label} learns from no reward; choose a recipe with GRPO and its kin", field="reward")
    for task_set in task_sets:
        if recipe.project_id != task_set.project_id:
            raise Refused(f"{recipe} belongs to another project", field="reward")
        check_goes_with(recipe, task_set.environment_version)


def _refuse_silence(algorithm: recipes.Algorithm, task_sets: Sequence[TaskSet]) -> None:
    """Raise Refused for a reward, or for tools, of which a model has its say that nobody could ask."""
    for task_set in task_sets if algorithm.practises else ():
        version = task_set.environment_version
        try:
            judge_endpoints.check(task_set.project, version.verifier)
            judge_endpoints.check_simulator(task_set.project, version.config)
        except VerifierError as error:
            raise Refused(f"{version}: {error}", field="algorithm") from error


def _check_reward(request: LaunchRequest, dataset: Dataset) -> dict[str, Any]:
    """The audit and the override that let it learn from its reward, to be kept with it. Raises Refused."""
    found = reward_lock.standing_of(
        request.algorithm, request.base, dataset, request.stage, request.reward, request.replay
    )
    if found is None:
        return {}
    judged, holds = found
    if not holds.allows:
        whose = f"outputs of {judged.version} on {judged.task_set}"
        problem = f"{reward_lock.LOCKED}: {holds.words}; audit {whose}, or have an approver override"
        raise Refused(problem, field="reward")
    return {"reward_audit": holds.audit, "audit_override": holds.override}


def _check_override(request: LaunchRequest, recommendation: Recommendation) -> str:
    """The reason that is kept with the run, empty when none is needed. Raises Refused."""
    base, task_set, reason = request.base, request.task_set, request.override_reason.strip()
    if (recommendation.version_id, recommendation.task_set_id) != (base.pk, task_set.pk):
        raise Refused(f"{recommendation} is not about {base} and {task_set}", field="recommendation")
    problem = needs_reason(request.algorithm, recommendation)
    if problem and not reason:
        label = recipes.ALGORITHMS[request.algorithm].label
        raise Refused(f"{problem} and {label} was chosen; give a reason for the record", field="override_reason")
    return reason if problem else ""
