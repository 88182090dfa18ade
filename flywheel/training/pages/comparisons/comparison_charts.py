"""The curves of several runs over one another, as `{% chart %}` takes them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

from flywheel.core.text.number_words import percent
from flywheel.training.models import Point, TrainingRun
from flywheel.training.pages.run_charts import PICTURES, Picture, lines_of
from flywheel.training.runs.compared_runs import Measure, Side, grouped, loss_group, reward_group
from flywheel.training.runs.step_points import Steps

SHARED: dict[str, Callable[[Side], Hashable]] = {"reward": reward_group, "loss": loss_group}
"""Pictures of `run_charts` that are always drawn over one another, and what runs must have in common for that."""


def held_out(measure: Measure) -> dict[str, Any]:
    """Held-out success over steps, a line for each run; dashed where all of them began."""
    starts = {side.start for side in measure.sides}
    start = next(iter(starts)) if len(starts) == 1 else None
    first = measure.sides[0].run
    note = f"{first.task_sets[0]}, greedy, {measure.tasks} tasks"
    if measure.tasks:
        note += f"; one task is {100 / measure.tasks:.1f} points"
    if len(measure.sides) == 1:  # a chart of one line has no legend
        note = f"{first}, {note}"
    return {
        "kind": "line",
        "title": "Held-out success",
        "key": "compared-held-out-" + "-".join(str(side.run.pk) for side in measure.sides),
        "note": f"{note}; dashed: step 0" if start is not None else note,
        "x": {"title": "step"},
        "y": {"title": "share", "unit": "%", "range": [0, 100]},
        "series": [_line(side, [(step, _percent(value)) for step, value in side.evals]) for side in measure.sides],
        **({} if start is None else {"baseline": round(100 * start, 2)}),
    }


def validation(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """The mean validation score over steps, of runs that keep the same tasks aside, where at least two have it."""
    rows = {side.run.pk: _validated(side.run) for side in sides if side.run.makes_policy}
    found: list[dict[str, Any]] = []
    for group in grouped([side for side in sides if rows.get(side.run.pk)], lambda side: _aside(side, rows)):
        if len(group) < 2:
            continue
        lines = [_line(side, [(at, _percent(score)) for at, score, _ in rows[side.run.pk]]) for side in group]
        found.append(
            {
                "kind": "line",
                "title": "Validation score",
                "key": "compared-validation-" + "-".join(str(side.run.pk) for side in group),
                "note": f"the same {rows[group[0].run.pk][0][2]} training tasks, kept aside",
                "x": {"title": "step"},
                "y": {"title": "share", "unit": "%", "range": [0, 100]},
                "series": lines,
            }
        )
    return found


def curves(sides: Sequence[Side], measured: Mapping[int, Steps], chosen: str = "") -> list[dict[str, Any]]:
    """Reward, loss and the chosen picture of the runs that can be compared by them, where at least two have measured
    them; a chart for each metric of a picture. `measured`: each run's metrics by step."""
    found = []
    for picture in PICTURES:
        if picture.key not in (*SHARED, chosen):
            continue
        for metric, name in lines_of(picture, [*chain.from_iterable(measured.values())]).items():
            own = [side for side in sides if any(metric in values for _, values in measured[side.run.pk])]
            for group in grouped(own, SHARED.get(picture.key, reward_group)):
                if len(group) > 1:
                    found.append(_drawn(picture, metric, name, group, measured))
    return found


def choices(measured: Mapping[int, Steps]) -> dict[str, str]:
    """Titles of the other pictures that at least two of the runs have measured, by their keys."""
    each = [{metric: 1.0 for _, values in steps for metric in values} for steps in measured.values()]
    others = (picture for picture in PICTURES if picture.key not in SHARED)
    return {
        picture.key: picture.title
        for picture in others
        if sum(bool(lines_of(picture, [(0, metrics)])) for metrics in each) > 1
    }


def threshold_words(measure: Measure) -> str:
    """Say which success the runs are timed to, and why this one."""
    if measure.threshold is None:
        return ""
    if measure.is_given:
        return f"{percent(measure.threshold, 1)}, as you chose"
    assert measure.start is not None
    assert measure.best is not None
    return (
        f"{percent(measure.threshold, 1)}, half-way from {percent(measure.start, 1)} at step 0 to the best, "
        f"{percent(measure.best, 1)}"
    )


def _drawn(
    picture: Picture, metric: str, name: str, group: Sequence[Side], measured: Mapping[int, Steps]
) -> dict[str, Any]:
    first, scale = group[0].run, 100.0 if picture.share else 1.0
    of = first.algorithm_label + f" on {first.dataset}" if picture.key == "loss" else f"{first.task_set}, {name}"
    key = picture.key if picture.key in SHARED else metric
    values = {side.run.pk: [(at, row.get(metric)) for at, row in measured[side.run.pk]] for side in group}
    return {
        "kind": "band",
        "title": picture.title,
        "key": f"compared-{key}-" + "-".join(str(side.run.pk) for side in group),
        "note": of,
        "x": {"title": "step"},
        "y": {
            "title": "share" if picture.share else picture.axis,
            **({"unit": "%" if picture.share else picture.unit} if picture.share or picture.unit else {}),
        },
        "series": [
            _line(side, [(at, None if value is None else value * scale) for at, value in values[side.run.pk]])
            for side in group
        ],
    }


def _validated(run: TrainingRun) -> list[tuple[int, float | None, int]]:
    """Step, mean score and tasks of each validation, scored or not."""
    points = run.points.filter(kind=Point.Kind.VALIDATION).order_by("step").values_list("step", "values")
    return [
        (step, values.get("overall", values.get("score")), values["n"] + values.get("unscored", 0))
        for step, values in points
    ]


def _aside(side: Side, rows: Mapping[int, Sequence[tuple[int, float | None, int]]]) -> Hashable:
    """Runs of one group are asked the same tasks: which are kept aside is drawn by the seed."""
    run = side.run
    given = map(run.settings.get, ("validation_share", "max_completion_length"))
    return run.dataset.digest, tuple(each.pk for each in run.task_sets), run.seed, *given, rows[run.pk][0][2]


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def _line(side: Side, points: Sequence[tuple[int, float | None]]) -> dict[str, Any]:
    values = [None if value is None else float(f"{value:.6g}") for _, value in points]
    name = f"{side.run} {side.run.algorithm_label}"
    return {"name": name, "role": "plain", "x": [step for step, _ in points], "y": values}
