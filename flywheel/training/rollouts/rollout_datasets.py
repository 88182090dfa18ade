"""A dataset out of the rollouts of one run: the rows of a choice, and the card that tells how they came about.

`draft` makes them and writes nothing; `write` keeps them, if no held-out task is among them.
"""

from collections.abc import Container, Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.agents.references import current_version
from flywheel.core.evidence.contamination import key_of_row
from flywheel.core.text.number_words import percent
from flywheel.core.traces import Message
from flywheel.edge.refusals import Refused, at_field
from flywheel.environments.models import Task
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_versions import check_name
from flywheel.evals.models import EvalRun
from flywheel.training.datasets import attempt_scores, contamination_checks, dataset_builder, dataset_files
from flywheel.training.datasets.dataset_builder import Speaker, written_for
from flywheel.training.datasets.dataset_files import Draft
from flywheel.training.models import Dataset
from flywheel.training.rollouts.rollout_choice import Choice
from flywheel.training.rollouts.rollout_selection import (
    READ,
    Rollout,
    Selection,
    conversations,
    prefer,
    rollouts_of,
    select,
    stored,
)

CARD = 1
"""Of the form of the card."""


def choose(rollouts: list[Rollout], choice: Choice, *, most: int = READ) -> Selection:
    """Apply the selection to the rollouts. Near-duplicates are looked for among at most `most`."""
    found = select(rollouts, choice)
    if choice.form == "scored":
        return found  # the worse ones too: without them none is better
    return _practised(found, choice) if choice.form == "tasks" else prefer(found, choice, most=most)


def learner_of(run: EvalRun) -> Version:
    """Return the version that learns from the run: the one that was asked, unless it is a teacher of another agent."""
    agent = run.task_set.environment_version.environment.agent
    if agent is None or agent.pk == run.version.agent_id:
        return run.version
    return current_version(agent) or run.version


def draft(
    run: EvalRun, choice: Choice, found: Selection | None = None, version: Version | None = None
) -> tuple[Draft, Selection]:
    """The rows that the choice makes of the run's rollouts, and what was left out on the way. Raises Refused.

    `found` is what `choose` said, where it was asked already. The rows are written for `version`, or for `learner_of`
    the run.
    """
    version = version or learner_of(run)
    with at_field("rollouts"):
        found = choose(rollouts_of(run), choice) if found is None else found
    tasks = {task.pk: task for task in dataset_builder.train_tasks(run.task_set)}
    if choice.form == "tasks":
        made = [core_task(tasks[pk]).to_json() for pk in dict.fromkeys(rollout.task for rollout in found.kept)]
    else:
        if problem := too_long(found, choice):
            raise Refused(problem, field="rollouts")
        makers = {"sft": _imitated, "pairs": _preferred, "scored": _scored}
        made = list(makers[choice.form](Speaker.of(run.task_set, version), tasks, found, choice))
    rows = list({key_of_row(row): row for row in reversed(made)}.values())[::-1]
    if not rows:
        raise Refused(f"the choice leaves nothing of {run}: {_last_word(found, choice)}", field="rollouts")
    card = _card(run, choice, found, rows, tasks) | {"duplicates": len(made) - len(rows)} | written_for(version)
    return Draft(choice.form, run.task_set, rows, card, run.task_set.project), found


@transaction.atomic
def write(*, name: str, run: EvalRun, choice: Choice, actor: Actor, version: Version | None = None) -> Dataset:
    """Keep the rows as the next version of a dataset, or return the one that has them already.

    Raises Refused where the choice leaves nothing, or where the rows have a held-out task of their own set.
    """
    check_name(name)
    made, _ = draft(run, choice, version=version)
    kept = dataset_files.keep(name, made, actor)
    contamination_checks.check_all(kept)
    if problem := contamination_checks.refusal(contamination_checks.checked(kept, run.task_set), run.task_set):
        raise Refused(problem, field="rollouts")
    return kept


def too_long(found: Selection, choice: Choice) -> str:
    """Why the texts that the choice wants read are too many for one request; empty when they are not."""
    read = found.uncompared or len(found.kept)
    if choice.form == "pairs":
        read = max(read, len(_attempts_at(found.every, {rollout.task for rollout in found.kept})))
    if read <= READ or choice.form == "tasks":
        return ""
    return (
        f"{read} of its rollouts would have to be read, and at most {READ} are at once: choose a higher reward or "
        "fewer tokens, or collect in parts"
    )


def _practised(found: Selection, choice: Choice) -> Selection:
    """Attempts at tasks that are solved as often as the choice wants."""
    solved: dict[int, list[float]] = {}
    for rollout in found.kept:
        solved.setdefault(rollout.task, []).append(float(bool(rollout.success)))
    wanted = {
        task: choice.solved_min <= sum(passed) / len(passed) <= choice.solved_max for task, passed in solved.items()
    }
    words = f"its task is solved in {percent(choice.solved_min)} to {percent(choice.solved_max)} of the attempts"
    found.pass_("solved", words, lambda rollout: wanted[rollout.task])
    return found


def _imitated(speaker: Speaker, tasks: dict[int, Task], found: Selection, choice: Choice) -> Iterator[dict[str, Any]]:
    for rollout, episode in _episodes(speaker, tasks, found.kept):
        for row in dataset_builder.demonstrations(speaker, tasks[rollout.task], episode, "rollout"):
            yield {**row, "rollouts": [rollout.trace_id], "rewards": [rollout.score]}


def _scored(speaker: Speaker, tasks: dict[int, Task], found: Selection, choice: Choice) -> Iterator[dict[str, Any]]:
    traces = stored(found.kept)
    for rollout in found.kept:
        if (trace := traces.get(rollout.pk)) is None:
            continue
        task, score = tasks[rollout.task], rollout.score or 0.0
        episode, recorded = (
            dataset_builder.reopened(speaker, task, trace.conversation()),
            attempt_scores.recorded(trace),
        )
        for row in dataset_builder.scored(speaker, task, episode, score, rollout.trace_id, recorded):
            yield {**row, "rollouts": [rollout.trace_id], "rewards": [score]}


def _preferred(speaker: Speaker, tasks: dict[int, Task], found: Selection, choice: Choice) -> Iterator[dict[str, Any]]:
    """Pairs of a task, the widest gap first, each rollout in one of them."""
    good: dict[int, list[Rollout]] = {}
    for rollout in found.kept:
        good.setdefault(rollout.task, []).append(rollout)
    candidates = _attempts_at(found.every, good)
    episodes = {rollout.pk: episode for rollout, episode in _episodes(speaker, tasks, candidates)}
    for task, better in good.items():
        worse = [rollout for rollout in candidates if rollout.task == task]
        gaps = [((one.score or 0.0) - (other.score or 0.0), one, other) for one, other in product(better, worse)]
        wide = sorted((gap for gap in gaps if gap[0] >= choice.gap - 1e-9), key=lambda g: (-g[0], g[1].pk, g[2].pk))
        used: set[int] = set()
        for _, one, other in wide:
            if used & {one.pk, other.pk} or not {one.pk, other.pk} <= episodes.keys():
                continue
            row = dataset_builder.preference(speaker, tasks[task], episodes[one.pk], episodes[other.pk], "rollout")
            if row is not None:
                used |= {one.pk, other.pk}
                yield {**row, "rollouts": [one.trace_id, other.trace_id], "rewards": [one.score, other.score]}


def _attempts_at(rollouts: list[Rollout], tasks: Container[int]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.task in tasks]


def _episodes(
    speaker: Speaker, tasks: dict[int, Task], rollouts: list[Rollout]
) -> Iterator[tuple[Rollout, list[Message]]]:
    said = conversations(rollouts)
    for rollout in rollouts:
        if rollout.pk in said:
            yield rollout, dataset_builder.reopened(speaker, tasks[rollout.task], said[rollout.pk])


def _last_word(found: Selection, choice: Choice) -> str:
    """At which step the last of them went."""
    if not found.rollouts:
        return "it has no rollout"
    gone = next((step for step in found.steps if step.before and not step.after), None)
    if gone is not None:
        return f"no rollout passes “{gone.words}”"
    return f"no two attempts at a task are {choice.gap:g} apart and say something else"


def _card(
    run: EvalRun, choice: Choice, found: Selection, rows: list[dict[str, Any]], tasks: dict[int, Task]
) -> dict[str, Any]:
    """Describe what the dataset is made of and how: enough to make it again, and to judge what it teaches."""
    environment = run.task_set.environment_version
    used = {row.get("task_id", row.get("id")) for row in rows}
    learnt = [task for task in tasks.values() if str(task) in used]
    return {
        "card": CARD,
        "eval_run": run.pk,
        "policy": str(run.version),
        "policy_digest": run.version.digest,
        "policy_model": run.version.base_model,
        "engine": run.engine or run.version.endpoint.get("kind", ""),
        "samples": run.samples,
        "sampling": run.sampling,
        "seed": run.seed,
        "budget": run.budget,
        "environment": str(environment),
        "environment_digest": environment.digest,
        "verifier_digest": run.verifier_digest,
        "choice": choice.as_dict(),
        "chosen_by_reward": choice.is_by_reward or found.is_by_reward,
        "steps": [{**asdict(step), "out": step.out} for step in found.steps],
        "rollouts": len(found.rollouts),
        "dropped": [
            {"rollout": rollout.trace_id, "reason": rollout.why_dropped}
            for rollout in found.rollouts
            if rollout.why_dropped
        ],
        "tasks": len(learnt),
        "from_failures": sum(bool(task.bucket) and not task.is_synthetic for task in learnt),
        "from_rollouts": sum(row.get("origin") == "rollout" for row in rows),
        "synthetic": sum(row.get("synthetic", False) for row in rows),
        "synthetic_tasks": sum(task.is_synthetic for task in learnt),
        **dataset_builder.judgements(rows),
    }
