"""The pictures of a training run, as `{% chart %}` takes them: only what was measured, at most 500 points each.

One table, `PICTURES`, says which there are; what a run did not measure gives no picture.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.recipes import ALGORITHMS
from flywheel.training.models import Point, TrainingRun
from flywheel.training.runs.step_points import Steps


@dataclass(frozen=True, slots=True)
class Picture:
    key: str
    title: str
    lines: Mapping[str, str]
    """Metric → what the line is called."""
    unit: str = ""
    axis: str = ""
    share: bool = False
    """A share of 1, shown in percent."""
    note: str = ""
    spread: str = ""
    """The metric that is the band's half-width around the first line."""
    aside: bool = False
    """Looked at when something is wrong, so that it is folded away."""
    family: str = ""
    """Prefix of metrics each of which is a line, called by the rest of its name."""


PICTURES = [
    Picture("reward", "Reward", {"reward_mean": "mean"}, axis="reward", spread="reward_std", note="mean ± std"),
    Picture("parts", "Reward by part", {}, axis="score", note="as the verifier scored it", family="reward/"),
    Picture("accuracy", "Token accuracy", {"accuracy": "tokens"}, share=True, note="on the training rows"),
    Picture("margin", "Reward margin", {"margin": "good − bad"}, axis="margin"),
    Picture("pairs", "Pairs ranked right", {"pair_accuracy": "pairs"}, share=True, note="on the training pairs"),
    Picture("raw", "Raw score", {"raw_mean": "mean", "raw_min": "lowest", "raw_max": "highest"}, axis="score"),
    Picture("logps", "Log-probability", {"chosen_logp": "good answers", "rejected_logp": "bad answers"}, axis="log p"),
    Picture(
        "groups", "Zero-variance groups", {"zero_variance_groups": "groups"}, share=True, note="they teach nothing"
    ),
    Picture(
        "resampled",
        "Replaced groups",
        {"resampled_groups": "groups"},
        axis="groups",
        note="by dynamic sampling, a step",
    ),
    Picture(
        "resting", "Tasks that rest", {"resting_tasks": "tasks"}, share=True, note="nearly always solved, or never"
    ),
    Picture("turns", "Turns of an episode", {"turns_mean": "mean"}, axis="answers"),
    Picture(
        "ends",
        "Episodes that ended early",
        {"broken_off_fraction": "broken off", "out_of_turns_fraction": "out of turns"},
        share=True,
        note="judged as they are",
    ),
    Picture("unscored", "Unscored attempts", {"unscored": "attempts"}, share=True),
    Picture("invalid", "Unreadable answers", {"invalid_fraction": "attempts"}, share=True),
    Picture("entropy", "Entropy", {"entropy": "entropy"}, axis="nats per token"),
    Picture("replay_loss", "Loss of replayed rows", {"replay_loss": "loss"}, axis="nats per token"),
    Picture("teacher_kl", "Distance from the teacher", {"teacher_kl": "KL"}, axis="nats per token"),
    Picture("kl", "Distance from the start", {"kl": "KL"}, axis="nats"),
    Picture(
        "length",
        "Completion length",
        {"completion_length_mean": "mean", "completion_length_max": "longest"},
        axis="tokens",
    ),
    Picture("repetition", "Repetition", {"repetition": "text"}, share=True, note="was in the same attempt before"),
    Picture("truncated", "Cut-off completions", {"truncated_fraction": "completions"}, share=True),
    Picture(
        "recorded",
        "Tokens with an importance ratio",
        {"recorded_fraction": "tokens"},
        share=True,
        note="log-probability recorded",
    ),
    Picture("clip", "Clip fraction", {"clip_low": "low", "clip_high": "high", "clip_region": "either"}, share=True),
    Picture("value_loss", "Value loss", {"value_loss": "loss"}, axis="loss", note="error of the predicted rewards"),
    Picture(
        "explained",
        "Explained variance",
        {"explained_variance": "rewards"},
        axis="explained variance",
        note="of the rewards, before the step: 1 is all, 0 none",
    ),
    Picture(
        "sampler",
        "Sampler against trainer",
        {"sampler_mismatch": "all tokens", "sync_proof": "proof"},
        axis="nats per token",
        note="how far the vLLM server's log-probabilities are off, in the mean",
    ),
    Picture(
        "sampler_worst",
        "Sampler's worst token",
        {"sampler_mismatch_max": "token"},
        axis="nats",
        note="the largest difference of a step",
    ),
    Picture(
        "sampler_weight",
        "Least weight of a token",
        {"sampler_weight_min": "token"},
        axis="weight",
        note="of what the server sampled: 1 where both agree",
    ),
    Picture(
        "staleness",
        "Age of the attempts",
        {"staleness_mean": "mean", "staleness_max": "oldest"},
        axis="updates",
        note="between the policy that wrote a token and the one that learns from it",
    ),
    Picture("ages", "Tokens by age", {}, share=True, note="updates, of all that was learnt from", family="staleness/"),
    Picture(
        "idle",
        "Idle",
        {"sampler_idle": "sampler", "learner_idle": "trainer"},
        share=True,
        note="of a step's time, waiting for the other",
    ),
    Picture("loss", "Loss", {"loss": "loss"}, axis="loss"),
    Picture("grad", "Gradient norm", {"grad_norm": "norm"}, axis="norm", aside=True),
    Picture("rate", "Learning rate", {"learning_rate": "rate"}, axis="rate", aside=True),
    Picture("time", "Step time", {"step_time_s": "step"}, unit="s", axis="time", aside=True),
]
VALIDATED: list[tuple[Picture, Callable[[Mapping[str, Any]], float | None]]] = [
    (Picture("success", "Success", {}, share=True), lambda found: found["success"]),
    (Picture("score", "Mean score", {}, share=True), lambda found: found.get("score")),
    (
        Picture("reward", "Mean reward", {}, axis="reward", note="with shaping and penalties"),
        lambda found: found.get("reward"),
    ),
    (Picture("invalid", "Unreadable answers", {}, share=True), lambda found: found.get("invalid")),
    (Picture("unscored", "Unscored attempts", {}, share=True), lambda found: _unscored(found)),
    (Picture("tokens", "Tokens of an attempt", {}, axis="tokens"), lambda found: found.get("tokens")),
    (
        Picture("latency", "Latency of an attempt", {}, unit="ms", axis="time", note="its batches' time, all turns"),
        lambda found: found.get("latency_ms"),
    ),
]
"""Pictures of the validation, and what they draw of its figures or of a slice's; a part of the verdict has one each."""
COST = Picture(
    "usd",
    "Cost of a validation",
    {},
    unit="$",
    axis="dollars",
    note="its time at the device-hour's price; a slice's by its answer tokens",
)
"""Of all its environments together, of each, and of slices."""
Line = tuple[str, Mapping[int, Mapping[str, Any]]]
"""What a line of a picture of the validation is called, and the figures that it draws, by step."""
MOST_LINES = 6
"""Of a picture of the validation: as many as a chart has colours."""
ON_POLICY = "0 by construction: one step per batch of attempts"


def curves(run: TrainingRun, steps: Steps, stride: int, *, aside: bool = False) -> list[dict[str, Any]]:
    """Pictures of what the run measured as it learnt: those put aside, or the others.

    `steps` are every `stride`-th step's metrics.
    """
    wanted = (picture for picture in PICTURES if picture.aside == aside)
    found = {picture.key: _draw(picture, steps, run, stride) for picture in wanted}
    if reward := found.get("reward"):
        reward["series"] += _validation_reward(run)
    if parts := found.get("parts"):
        _mark_watched(parts["series"], run)
    return [*filter(None, found.values())]


def _mark_watched(lines: Iterable[dict[str, Any]], run: TrainingRun) -> None:
    """Name the lines of watched parts so, and draw them over the steps in which they judged anything: with gaps, a
    sample would hardly be seen."""
    watched = {name.replace("_", " ") for name in run.reward_recipe.rubric.watched} if run.reward_recipe else set()
    for line in lines:
        if line["name"] in watched:
            known = [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None]
            line |= {"name": f"{line['name']} (watched)", "x": [x for x, _ in known], "y": [y for _, y in known]}


def _validation_reward(run: TrainingRun) -> list[dict[str, Any]]:
    """The line of the mean reward on validation tasks; none where it was not measured."""
    rows = run.points.filter(kind=Point.Kind.VALIDATION).order_by("step").values_list("step", "values")
    rewards = [(step, values.get("overall_reward", values.get("reward"))) for step, values in rows]
    if all(reward is None for _, reward in rewards):
        return []
    ys = [_scaled(reward, 1.0) for _, reward in rewards]
    return [{"name": "on validation", "role": "plain", "x": [step for step, _ in rewards], "y": ys}]


def held_out(run: TrainingRun) -> dict[str, Any] | None:
    """Success of the policy on held-out tasks as it learns, against itself before the first step; None where it was not
    measured yet. Of a reward model, which solves nothing, the pairs that were kept aside.

    The run's own evaluations are greedy and on some of the tasks, so the dashed line is the start asked the same way;
    the baseline eval, which samples all tasks, is another measure and would be a false comparison here.
    """
    if not run.makes_policy:
        return _pairs(run)
    evals = list(run.points.filter(kind=Point.Kind.EVAL).order_by("step").values_list("step", "values"))
    if not evals:
        return None
    validated = list(run.points.filter(kind=Point.Kind.VALIDATION).order_by("step").values_list("step", "values"))
    values = [_percent(values["success"]) for _, values in evals]
    start = values[0] if evals[0][0] == 0 else None
    asked = max(values["n"] for _, values in evals)
    at = [step for step, _ in evals]
    line = {"name": "success", "role": "candidate", "x": at, "y": values}
    scores = {"name": "mean score", "role": "plain", "x": at, "y": [_percent(each.get("score")) for _, each in evals]}
    return {
        "kind": "line",
        "title": "Held-out success",
        "key": f"held-out-{run.pk}",
        "note": f"greedy, {asked} tasks; dashed: step 0",
        "x": {"title": "step"},
        "y": {"title": "share", "unit": "%", "range": [0, 100]},
        "series": [
            line,
            *([scores] if any(scores["y"]) and scores["y"] != values else []),
            *([_validation(validated)] if validated else []),
        ],
        **({} if run.chosen_step is None else {"marks": [{"x": run.chosen_step, "label": "weights kept"}]}),
        **({} if start is None else {"baseline": start}),
    }


def _pairs(run: TrainingRun) -> dict[str, Any] | None:
    """The share of pairs that a reward model ranks right, of those that were kept aside."""
    points = list(run.points.filter(kind=Point.Kind.VALIDATION).order_by("step").values_list("step", "values"))
    if not points:
        return None
    shares = [_percent(values["pair_accuracy"]) for _, values in points]
    return {
        "kind": "line",
        "title": "Unseen pairs ranked right",
        "key": f"pairs-aside-{run.pk}",
        "note": f"{max(values['n'] for _, values in points)} pairs kept out of training; 50% is chance",
        "x": {"title": "step"},
        "y": {"title": "share", "unit": "%", "range": [0, 100]},
        "series": [{"name": "pairs", "role": "candidate", "x": [step for step, _ in points], "y": shares}],
        "baseline": 50,
    }


def _validation(points: Steps) -> dict[str, Any]:
    """The mean score on the tasks that the best weights are chosen by."""
    asked = max(int(values["n"]) for _, values in points)
    scores = [_percent(values.get("overall", values.get("score"))) for _, values in points]
    name = f"validation score ({asked} tasks)"
    return {"name": name, "role": "plain", "x": [step for step, _ in points], "y": scores}


def validation(run: TrainingRun) -> list[dict[str, Any]]:
    """Pictures of all that was measured on the tasks that the best weights are chosen by: a line for all of them, for
    each environment and for each slice, dashed where all of them began."""
    rows = run.points.filter(kind=Point.Kind.VALIDATION).order_by("step").values_list("step", "values")
    points = [(step, run.with_usd(found)) for step, found in rows if run.makes_policy]
    first = run.task_sets[0].environment_version.environment.name if len(run.task_sets) > 1 else "all"
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for step, values in points:
        for name, found in _apart(values, first):
            groups.setdefault(name, {})[step] = found
    largest = sorted(groups, key=lambda name: -max(found["n"] for found in groups[name].values()))[: MOST_LINES - 1]
    left_out = len(groups) - len(largest)
    lines: list[Line] = [(first, dict(points)), *((name, groups[name]) for name in largest)]
    parts = sorted({part for _, found in lines for each in found.values() for part in each.get("parts", ())})
    pictures = [*VALIDATED, *(_of_part(part) for part in parts)]
    drawn = [spec for picture, value in pictures if (spec := _validated(picture, value, lines, run))]
    together: list[Line] = [
        ("all", dict(points)),
        *([(first, _of_first(points))] if len(run.task_sets) > 1 else []),
        *lines[1:],
    ]
    drawn += filter(None, [_validated(COST, lambda found: found.get("usd"), together[:MOST_LINES], run)])
    for spec in drawn if left_out else ():
        spec["note"] = "; ".join(filter(None, [spec["note"], f"{left_out} smaller slices left out"]))
    return drawn


def _apart(values: Mapping[str, Any], first: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The other environments of a validation and the slices of all, by what their lines are called."""
    environments = values.get("environments", {})
    yield from environments.items()
    for where, found in [(first, values), *environments.items()]:
        for name, own in found.get("slices", {}).items():
            yield f"{where}: {name}" if environments else name, own


def _of_first(points: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[int, dict[str, Any]]:
    """The cost of the first environment, by step: what is left of the whole."""
    found: dict[int, dict[str, Any]] = {}
    for step, values in points:
        others = [each.get("usd") for each in values.get("environments", {}).values()]
        known = values["usd"] is not None and None not in others
        found[step] = {"usd": values["usd"] - sum(others) if known else None}
    return found


def _of_part(part: str) -> tuple[Picture, Callable[[Mapping[str, Any]], float | None]]:
    name = part.replace("_", " ").capitalize()
    return Picture(f"part-{part}", f"Part: {name}", {}, axis="score"), lambda found: found.get("parts", {}).get(part)


def _unscored(found: Mapping[str, Any]) -> float | None:
    """The share; None of a slice, whose attempts without a score are not counted."""
    if "unscored" not in found:
        return None
    unscored, scored = int(found["unscored"]), int(found["n"])
    return unscored / max(1, scored + unscored)


def _validated(
    picture: Picture,
    value: Callable[[Mapping[str, Any]], float | None],
    lines: Sequence[Line],
    run: TrainingRun,
) -> dict[str, Any] | None:
    scale = 100.0 if picture.share else 1.0
    series: list[dict[str, Any]] = []
    for name, found in lines:
        ys = [_scaled(value(each), scale) for each in found.values()]
        if any(y is not None for y in ys):
            series.append({"name": name, "role": "plain", "x": list(found), "y": ys})
    if not series:
        return None
    series[0]["role"] = "candidate"
    start = next((y for x, y in zip(series[0]["x"], series[0]["y"], strict=True) if x == 0), None)
    return {
        "kind": "line",
        "title": picture.title,
        "key": f"validation-{picture.key}-{run.pk}",
        "height": "short",
        "note": picture.note,
        "x": {"title": "step"},
        "y": {
            "title": "share" if picture.share else picture.axis,
            "unit": "%" if picture.share else picture.unit,
            **({"range": [0, 100]} if picture.share else {}),
        },
        "series": series,
        **({} if start is None else {"baseline": start}),
    }


def _draw(picture: Picture, steps: Steps, run: TrainingRun, stride: int) -> dict[str, Any] | None:
    lines = lines_of(picture, steps)
    if not lines:
        return None
    scale = 100.0 if picture.share else 1.0
    xs = [step for step, _ in steps]
    series = []
    for metric, name in lines.items():
        values = [values.get(metric) for _, values in steps]
        line: dict[str, Any] = {"name": name, "x": xs, "y": [_scaled(value, scale) for value in values]}
        if picture.spread:
            spread = [values.get(picture.spread) for _, values in steps]
            pairs = list(zip(values, spread, strict=True))
            line["low"] = [None if v is None or s is None else _scaled(v - s, scale) for v, s in pairs]
            line["high"] = [None if v is None or s is None else _scaled(v + s, scale) for v, s in pairs]
        series.append(line)
    if len(series) == 1:
        series[0]["role"] = "candidate"
    flat = picture.share and not any(value for line in series for value in line["y"])
    return {
        "kind": "band",
        "title": picture.title,
        "key": f"{picture.key}-{run.pk}",
        "height": "short",
        "note": _note(picture, steps, run, stride),
        "x": {"title": "step"},
        "y": {
            "title": "share" if picture.share else picture.axis,
            "unit": "%" if picture.share else picture.unit,
            **({"range": [0, 100]} if flat else {}),
        },
        "series": series,
    }


def lines_of(picture: Picture, steps: Steps) -> dict[str, str]:
    """The picture's metrics that were measured, and what their lines are called."""
    measured = {metric for _, values in steps for metric in values}
    lines = {metric: name for metric, name in picture.lines.items() if metric in measured}
    if picture.family:
        found = [metric for metric in measured if metric.startswith(picture.family)]
        found.sort(key=lambda metric: metric.removeprefix(picture.family).zfill(2))  # 2 before 10
        lines |= {metric: metric.removeprefix(picture.family).replace("_", " ") for metric in found}
    return lines


def _note(picture: Picture, steps: Steps, run: TrainingRun, stride: int) -> str:
    notes = [picture.note] if picture.note else []
    is_reinforced = ALGORITHMS[run.algorithm].data == "tasks"
    if picture.key == "clip" and is_reinforced and run.settings.get("num_iterations", 1) == 1:
        clipped = any(values.get(metric) for _, values in steps for metric in picture.lines)
        notes += [] if clipped else [ON_POLICY]
    if stride > 1:
        notes.append(f"every {stride}th step")
    return "; ".join(notes)


def _scaled(value: float | None, scale: float) -> float | None:
    """Six significant digits: more are not seen, and a page of curves is long enough."""
    return None if value is None else float(f"{value * scale:.6g}")


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value * 100, 2)
