"""Before you launch: what the data is, how long it will take, how much memory it needs, what it asks of others."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

from django.db.models import Count, F, Max, Min, Q, QuerySet

from flywheel.agents.models import Version
from flywheel.core import envs
from flywheel.core.envs import kinds
from flywheel.core.envs.worlds.stand_ins import server_of
from flywheel.core.evidence.contamination import Report
from flywheel.core.evidence.fix_ladder import LEARNABLE
from flywheel.core.recipes import ALGORITHMS, SETTINGS
from flywheel.core.recipes.memory_forecast import ASKED_MOST
from flywheel.core.text.number_words import percent
from flywheel.core.verifiers import rubric
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import RewardRecipe, Split, TaskSet
from flywheel.environments.task_sets import suite_definitions
from flywheel.evals.models import EvalRun
from flywheel.training.datasets import contamination_checks
from flywheel.training.datasets.dataset_builder import draft, kept, one_sided
from flywheel.training.datasets.dataset_files import Draft
from flywheel.training.launch import memory_estimate, validation_split
from flywheel.training.launch.fix_recommendation import turns_of
from flywheel.training.models import ContaminationCheck, Dataset, Point, TrainingRun

FIRST_ROWS = 3
"""Rows that the page shows of a dataset that is there."""
EARLIER = 5
"""Earlier runs that a duration is estimated from."""
ROUNDED_TO = 32
"""Tokens of which a proposed length is a multiple."""
ROOMY = 4
"""How many times as long as nearly all answers a limit may be before a lower one is proposed: RL lengthens answers."""
EVERY_MOST = 100
"""Evaluation and checkpoint come six times in a run, and at least after so many steps."""


@dataclass(frozen=True, slots=True)
class Data:
    """The data of a run that would be launched now."""

    train: int
    held_out: int
    train_clusters: int
    held_out_clusters: int
    draft: Draft | None
    """Of a dataset that is there, its first rows."""
    rows: int
    problem: str
    """Why there are no rows."""
    guards: int
    """Train tasks that were made of successes."""
    leaks: dict[str, Any] | None
    """What the rows have of the held-out tasks; None without rows, or with too many to look while a page waits."""
    elsewhere: list[tuple[TaskSet, dict[str, Any]]]
    """Other held-out sets that the rows block: a version that learnt from them cannot be compared there."""
    blocked: str
    """Why these rows may not be trained on with this set."""
    warning: str
    """What a person should know of the baseline before they train on this."""


@dataclass(frozen=True, slots=True)
class Duration:
    expected: timedelta
    step: timedelta
    """Of a step, with its share of evaluations and checkpoints."""
    runs: list[TrainingRun]
    """Earlier ones that it is estimated from."""
    is_rough: bool = False
    """Whether these had another size or batch, so that only the arithmetic of a step is compared."""


def data_of(
    task_set: TaskSet,
    kind: str,
    rollouts: EvalRun | None,
    baseline: EvalRun | None,
    leave_out: Collection[int] = (),
    dataset: Dataset | None = None,
) -> Data:
    """Return the data that a run of this kind would learn from and be measured by."""
    members = list(task_set.members.values_list("split", "task__cluster"))
    clusters = {split: {cluster for found, cluster in members if found == split} for split in Split.values}
    made, problem = None, ""
    try:
        if dataset is not None:
            made = kept(dataset, FIRST_ROWS)
        else:
            version = baseline.version if baseline else None
            made = draft(kind=kind, task_set=task_set, version=version, rollouts=rollouts, leave_out=leave_out)
    except Refused as error:
        problem = error.problem
    found = _leaks(made, dataset, task_set) if made else {}
    lone = one_sided(made.recipe) if made else ""
    leaks = found.get(task_set)
    reports = {each: contamination_checks.report_of(check) for each, check in found.items()}
    return Data(
        train=sum(split == Split.TRAIN for split, _ in members),
        held_out=sum(split == Split.HELD_OUT for split, _ in members),
        train_clusters=len(clusters[Split.TRAIN]),
        held_out_clusters=len(clusters[Split.HELD_OUT]),
        draft=made,
        rows=dataset.rows if dataset else len(made.rows) if made else 0,
        problem=problem,
        guards=made.recipe["tasks"] - made.recipe["from_failures"] if made else 0,
        leaks=reports.get(task_set),
        elsewhere=[(each, report) for each, report in reports.items() if each != task_set and report["blocked"]],
        blocked=(leaks and contamination_checks.refusal(leaks, task_set))
        or _guarded(found, baseline)
        or (f"{dataset} {lone}" if lone else ""),
        warning=_out_of_range(baseline, kind),
    )


def _leaks(made: Draft, dataset: Dataset | None, task_set: TaskSet) -> Mapping[TaskSet, ContaminationCheck | Report]:
    """Look up or find, as far as nobody has to wait for it, what the rows have of each held-out set."""
    if dataset is not None:
        return {check.task_set: check for check in contamination_checks.at_hand(dataset)}
    return contamination_checks.preview(made.rows, task_set) or {}


def _guarded(found: Mapping[TaskSet, ContaminationCheck | Report], baseline: EvalRun | None) -> str:
    """Say what the data has of a regression suite of the agent that learns from it."""
    guards = suite_definitions.present(baseline.version.agent) if baseline else ()
    checks = [(found[suite.task_set], suite) for suite in guards if suite.task_set in found]
    return next(filter(None, (contamination_checks.suite_refusal(*each) for each in checks)), "")


@dataclass(frozen=True, slots=True)
class Proposed:
    """A setting that the data speaks for. Nothing takes it but a person."""

    setting: str
    value: int
    why: str


def proposed_lengths(
    algorithm: str,
    settings: Mapping[str, Any],
    task_set: TaskSet,
    baseline: EvalRun | None,
    memory: memory_estimate.Memory | None,
) -> list[Proposed]:
    """Propose the lengths that the rows and the baseline's answers need, where the settings have others.

    `max_length` where the longest row of the forecast is cut. `max_completion_length` where more than one in a hundred
    of the baseline's answers is longer; and where attempts may be `ROOMY` times as long as nearly all answers are,
    twice that length. An attempt of several turns does not tell how long one answer is.
    """
    found = []
    if memory and memory.lengths.longest > settings.get("max_length", math.inf):
        about = "" if memory.preview else "about "
        why = f"The longest row has {about}{memory.lengths.longest:,} tokens; {settings['max_length']:,} cut it."
        found += _proposed("max_length", memory.lengths.longest, why)
    limit = settings.get("max_completion_length")
    long = _long_answer(task_set, baseline) if limit and ALGORITHMS[algorithm].makes_policy else None
    if limit and long and long > limit:
        why = f"More than 1% of the baseline's answers are longer than {limit:,} tokens; 99% have up to {long:,}."
        found += _proposed("max_completion_length", long, why)
    elif limit and long and ALGORITHMS[algorithm].practises and limit > ROOMY * long:
        why = f"99% of the baseline's answers have up to {long:,} tokens; twice that leaves room and saves memory."
        found += _proposed("max_completion_length", 2 * long, why)
    return found


def _proposed(setting: str, tokens: int, why: str) -> list[Proposed]:
    """So many tokens, rounded up; none where the setting does not go so far."""
    value = -(-tokens // ROUNDED_TO) * ROUNDED_TO
    most = SETTINGS[setting].max
    return [] if most is not None and value > most else [Proposed(setting, value, why)]


def _long_answer(task_set: TaskSet, baseline: EvalRun | None) -> int | None:
    """Tokens that 99% of the baseline's answers do not exceed; None where nobody counted them, or over turns."""
    if baseline is None or turns_of(task_set) > 1:
        return None
    counted = baseline.results.filter(tokens_out__gt=0).order_by("tokens_out").values_list("tokens_out", flat=True)
    number = counted.count()
    return counted[-(-99 * number // 100) - 1] if number else None


def success_of(run: EvalRun | None) -> dict[str, Any] | None:
    """The estimate of success in a finished eval."""
    found: dict[str, Any] | None = run.summary.get("metrics", {}).get("success") if run else None
    return found


def expected_duration(
    base: Version, settings: Mapping[str, Any], algorithm: str, operations: float | None = None
) -> Duration | None:
    """Estimate the run's duration, from earlier runs of the algorithm on weights and batches of this very size.

    Loading and the first step are taken as they were, the other steps (evaluations and checkpoints among them) in
    proportion. Without such a run, from runs that learn from the same kind of rows, at the speed in `operations` of a
    step that theirs were forecast to need. None without those either.
    """
    if base.weights is None:
        return None
    runs = TrainingRun.objects.filter(project=base.agent.project_id, state=State.SUCCEEDED, fence__lte=1)
    same = _timed(
        runs.filter(
            algorithm=algorithm,
            base__weights__size=base.weights.size,
            settings__batch_size=settings.get("batch_size"),
        )
    )
    if same:
        return _duration(same, median(map(_step_seconds, same)), settings["steps"])
    if not operations:
        return None
    kin = [name for name, row in ALGORITHMS.items() if row.data == ALGORITHMS[algorithm].data]
    alike = _timed(runs.filter(algorithm__in=kin, forecast__operations__gt=0))
    if not alike:
        return None
    speed = median(run.forecast["operations"] / _step_seconds(run) for run in alike)
    return _duration(alike, operations / speed, settings["steps"], is_rough=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions of a run to those whom its worker asks for it, at most: who says the same again is asked once."""

    attempts: int
    """Episodes that are played and judged."""
    judgements: int
    """Of LLM judges."""
    usd: float | None
    """By what its baseline paid for an attempt; None where that is not known."""
    played_by: tuple[str, ...]
    """Who carries calls out: `server`, `gym` or `simulator`."""
    has_one_state: bool
    """Whether a tool server does not begin anew, so that attempts meet what others have changed."""

    def to_json(self) -> dict[str, Any]:
        return {"attempts": self.attempts, "judgements": self.judgements, "usd": self.usd}


def expected_questions(
    algorithm: str,
    settings: Mapping[str, Any],
    task_sets: Sequence[TaskSet],
    baseline: EvalRun | None,
    recipe: RewardRecipe | None = None,
) -> Asked | None:
    """Return what a run asks of judges, tool servers and models beside the policy, at most; None where it asks none."""
    versions = [task_set.environment_version for task_set in task_sets]
    judges = [len(rubric.judges(version.verifier)) for version in versions]
    elsewhere = [kinds.players(each.environment.kind, each.config) & kinds.OUTSIDE for each in versions]
    by_recipe = sum(part.sample for part in rubric.judges(recipe.spec).values()) if recipe else 0.0
    if not any(judges) and not any(elsewhere) and not by_recipe:
        return None
    steps, attempts = settings["steps"], 0
    if ALGORITHMS[algorithm].practises:
        attempts = settings["batch_size"] * -(-steps // settings.get("num_iterations", 1))
        attempts *= 1 + (settings.get("max_resamples", 0) if settings.get("dynamic_sampling") else 0)
    judgements, beside = attempts * max(judges) + math.ceil(attempts * by_recipe), 0
    for task_set, count in zip(task_sets, judges, strict=True):
        held_out, validated = _asked_on_the_way(task_set, settings)
        beside += held_out + validated
        judgements += (held_out + validated) * count + math.ceil(validated * by_recipe)
    each = None
    if not by_recipe:  # whose judges no eval has paid
        each = _paid_for_an_attempt(baseline, any(judges), any("simulator" in found for found in elsewhere))
    servers = [server_of(envs.build(row.environment.kind, row.config, row.verifier)) for row in versions]
    return Asked(
        attempts + beside,
        judgements,
        None if each is None else each * (attempts + beside),
        tuple(sorted(frozenset().union(*elsewhere))),
        any(server is not None and not server.resets for server in servers),
    )


def eval_interval(steps: int) -> int:
    """Return after how many steps a run is evaluated and saved."""
    return max(1, min(EVERY_MOST, steps // 6))


def _asked_on_the_way(task_set: TaskSet, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Attempts at held-out tasks and at validation tasks: before the first step, at intervals, and at the end."""
    steps: int = settings["steps"]
    every = eval_interval(steps)
    held_out = task_set.members.filter(split=Split.HELD_OUT).count()
    validated = 0
    if share := settings.get("validation_share"):
        tasks = min(len(validation_split.choose_tasks(task_set, share, 0)), settings["validation_tasks"])
        validated = tasks * (1 + -(-steps // (settings["validation_every"] or every)))
    return min(held_out, ASKED_MOST) * (1 + -(-steps // every)), validated


def _paid_for_an_attempt(baseline: EvalRun | None, has_judges: bool, has_simulator: bool) -> float | None:
    """Dollars that the baseline's judges and simulator took for each of its attempts; None where nobody knows."""
    count = baseline.results.count() if baseline else 0
    if baseline is None or not count:
        return None
    rows = [*baseline.judges.values()] if has_judges else []
    rows += [baseline.simulator] if has_simulator else []
    paid = [row.get("cost_usd") for row in rows]
    if None in paid or (has_judges and not baseline.judges):
        return None
    return float(sum(paid)) / count


def frozen_forecast(
    base: Version,
    algorithm: str,
    settings: Mapping[str, Any],
    tuning: Mapping[str, Any],
    dataset: Dataset,
    task_set: TaskSet,
    teacher: Version | None,
) -> dict[str, Any]:
    """The forecast that a run keeps beside what it will measure; empty where nothing is known."""
    found, _ = memory_estimate.expected_memory(
        base=base,
        algorithm=algorithm,
        settings=settings,
        tuning=tuning,
        dataset=dataset,
        task_set=task_set,
        teacher=teacher,
    )
    if found is None:
        return {}
    return found.to_json() | step_time(expected_duration(base, settings, algorithm, found.forecast.operations))


def step_time(duration: Duration | None) -> dict[str, Any]:
    """The part of a kept forecast that is about time: `{"step_seconds", "rough"}`."""
    if duration is None:
        return {"step_seconds": None, "rough": None}
    return {"step_seconds": duration.step.total_seconds(), "rough": duration.is_rough}


def _timed(runs: QuerySet[TrainingRun]) -> list[Any]:
    """The newest of these runs whose steps took time, with the times of the first and the last one and their number."""
    steps = Q(points__kind=Point.Kind.STEP)
    measured = runs.annotate(
        first=Min("points__at", filter=steps), last=Max("points__at", filter=steps), count=Count("points", filter=steps)
    ).filter(count__gt=1, last__gt=F("first"))
    return list(measured.order_by("-pk")[:EARLIER])


def _step_seconds(run: Any) -> float:
    return float((run.last - run.first).total_seconds() / (run.count - 1))


def _duration(earlier: list[Any], step: float, steps: int, *, is_rough: bool = False) -> Duration:
    start = median((run.first - run.started_at).total_seconds() for run in earlier)
    expected = timedelta(seconds=start + step * max(0, steps - 1))
    return Duration(expected, timedelta(seconds=step), earlier, is_rough)


def _out_of_range(baseline: EvalRun | None, kind: str) -> str:
    success = success_of(baseline)
    if success is None or success["mean"] is None:
        return ""
    low, high = LEARNABLE
    if success["mean"] < low:
        hint = (
            "groups of attempts would mostly fail alike; SFT comes first" if kind == "tasks" else "expect a small start"
        )
        return f"The baseline solves less than {percent(low)} of the held-out tasks: {hint}."
    if success["mean"] > high:
        return f"The baseline solves more than {percent(high)} of the held-out tasks already: little is left to learn."
    return ""
