"""The alerts of a training run, of what is recorded of it, each with the kept attempts that show it."""

from dataclasses import asdict
from typing import Any

from flywheel.core.evidence import run_alerts
from flywheel.core.evidence.run_alerts import Alert, Measurements
from flywheel.training.models import Point, TrainingRun
from flywheel.training.runs.step_points import Steps
from flywheel.training.runs.tried_attempts import ONLY, PASSED, attempts_of

WARNINGS = 8
"""The trainer's own newest warnings."""


def alerts_of(run: TrainingRun, steps: Steps) -> list[dict[str, Any]]:
    """The trainer's own warnings and what its measurements show: `Alert`'s fields, and `attempts`, how many that
    show it are kept. `steps` as `step_points` gives them."""
    told = dict.fromkeys(run.events.filter(level="warning").values_list("text", flat=True))
    found = [Alert("trainer", text) for text in [*told][-WARNINGS:]]
    newest = run.points.filter(kind=Point.Kind.EVAL).order_by("-step").values_list("values", flat=True).first() or {}
    found += run_alerts.alerts(
        Measurements(
            steps,
            _scores(run, Point.Kind.EVAL),
            _scores(run, Point.Kind.VALIDATION),
            run.is_finished,
            newest.get("n"),
            run.tried.filter(PASSED).exclude(trajectory=None).exclude(trajectory__label="").count(),
            list(run.tried.filter(ONLY["overruled"]).values_list("step", flat=True)),
            watched_of(run),
        )
    )
    return [{**asdict(alert), "attempts": _kept(run, alert)} for alert in found]


def watched_of(run: TrainingRun) -> list[str]:
    """The watched parts of its recipe, but for judges that their canaries have made void."""
    if run.reward_recipe is None:
        return []
    judges = run.outside_calls.get("judges", {})
    void = {name for name, row in judges.items() if row.get("void")}
    names = run.reward_recipe.rubric.watched
    return [name for name in names if not void & {name, f"{run.reward_recipe.name}.{name}"}]


def _kept(run: TrainingRun, alert: Alert) -> int:
    if alert.last is None:
        return 0
    rows = attempts_of(run, order=alert.order, only=alert.only, first=alert.first, last=alert.last)
    return rows.count()


def _scores(run: TrainingRun, kind: Point.Kind) -> list[tuple[int, float]]:
    """Success on held-out tasks, or the mean score on those of validation, where there is one."""
    rows = run.points.filter(kind=kind).order_by("step").values_list("step", "values")
    if kind == Point.Kind.EVAL:
        scores = [(step, values["success"]) for step, values in rows]
    else:  # of several environments, the mean of all
        scores = [(step, values.get("overall", values["score"])) for step, values in rows]
    return [(step, score) for step, score in scores if score is not None]
