"""The curves of several runs over one another, as `{% chart %}` takes them."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from flywheel.core.text.number_words import percent
from flywheel.training.pages.run_charts import PICTURES, Picture
from flywheel.training.runs.compared_runs import Measure, Side, grouped, loss_group, reward_group
from flywheel.training.runs.step_points import step_points

SHARED: dict[str, Callable[[Side], Hashable]] = {"reward": reward_group, "loss": loss_group}
"""Pictures of `run_charts` that are drawn over one another, and what runs must have in common for that."""


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
        "series": [
            _line(side, [(step, None if value is None else round(100 * value, 2)) for step, value in side.evals])
            for side in measure.sides
        ],
        **({} if start is None else {"baseline": round(100 * start, 2)}),
    }


def curves(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Reward and loss of the runs that can be compared by them, where at least two have measured them."""
    pictures = {picture.key: picture for picture in PICTURES}
    steps = {side.run.pk: step_points(side.run)[0] for side in sides}
    found = []
    for key, common in SHARED.items():
        (metric,) = pictures[key].lines
        measured = [side for side in sides if any(metric in values for _, values in steps[side.run.pk])]
        for group in grouped(measured, common):
            if len(group) > 1:
                lines = [_line(each, [(at, row.get(metric)) for at, row in steps[each.run.pk]]) for each in group]
                found.append(_drawn(pictures[key], group, lines))
    return found


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


def _drawn(picture: Picture, group: Sequence[Side], lines: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0].run
    of = first.algorithm_label + f" on {first.dataset}" if picture.key == "loss" else f"{first.task_set}, mean"
    return {
        "kind": "band",
        "title": picture.title,
        "key": f"compared-{picture.key}-" + "-".join(str(side.run.pk) for side in group),
        "note": of,
        "x": {"title": "step"},
        "y": {"title": picture.axis},
        "series": lines,
    }


def _line(side: Side, points: Sequence[tuple[int, float | None]]) -> dict[str, Any]:
    values = [None if value is None else float(f"{value:.6g}") for _, value in points]
    name = f"{side.run} {side.run.algorithm_label}"
    return {"name": name, "role": "plain", "x": [step for step, _ in points], "y": values}
