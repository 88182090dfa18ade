"""Limits of a training run: minutes of training, hours of its devices, dollars, and tokens where its trainer counts
them.

A run that has spent one saves and stops, as if it were cancelled, and says so. All are of the whole run, so it is
resumed with a greater budget or with none. Minutes are of steps, evaluations and validations: loading, waiting and
pauses are free. Device-hours are these of each process. Dollars are those of judges, of models that stand in for tools
and of a hosted teacher, where the step under way is still judged, and an estimate of its devices: their hours at the
price that the project had at launch. A budget is no part of the spec: it says when a run stops, not what it learns.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.project_settings import model_prices
from flywheel.core.envs.worlds import stand_ins
from flywheel.core.verifiers import rubric
from flywheel.edge.refusals import Refused
from flywheel.edge.schema_form import json_or_text
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.environments.proofs import judge_endpoints
from flywheel.evals.runs import run_budget
from flywheel.training.launch import teacher_choice
from flywheel.training.models import TrainingRun

UNITS: Final[Mapping[str, type]] = {"minutes": float, "device_hours": float, "usd": float, "tokens": int}
LABELS: Final = {"minutes": "Minutes", "device_hours": "Device-hours", "usd": "Dollars", "tokens": "Tokens"}
SPENT = "budget"
"""The `error_kind` of a run that has stopped so."""


def check(value: Mapping[str, Any]) -> dict[str, float]:
    """The limits that are set. Raises Refused."""
    return run_budget.limits(value, UNITS)


def check_dollars(
    budget: Mapping[str, Any],
    task_sets: Sequence[TaskSet],
    device_hour: float | None,
    recipe: RewardRecipe | None = None,
    unpriced_teacher: str | None = None,
) -> None:
    """Raise Refused for a limit of dollars that cannot be kept: nobody is paid and a device-hour has no price, or
    nobody knows what somebody takes. `unpriced_teacher`: why that is so of a hosted teacher, empty where it is known;
    None where none is asked."""
    if "usd" not in budget:
        return
    versions = [task_set.environment_version for task_set in task_sets]
    asking = [(each.config, each.verifier) for each in versions] + ([({}, recipe.spec)] if recipe else [])
    is_paid = any(rubric.judges(spec) or stand_ins.simulator_of(config) for config, spec in asking)
    if not is_paid and unpriced_teacher is None and device_hour is None:
        problem = "nobody is paid in this run, and a device-hour has no price under Settings › Prices"
        raise Refused(f"{problem}; limit minutes or tokens", field="budget.usd")
    for config, spec in asking:
        if unpriced := judge_endpoints.unpriced(task_sets[0].project, config, spec):
            raise Refused(f"{unpriced}; or limit minutes or tokens", field="budget.usd")
    if unpriced_teacher:
        raise Refused(f"{unpriced_teacher}; or limit minutes or tokens", field="budget.usd")


def read(texts: Mapping[str, str | None]) -> dict[str, float]:
    """The limits of a form's fields, of which an empty one sets none. Raises Refused."""
    return check({name: json_or_text(text.strip()) for name in UNITS if (text := texts.get(name)) and text.strip()})


def spent(run: TrainingRun) -> str:
    """Which limit is reached, in words; empty while there is something left."""
    if (minutes := run.budget.get("minutes")) and (run.trained_seconds() or 0.0) >= 60 * minutes:
        return f"the budget of {minutes:g} minutes is spent"
    if (hours := run.budget.get("device_hours")) and (run.device_hours() or 0.0) >= hours:
        return f"the budget of {hours:g} device-hours is spent"
    if (most := run.budget.get("tokens")) and (run.tokens() or 0) >= most:
        return f"the budget of {most:.0f} tokens is spent"
    if dollars := run.budget.get("usd"):
        paid = paid_by(run)
        if paid is None:
            return "the budget cannot be kept: a server does not say how many dollars an answer takes"
        if (spent := paid + (run.usd() or 0.0)) >= dollars:
            return f"the budget of ${dollars:g} is spent: ${spent:.4f}"
    return ""


def paid_by(run: TrainingRun) -> float | None:
    """Dollars that its judges, its simulator and its hosted teacher took; None where an answer does not say."""
    models = (run.outside_calls.get(name) for name in ("simulator", "teacher"))
    rows = [*run.outside_calls.get("judges", {}).values(), *filter(None, models)]
    return run_budget.sum_of(rows).usd


def resume(run: TrainingRun, actor: Actor, budget: Mapping[str, Any] | None = None) -> TrainingRun:
    """Let a failed or cancelled run go on from its newest checkpoint, under this budget from now on if one is given.

    Raises StaleState, and Refused for a budget that is spent already.
    """
    with transaction.atomic():
        run.requeue()
        if budget is not None:
            run.device_hour = model_prices.hour_of(run.project_id) if run.device_hour is None else run.device_hour
            run.budget = check(budget)
            unpriced = teacher_choice.unpriced(run.teacher, run.settings)
            check_dollars(run.budget, run.task_sets, run.device_hour, run.reward_recipe, unpriced)
            run.save(update_fields=["budget", "device_hour"])
        if words := spent(run):
            raise Refused(f"{words}; resume it with a greater budget, or with none", field="budget")
        about = {} if budget is None else {"budget": run.budget}
        actor.record(project=run.project, action=run.resume_entry, subject=run, **about)
    run.refresh_from_db()
    return run
