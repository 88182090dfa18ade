"""A stage that tries a new prompt before anything is trained: cheaper than a run, and what follows learns with it.

    freeze(number, asked, base, actor)   the stage, its draft a version already: later rows are written for that
    begin(stage, base, actor)            queue the draft's eval on train tasks, and that of the version it changes
    results_of(stage)                    both on the validation tasks, and what the gate sees of the draft

The evals are those of a fix trial, so that a draft which was tried there so is not asked again. They ask all train
tasks; the gate looks at the validation tasks among them, which a run of the same seed and share keeps aside as well.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from statistics import fmean
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.agents.registration import make_version
from flywheel.core.errors import FieldError
from flywheel.core.evidence.statistics.arm_comparison import difference, task_changes
from flywheel.core.evidence.statistics.estimates import Estimate
from flywheel.core.evidence.statistics.eval_metrics import Row, task_means
from flywheel.core.recipes import SETTINGS
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.run_summaries import rows_of
from flywheel.evals.runs.submission import MAX_SAMPLES, RunSettings
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.fixes.trial_lifecycle import DraftContent, content_of, equal_or_new, refuse_measured_draft
from flywheel.training.launch.run_control import MAX_SEED, untrainable
from flywheel.training.launch.validation_split import choose_tasks
from flywheel.training.models import PROMPT, PipelineStage
from flywheel.training.pipelines.stage_gates import FORMS, judge_figures

SAMPLES = 4
VALIDATION_SHARE = 0.2
SAME = ("weights_id", "adapter_id", "base_model", "endpoint", "form")
"""What a draft has of the version that it changes."""


@dataclass(frozen=True, kw_only=True)
class PromptRequest:
    """A person's choices: the text, or a version that has it, such as a fix trial's draft."""

    base: Version
    task_set: TaskSet
    system_prompt: str | None = None
    draft: Version | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`samples` for each task, and the `validation_share` that the gate looks at; as usual where they are not there."""
    seed: int = 1


def freeze(number: int, asked: PromptRequest, base: Version, actor: Actor) -> PipelineStage:
    """The stage without its gate, every reference resolved; a text becomes a version here, the same one each time.
    Raises Refused."""
    task_set, seed = asked.task_set, asked.seed
    if base.agent.project_id != task_set.project_id:
        raise Refused(f"{base} belongs to another project than {task_set}", field="base")
    if problem := untrainable(base):
        raise Refused(problem, field="base")
    if not task_set.members.filter(split=Split.TRAIN).exists():
        raise Refused(f"{task_set} has no train task to try a prompt on", field="task_set")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise Refused(f"{seed!r} is not a whole number from 0 to {MAX_SEED}", field="seed")
    settings = _check_settings(asked.settings)
    draft = _draft(asked, base, actor)
    return PipelineStage(
        number=number, algorithm=PROMPT, task_set=task_set, draft=draft, settings=settings, seed=seed, tuning={}
    )


def begin(stage: PipelineStage, base: Version, actor: Actor) -> None:
    """Queue what the present attempt evaluates, but for what was asked so already. Raises Refused."""
    assert stage.draft is not None
    refuse_measured_draft(base, stage.draft)
    settings = RunSettings(samples=stage.settings["samples"], seed=stage.seed_now)

    def evaluated(version: Version, part: str) -> EvalRun:
        key = uuid.uuid5(stage.run_key, part)
        return equal_or_new(key, version, stage.task_set, Split.TRAIN, settings, actor)

    stage.draft_eval, stage.base_eval = evaluated(stage.draft, "draft"), evaluated(base, "base")
    stage.save(update_fields=["draft_eval", "base_eval"])


def evals_of(stage: PipelineStage) -> list[EvalRun]:
    """The evals of the present attempt; none before it was begun."""
    return [run for run in (stage.draft_eval, stage.base_eval) if run]


@dataclass(frozen=True, slots=True)
class PromptResults:
    """Both versions on the validation tasks."""

    figures: dict[str, Any]
    """Of the draft for the gate, as a point of a run's validation has them."""
    success: float | None
    """Of the draft, in the mean over the tasks that both have scored attempts at; None without any."""
    before: float | None
    """The same of the version that it changes."""
    difference: Estimate
    """Of the two, paired by task."""


def results_of(stage: PipelineStage) -> PromptResults | None:
    """Read what the present attempt measured; None until both evals have succeeded."""
    if stage.draft_eval is None or stage.base_eval is None:
        return None
    if any(run.state != State.SUCCEEDED for run in evals_of(stage)):
        return None
    ends = (stage.draft_eval.finished_at, stage.base_eval.finished_at)
    share = stage.settings["validation_share"]
    return _measured(stage.draft_eval.pk, stage.base_eval.pk, ends, share, stage.seed_now)


@lru_cache(maxsize=256)
def _measured(
    draft: int, base: int, ends: tuple[datetime | None, datetime | None], share: float, seed: int
) -> PromptResults:
    """Kept, for the pipeline's page asks for it every few seconds; what is asked again ends at another time."""
    runs = EvalRun.objects.select_related("task_set").in_bulk([draft, base])
    kept = Task.objects.filter(pk__in=choose_tasks(runs[draft].task_set, share, seed))
    names = {str(task) for task in kept.only("number")}
    after, before = ([row for row in rows_of(runs[pk]) if row.task_id in names] for pk in (draft, base))
    tasks = task_changes(before, after)
    success, was = _mean(task.candidate for task in tasks), _mean(task.baseline for task in tasks)
    return PromptResults(figures_of(after), success, was, difference("success", before, after))


def judge(gate: Mapping[str, float], stage: PipelineStage) -> list[dict[str, Any]]:
    """Each limit beside what the draft reached, as `stage_gates.judge` has it for a run."""
    results = results_of(stage) if gate else None
    return judge_figures(gate, [results.figures] if results else [])


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Shares of success and parts by task, as a validation's; `n` counts the tasks with a scored attempt, `unscored`
    the others. With several attempts at a task, one without a score counts as neither solved nor readable."""
    scored = {row.task_id for row in rows if row.success is not None}
    told = [row for row in rows if row.task_id in scored]

    def share(name: str) -> float | None:
        def value(row: Row) -> float | None:
            if row.success is None:
                return None if name == "unsafe" else 0.0
            return float(row.success) if name == "success" else row.parts.get(name)

        return _mean(task_means(told, value).values())

    there = {name for row in told if row.success is not None for name, part in row.parts.items() if part is not None}
    return {
        "success": share("success"),
        "n": len(scored),
        "unscored": len({row.task_id for row in rows}) - len(scored),
        "parts": {name: share(name) for name in (*FORMS, "unsafe") if name in there},
    }


def _mean(of_tasks: Iterable[float | None]) -> float | None:
    values = [value for value in of_tasks if value is not None]
    return fmean(values) if values else None


def _check_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    usual = {"samples": SAMPLES, "validation_share": VALIDATION_SHARE}
    if unknown := sorted(set(given) - usual.keys()):
        raise Refused(f"is unknown; use {', '.join(usual)}", field=f"settings.{unknown[0][:100]}")
    found = {**usual, **given}
    samples = found["samples"]
    if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples <= MAX_SAMPLES:
        raise Refused(f"{samples!r} is not a whole number from 1 to {MAX_SAMPLES}", field="settings.samples")
    try:
        found["validation_share"] = SETTINGS["validation_share"].check(found["validation_share"])
    except FieldError as error:
        raise Refused(error.problem, field="settings.validation_share") from error
    return found


def _draft(asked: PromptRequest, base: Version, actor: Actor) -> Version:
    """The version with the new prompt, which is made where only a text is given. Raises Refused."""
    draft, text = asked.draft, asked.system_prompt
    if (draft is None) == (text is None):
        raise Refused(
            "give the new prompt as a text or as a version that has it, one of the two", field="system_prompt"
        )
    if draft is None:
        content = content_of(
            DraftContent(name="", system_prompt=text), base, asked.task_set, Measured(asked.task_set.project)
        )
        made, _ = make_version(
            agent=base.agent, actor=actor, content=content, parent=base, note="Draft: the prompt of a pipeline"
        )
        return made
    if draft.agent_id != base.agent_id or any(getattr(draft, name) != getattr(base, name) for name in SAME):
        raise Refused(f"{draft} differs from {base} in more than what it is told; give a draft of it", field="draft")
    if draft == base:
        raise Refused(f"changes nothing of {base}", field="draft")
    try:
        refuse_measured_draft(base, draft)
    except Refused as error:
        raise Refused(f"{draft} {error.problem}", field="draft") from error
    return draft
