"""Which runs learn from a reward, and whether they may: the lock that a reward audit opens.

A run learns from a reward where a verifier's verdicts decide what it is taught: in reinforcement always, in SFT and DPO
where they chose the rows. What people wrote, a correction or a target, is no reward and needs no audit. The outputs
that count are those that the verdicts were given to: the base's own in reinforcement, else those of whoever made the
rollouts.

    judged(algorithm, base, dataset, recipe)   whose outputs, by which verifiers; nothing where no reward is learnt from
    refusal(run)                               why it may not start now; asked by the worker once more

A mix has a verifier for each of its environments. The weakest of them is what stands with the run.

A reward recipe that only shapes learns from what the verifier passes, and the verifier's audit counts; one with parts
of its own that judge wants an audit of its own (`docs/design/rewards.md`).

A later stage of a pipeline learns from the verdicts on outputs of a version that nobody could audit before it began.
There the audit of the pipeline's base counts, unless one of the version itself has been finished or overridden. It is
to be renewed by a small one on outputs of that version while the stage trains; until then no further stage begins.
"""

from dataclasses import replace
from typing import Any

from flywheel.agents.models import Version
from flywheel.core.recipes import ALGORITHMS
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.environments.task_sets.leaks import line_of
from flywheel.evals.models import EvalRun, RewardAudit
from flywheel.evals.reward_audits.learnable_tasks import unlearnable
from flywheel.evals.reward_audits.reward_standing import (
    Judged,
    Standing,
    audit_sentence,
    renewable,
    runs_of,
    standing,
)
from flywheel.training.models import Dataset, PipelineStage, TrainingRun

LOCKED = "it learns from a reward that no audit has shown to be right"
WEAKEST = ("none", "stale", "begun", "red", "overridden", "renewed", "green")
DECIDED = ("red", "overridden", "renewed", "green")
"""Somebody has judged exactly this, or answers for it."""


def judged(algorithm: str, base: Version, dataset: Dataset, recipe: RewardRecipe | None = None) -> list[Judged]:
    """Whose outputs the verdicts were given to that this would learn from. A dataset need not be saved yet."""
    if ALGORITHMS[algorithm].is_reinforced:
        return [Judged.now(base, task_set, recipe) for task_set in dataset.task_sets]
    if not dataset.is_chosen_by_reward:
        return []
    if dataset.mix:
        parts = Dataset.objects.filter(pk__in=[part["dataset"] for part in dataset.mix])
        parts = parts.select_related("task_set__environment_version__environment").order_by("pk")
        return [each for part in parts for each in judged(algorithm, base, part)]
    runs = EvalRun.objects.select_related("version__agent", "task_set__environment_version__environment")
    run = runs.filter(pk=dataset.recipe.get("eval_run") or 0).first()
    if run is None:
        return [Judged.now(base, task_set) for task_set in dataset.task_sets]
    return [Judged.of(run)]


def standing_of(
    algorithm: str,
    base: Version,
    dataset: Dataset,
    stage: PipelineStage | None = None,
    recipe: RewardRecipe | None = None,
    replay: Dataset | None = None,
) -> tuple[Judged, Standing] | None:
    """Return the standing of the reward that this would learn from, of several the weakest; None where it has none."""
    rewards = [*judged(algorithm, base, dataset, recipe), *(judged("sft", base, replay) if replay else ())]
    found = [_holding(each, base, stage) for each in rewards]
    return min(found, key=lambda each: WEAKEST.index(each[1].state), default=None)


def _holding(own: Judged, base: Version, stage: PipelineStage | None) -> tuple[Judged, Standing]:
    """The standing of a reward; in a pipeline that of its base's outputs, while nobody has judged the stage's own."""
    holds = replace(standing(own), is_in_pipeline=stage is not None)
    if stage is None or own.version != base or holds.state in DECIDED:
        return own, holds
    first = replace(own, version=stage.pipeline.base)
    return first, standing(first)


def unrenewed(run: TrainingRun) -> tuple[Judged, Standing] | None:
    """Return the reward of a later stage whose audit waits to be renewed on outputs of the version that the stage began
    with; None where it was, or an approver answers for it. What was overridden for the pipeline's base needs none. A
    draft that was not made from the audited version has nothing to renew: its outputs want an audit of their own."""
    is_lent = run.audit_override is None and moved_from(run) is not None
    for own in judged(run.algorithm, run.base, run.dataset, run.reward_recipe):
        holds = standing(own)
        is_open = holds.state not in ("overridden", "renewed", "green")
        is_due = is_open and (is_lent or renewable(own) is not None)
        if own.version == run.base and (is_due or holds.state == "red"):
            return own, holds
    return None


def refusal(run: TrainingRun) -> str:
    """Why the run may not train now, as when the verifier was changed after its launch; empty when it may."""
    found = standing_of(run.algorithm, run.base, run.dataset, run.stage, run.reward_recipe, run.replay)
    return "" if found is None or found[1].allows else f"{LOCKED}: {found[1].words}"


def kept(run: TrainingRun) -> dict[str, Any]:
    """Return the reward's record that stays with the run, and with every candidate that comes of it, for ever."""
    audit, leave = run.reward_audit, run.audit_override
    learns = ALGORITHMS[run.algorithm].is_reinforced or run.dataset.is_chosen_by_reward
    if run.teacher is not None:
        words = f"learnt from a teacher, {run.teacher}, and from no reward"
    elif not learns:
        words = "learnt from what people wrote or brought, and from no reward here"
    elif leave is not None:
        words = f"audit overridden by {leave.created_by}: {leave.reason}"
    else:
        words = audit_sentence(audit) if audit else "launched before rewards were audited"
    if recipe := run.reward_recipe:
        same = recipe.rubric.is_own_verdict
        words += f"; by the reward recipe {recipe}, " + (
            "which passes what the verifier passes" if same else "which judges by parts of its own"
        )
    if moved := moved_from(run):
        is_same = (moved.weights_id, moved.adapter_id) == (run.base.weights_id, run.base.adapter_id)
        how = "differs in what it is told" if is_same else "was trained"
        words += f"; this is about outputs of {moved}, from which {run.base} {how}"
        if again := _renewal_of(run):
            words += f"; renewed on outputs of {run.base}: {audit_sentence(again)}"
    return {
        "run": run.pk,
        "algorithm": run.algorithm,
        "learns_from_reward": learns,
        "recipe": {"name": recipe.name, "number": recipe.number, "digest": recipe.digest} if recipe else None,
        "audit": audit.pk if audit else None,
        "is_green": audit.is_green if audit else None,
        "by": audit.result.get("judges", []) if audit else [],
        "found": {name: audit.result[name] for name in ("agreement", "kappa", "false_passes")} if audit else None,
        "override": {"by": str(leave.created_by), "reason": leave.reason} if leave else None,
        "words": words,
    }


def _renewal_of(run: TrainingRun) -> RewardAudit | None:
    """The newest small audit of outputs of the version that the run began with, finished meanwhile."""
    rows = RewardAudit.objects.filter(run__version=run.base, finished_at__isnull=False, renews=run.reward_audit)
    return rows.order_by("-pk").first() if run.reward_audit else None


def moved_from(run: TrainingRun) -> Version | None:
    """The version whose outputs were judged or let pass, where that is the base of the run's pipeline, not its own."""
    if run.stage is None or not ALGORITHMS[run.algorithm].is_reinforced:
        return None
    leave, audit = run.audit_override, run.reward_audit
    version = leave.version if leave else audit.run.version if audit else None
    return version if version and version != run.base else None


def solved(algorithm: str, base: Version, task_set: TaskSet, chosen: EvalRun | None) -> dict[str, Any] | None:
    """Count train tasks that would teach a reinforced run nothing, by the chosen eval or the base's newest on them."""
    if not ALGORITHMS[algorithm].is_reinforced:
        return None
    run = chosen or runs_of(Judged.now(base, task_set)).first()
    return {"run": run, "outside": len(unlearnable(run))} if run else None


def of_version(version: Version) -> list[dict[str, Any]]:
    """The same of every run that a version comes from, the newest first."""
    runs = TrainingRun.that_made(line_of(version)).select_related(
        "dataset",
        "base__agent",
        "stage",
        "reward_recipe",
        "reward_audit__run__version__agent",
        "reward_audit__rescore__recipe",
        "audit_override__created_by",
    )
    return [kept(run) for run in runs.order_by("-pk")]
