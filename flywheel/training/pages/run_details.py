"""A run as its page shows it: how far it is, its rollouts, its chain. And a dataset's rows."""

import json
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from django.urls import reverse
from django.utils import timezone

from flywheel.core import recipes
from flywheel.core.recipes import SETTINGS
from flywheel.core.verifiers import PASS
from flywheel.edge.numbers import number
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun
from flywheel.training.datasets.dataset_builder import open_rows
from flywheel.training.launch.fix_recommendation import baseline_of
from flywheel.training.models import Dataset, Point, TrainingEvent, TrainingRun
from flywheel.training.runs.run_files import output_size

TURNED_SHOWN = 3
"""Sampled tasks that stand beside the chart of held-out success."""
SAMPLED_SHOWN = 5
"""Sampled tasks that are shown until somebody asks for others."""
SAMPLED_STEPS = 3
"""Evaluations whose rollouts stand side by side: the first, the middle one, the last."""
LOG_LINES = 300
ROWS_SHOWN = 20
CANDIDATE_WITHIN = timedelta(minutes=1)
"""Of the evaluation's end: a candidate that is not there by then will not come."""


def samples(run: TrainingRun, chosen: str = "") -> dict[str, Any]:
    """Rollouts of the same held-out tasks at several steps, side by side: `{steps, rows, turned, counts, chosen}`.

    `turned` are rows of tasks that the last of these steps answers otherwise than the first, those it broke first.
    `rows` are those that are chosen, one of `counts` ("fixed", "broken", "others", "all"), or the first few, turned
    ones before the others.
    """
    found = list(run.points.filter(kind=Point.Kind.SAMPLES).order_by("step").values_list("step", flat=True))
    if not found:
        return {"steps": [], "rows": [], "turned": [], "counts": {}, "chosen": ""}
    steps = sorted({found[0], found[len(found) // 2], found[-1]})[:SAMPLED_STEPS]
    points = run.points.filter(kind=Point.Kind.SAMPLES, step__in=steps).order_by("step")
    by_task: dict[str, dict[int, Any]] = {}
    prompts: dict[str, str] = {}
    for point in points:
        for sample in point.values:
            by_task.setdefault(sample["task_id"], {})[point.step] = sample
            prompts[sample["task_id"]] = sample["prompt"]
    environment = run.task_set.environment_version.environment
    place = (run.project.slug, environment.name)
    numbers = {task: number(task.removeprefix("t-")) for task in by_task if task.startswith("t-")}
    known = environment.tasks.filter(number__in=set(numbers.values())).values_list("number", flat=True)
    urls = {number: reverse("environments:task", args=[*place, number]) for number in known}
    rows: list[dict[str, Any]] = [
        {
            "task": task,
            "url": urls.get(numbers.get(task) or 0, ""),
            "prompt": prompts[task],
            "cells": [at.get(step) for step in steps],
        }
        for task, at in by_task.items()
    ]
    ends = [(row, _is_right(row["cells"][0]), _is_right(row["cells"][-1])) for row in rows]
    broken = [row for row, before, after in ends if before and after is False]
    fixed = [row for row, before, after in ends if before is False and after]
    turned = broken + fixed
    others = [row for row in rows if row not in turned]
    groups = {"fixed": fixed, "broken": broken, "others": others, "all": turned + others}
    return {
        "steps": steps,
        "rows": groups.get(chosen, groups["all"][:SAMPLED_SHOWN]),
        "turned": turned[:TURNED_SHOWN],
        "counts": {name: len(group) for name, group in groups.items()},
        "chosen": chosen if chosen in groups else "",
    }


def _is_right(sample: Mapping[str, Any] | None) -> bool | None:
    """Whether a sampled answer passed; None where there is none or it was not scored."""
    return None if sample is None or sample["score"] is None else bool(sample["score"] >= PASS - 1e-9)


def log(run: TrainingRun) -> list[TrainingEvent]:
    """The newest lines of the run's log, oldest first."""
    return list(run.events.order_by("-id")[:LOG_LINES])[::-1]


def fingerprint(run: TrainingRun) -> str:
    """Changes whenever there is something new to show."""
    last = run.events.order_by("-id").values_list("id", flat=True).first() or 0
    came = (run.evaluation.state if run.evaluation else "", run.candidates.count())
    beside = "".join(f"-{each.state}" for each, _ in others(run))
    now = f"{run.state}-{run.done}-{run.events_read}-{last}-{run.attempt}-{int(run.is_cancelling)}-{output_size(run)}"
    return f"{now}-{came[0]}-{came[1]}{beside}"


def others(run: TrainingRun) -> list[tuple[EvalRun, EvalRun | None]]:
    """Find the produced version's evals on a mix's other environments, each with the base's where there is one."""
    if run.produced is None or not run.dataset.mix:
        return []
    sets = run.task_sets[1:]
    found = EvalRun.objects.filter(version=run.produced, task_set__in=sets, split=Split.HELD_OUT)
    newest = found.select_related("task_set").order_by("task_set_id", "-pk").distinct("task_set_id")
    return [(each, baseline_of(run.base, each.task_set)) for each in newest]


def is_settled(run: TrainingRun) -> bool:
    """Whether nothing more will come: the run is over, its evaluations too, and the gate has spoken."""
    if not run.is_finished or run.evaluation is None:
        return run.is_finished
    if not all(each.is_finished for each, _ in others(run)):
        return False
    if not run.evaluation.is_finished or run.evaluation.finished_at is None:
        return run.evaluation.is_finished
    return timezone.now() - run.evaluation.finished_at > CANDIDATE_WITHIN or run.candidates.exists()


def lineage(run: TrainingRun) -> list[dict[str, Any]]:
    """From the version it starts from to what came of it."""
    slug = run.project.slug
    chain = [
        _link(str(run.base), "agents:version", slug, run.base.agent.name, run.base.number),
        _link(f"set {run.task_set}", "environments:task_set", slug, run.task_set.name, run.task_set.version),
        _link(f"dataset {run.dataset}", "training:dataset", slug, run.dataset.name, run.dataset.version),
        {"label": f"run {run}", "url": "", "current": True},
    ]
    if run.produced:
        chain.append(_link(str(run.produced), "agents:version", slug, run.produced.agent.name, run.produced.number))
    if run.reward_model:
        made = run.reward_model
        chain.append(_link(f"reward model {made}", "environments:reward_model", slug, made.name, made.number))
    if run.evaluation:
        chain.append(_link(str(run.evaluation), "evals:run", slug, run.evaluation.pk))
    for candidate in run.candidates.all()[:1]:
        chain.append(_link(str(candidate), "promotions:candidate", slug, candidate.pk))
    return chain


def dataset_rows(dataset: Dataset, start: int = 0) -> tuple[list[dict[str, Any]], str]:
    """A page of a dataset's rows, or why they cannot be shown."""
    try:
        with open_rows(dataset) as file:
            return [json.loads(line) for line in islice(file, start, start + ROWS_SHOWN)], ""
    except FileNotFoundError:
        return [], "The storage has lost this dataset's file. Build it again with the same digest."
    except ValueError as error:
        return [], f"The file of this dataset is damaged: {error}."


def dataset_lineage(dataset: Dataset) -> list[dict[str, Any]]:
    """From the tasks, or the trajectories, to the newest run that learnt from them."""
    slug, task_set = dataset.project.slug, dataset.task_set
    chain: list[dict[str, Any]] = [{"label": f"dataset {dataset}", "url": "", "current": True}]
    if task_set is not None:
        environment = task_set.environment_version.environment.name
        chain = [
            _link(environment, "environments:environment", slug, environment),
            _link(f"set {task_set}", "environments:task_set", slug, task_set.name, task_set.version),
            *chain,
        ]
    elif dataset.origin == Dataset.Origin.TRAJECTORIES:
        chain = [_link("trajectories", "trajectories:index", slug), *chain]
    chain += [_link(f"run {run}", "training:run", slug, run.pk) for run in dataset.training_runs.order_by("-pk")[:3]]
    return chain


def settings_rows(run: TrainingRun) -> list[dict[str, Any]]:
    """Every frozen setting, those that differ from the algorithm's default marked."""
    defaults = recipes.defaults(run.algorithm)
    order, words = {name: at for at, name in enumerate(SETTINGS)}, {True: "yes", False: "no"}
    return [
        {
            "name": name,
            "value": words[value] if isinstance(value, bool) else value,
            "is_default": name in defaults and defaults[name] == value,
        }
        for name, value in sorted(run.settings.items(), key=lambda item: order.get(item[0], len(order)))
    ]


def failed_advice(run: TrainingRun) -> str:
    """Advise a person what to do about a failure, by its kind."""
    return ADVICE.get(
        run.error_kind, "Resume continues from the newest checkpoint, or from the start if there is none."
    )


_AGAIN = "Resuming would fail again: launch another run with this fixed."
ADVICE: Mapping[str, str] = {
    "bad_spec": _AGAIN,
    "data": _AGAIN,
    "contamination": _AGAIN,
    "adapter": _AGAIN,
    "model": "Once the model's files are repaired, resume; otherwise launch another run.",
    "verifier": "Fix the verifier or the tasks, freeze a new task set, and launch on it.",
    "teacher": "Once the teacher's endpoint is as the error says, resume; otherwise launch a run with another teacher.",
    "sampler": "Once the vLLM server is as the error says, resume.",
    "reward_audit": "Audit the reward again, or have an approver override it, then resume.",
    "nan": "Resuming would fail again: launch another run with a lower learning rate.",
    "disk_full": "Free some disk space, then resume.",
    "ray_storage": "Once the storage is as the error says it should be, resume.",
    "ray_away": "Once the cluster answers, resume.",
    "out_of_memory": "Launch another run with a smaller micro_batch_size or max_completion_length.",
    "worker_lost": "Once a worker runs again, resume.",
    "trainer_died": "See the error above. Once it is fixed, resume.",
}


def _link(label: str, name: str, *args: Any) -> dict[str, Any]:
    return {"label": label, "url": reverse(name, args=args), "current": False}
