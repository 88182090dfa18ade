"""Trying a verifier before it is saved: the proof of chosen tasks under it, and what it says of old rollouts.

A worker carries it out, since the verifier may be Python that nobody vouches for. What comes out is a look, not a
score: it is kept for an hour after the next one and then goes.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.core import verifiers
from flywheel.core.traces import Message
from flywheel.core.verifiers import Runners, Verdict, VerifierError
from flywheel.core.verifiers.rubric import is_rubric, read
from flywheel.edge.jobs import FINISHED, StaleState
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import Environment, EnvironmentVersion, Opening, Split, Task, TaskSet, Trial
from flywheel.environments.proofs.judge_endpoints import is_touched
from flywheel.environments.proofs.red_green_proof import common_wrong, judge_rollouts, prove
from flywheel.environments.versions import reward_parts
from flywheel.environments.versions.environment_versions import check_verifier, latest
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.stored_traces import traces_of

TASKS_MOST, TASKS_SHOWN = 20, 3
ROLLOUTS_MOST, ROLLOUTS_SHOWN = 50, 5
TRAJECTORIES_MOST = 20
KEPT = timedelta(hours=1)


@transaction.atomic
def submit(
    *,
    environment: Environment,
    verifier: dict[str, Any],
    actor: Actor,
    key: uuid.UUID,
    tasks: Sequence[int] = (),
    rollouts: int = ROLLOUTS_SHOWN,
    trajectories: Sequence[str] = (),
) -> Trial:
    """Let a worker try it on these tasks, their newest rollouts, and trajectories that are named, with their tasks. On
    the newest few tasks where nothing is named.

    `trajectories`: ids of rollouts of the environment's tasks, and of what its tasks were made of. Raises Refused,
    and VerifierError which names the setting.
    """
    if not is_rubric(verifier):
        raise VerifierError(f'kind: {verifier.get("kind")!r} cannot be tried; expected a "rubric"')
    check_verifier(environment, latest(environment).config, verifier)
    verifier = reward_parts.frozen(environment.project, verifier)
    if not 0 <= rollouts <= ROLLOUTS_MOST:
        raise Refused(f"{rollouts} is not from 0 to {ROLLOUTS_MOST}", field="rollouts")
    named = _named(environment, trajectories)
    numbers = list(dict.fromkeys([*tasks, *(task.number for task in named.values())])) or suggested(environment)
    if not numbers:
        raise Refused(f"{environment} has none yet, and a verifier is tried on tasks; make one first", field="tasks")
    if len(numbers) > TASKS_MOST:
        raise Refused(
            f"{len(numbers)} are too many; {TASKS_MOST} are the most, those of trajectories too", field="tasks"
        )
    there = set(environment.tasks.filter(number__in=numbers).values_list("number", flat=True))
    if missing := [number for number in numbers if number not in there]:
        raise Refused(f"{environment} has no task t-{missing[0]}", field="tasks")
    if sealed := environment.tasks.filter(number__in=numbers, split=Split.SEALED).first():
        raise Refused(f"{sealed} is sealed: only a candidate's final comparison asks it", field="tasks")
    environment.trials.filter(state__in=FINISHED, finished_at__lt=timezone.now() - KEPT).delete()
    # Whoever tries again does not wait for what they have changed since.
    own = environment.trials.filter(created_by=actor.user).exclude(state__in=FINISHED)
    for older in own.exclude(idempotency_key=key):
        with suppress(StaleState):
            older.ask_to_end()
    job, is_new = Trial.submit(
        key=key,
        project=environment.project,
        actor=actor,
        environment=environment,
        verifier=verifier,
        tasks=numbers,
        rollouts=rollouts,
        trajectories=list(named),
        total=len(numbers),
    )
    if is_new:
        held_out = environment.tasks.filter(number__in=numbers, split=Split.HELD_OUT)
        for task_set in TaskSet.objects.filter(members__task__in=held_out).distinct():
            subject = f"verifier of {environment} tried"
            ledger.opened(task_set=task_set, kind=Opening.Kind.PAGE, subject=subject, actor=actor)
    return job


def _named(environment: Environment, trajectories: Sequence[str]) -> dict[str, Task]:
    """Return the task that each trajectory is judged at, by the trajectory's id. Raises Refused."""
    if len(trajectories) > TRAJECTORIES_MOST:
        raise Refused(f"{len(trajectories)} are too many; {TRAJECTORIES_MOST} are the most", field="trajectories")
    rows = environment.project.trajectories.filter(trace_id__in=trajectories)
    there = {row.trace_id: row for row in rows.select_related("result__task")}
    made: dict[str, Task] = {}
    tasks = environment.tasks.order_by(F("retired_at").desc(nulls_last=True), "pk")  # the newest in use is the last
    for path in ("also__trajectory", "source"):
        of = tasks.filter(**{f"{path}__in": list(there.values())}).annotate(of=F(f"{path}__trace_id"))
        made |= {task.of: task for task in of}
    found: dict[str, Task] = {}
    for name in trajectories:
        if name not in there:
            raise Refused(f"{name[:40]!r} is the id of none in this project", field="trajectories")
        result = getattr(there[name], "result", None)  # of an eval, in a room to the right
        task = result.task if result and result.task.environment_id == environment.pk else made.get(name)
        if task is None:
            raise Refused(
                f"{name} is neither a rollout of a task of {environment} nor was one made of it, "
                "so nobody knows what is right there; make a task of it first",
                field="trajectories",
            )
        found[name] = task
    return found


def suggested(environment: Environment) -> list[int]:
    """Tasks to try on: the newest in use, of the train split while it has one."""
    rows = environment.tasks.filter(retired_at=None).exclude(split=Split.SEALED).order_by("-pk")
    train = rows.filter(split=Split.TRAIN)
    return list((train if train.exists() else rows).values_list("number", flat=True)[:TASKS_SHOWN])


def reports(trial: Trial, runners: Runners) -> Iterator[dict[str, Any]]:
    """Yield the verifier's reports, a task at a time, from where the trial stands."""
    newest = latest(trial.environment)
    version = EnvironmentVersion(
        environment=trial.environment,
        number=newest.number + 1,
        config=newest.config,
        verifier=trial.verifier,
        verifier_digest=verifiers.digest(trial.verifier),
    )
    common = common_wrong(trial.environment, version)
    names = {part.name for part in read(trial.verifier).parts}
    for number in trial.tasks[trial.done :]:
        task = trial.environment.tasks.get(number=number)
        recorded, is_failure = _recorded(task)
        proof, is_proved = prove(
            task, version, recorded=recorded, is_failure=is_failure, common=common, runners=runners
        )
        rows = [_row(check) for check in proof["checks"]]
        rows += [{**_row(check), "passed": None, "warns": True} for check in proof.get("warnings", [])]
        rows += [{**_row(check), "trace_id": check["trace_id"]} for check in proof.get("labelled", [])]
        rows += _rollouts(task, version, trial.rollouts, trial.trajectories, runners)
        for row in rows:
            row["parts"] = {name: score for name, score in row["parts"].items() if name.partition(".")[0] in names}
        yield {"number": number, "prompt": task.prompt[:200], "is_proved": is_proved, "rows": rows}


def taken_back(shown: Sequence[dict[str, Any]], void: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the shown reports without the verdicts of void judges."""
    found = []
    for task in shown:
        rows = [_taken_back(row, void) if is_touched(row["parts"], void) else row for row in task["rows"]]
        found.append({**task, "rows": rows, "is_proved": False})
    return found


def _taken_back(row: dict[str, Any], void: Mapping[str, str]) -> dict[str, Any]:
    passed = None if row["passed"] is None else False
    parts = {name: None if name in void else score for name, score in row["parts"].items()}
    said = {"score": None, "passed": passed, "parts": parts, "cause": "canary", "reason": next(iter(void.values()))}
    return {**row, **said}


def _recorded(task: Task) -> tuple[Message | None, bool | None]:
    recorded = task.proof.get("recorded")
    return (Message.from_json(recorded), task.proof.get("is_failure")) if recorded else (None, None)


def _row(check: dict[str, Any]) -> dict[str, Any]:
    kept = ("wanted", "passed", "score", "cause", "reason", "parts")
    return {"what": check["name"], "before": None, "trace_id": "", "shown": check.get("shown", "")} | {
        name: check[name] for name in kept
    }


def _rollouts(
    task: Task, version: EnvironmentVersion, count: int, named: Sequence[str], runners: Runners
) -> list[dict[str, Any]]:
    """Those that are named, what the task was made of among them, and its newest."""
    rows = task.results.filter(trajectory__isnull=False).select_related("trajectory", "run").order_by("-pk")
    of_task = Q(tasks=task) | Q(failures__also_tasks=task)
    recorded = Trajectory.objects.filter(of_task, project=task.project_id, trace_id__in=named).distinct()
    chosen: dict[Trajectory, Any] = dict.fromkeys(recorded)
    for result in [*rows.filter(trajectory__trace_id__in=named), *rows[:count]]:
        assert result.trajectory is not None
        chosen[result.trajectory] = result
    traces = traces_of(chosen)
    found = judge_rollouts(task, version, [traces[row.pk].conversation() for row in chosen], runners)
    return [_of_rollout(row, result, verdict) for (row, result), verdict in zip(chosen.items(), found, strict=True)]


def _of_rollout(row: Trajectory, result: Any, verdict: Verdict) -> dict[str, Any]:
    """`result`: of an eval; None for what happened in use."""
    return {
        "what": f"{result.run}, sample {result.sample}" if result else f"trajectory {row.trace_id[:8]}",
        "wanted": "",
        "passed": None,
        "score": verdict.score,
        "before": result.score if result else None,
        "cause": verdict.cause,
        "reason": verdict.reason,
        "parts": dict(verdict.parts),
        "trace_id": row.trace_id,
        "shown": "",
    }
