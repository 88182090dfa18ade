"""Carry out an eval run: ask the version, judge its answers, store every rollout as a trajectory.

1. Load the version's engine. What does not load fails the run with its reason, and so does a vLLM server that mixes
   adapters up (`workers.policies.vllm_policies`). A version that is a program makes its attempts itself
   (`workers.policies.program_runs`); what follows is the same.
2. Ask and judge the attempts that have no result yet, a chunk at a time; the next are asked while one is stored
   (`workers.policies.answer_stream`). Results, their trajectories and the progress are one transaction under the lease,
   so that a run which is taken over goes on where it stood and every attempt is stored exactly once.
3. Judges behind an endpoint meet their canaries first, and again among the attempts. One that gives a canary a mark
   fails the run and makes its scores void.
4. An attempt that was not answered, or whose verifier or environment raised, is unscored and says why. When not one of
   the first chunk was answered, or the server was away for all of a later one, the policy cannot be asked any more:
   that fails the run, which can be resumed, and stores nothing of the chunk. One that talks until its context or the
   environment's tokens are spent is judged as it stands, or rambling would leave failures out of the mean.
5. Write the summary, and put the version forward if a training run made it.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.core import envs, verifiers
from flywheel.core.envs.agent_config import first_request
from flywheel.core.envs.policy_rollouts import UNASKED, Engine, EngineError, Rollout, Sampling, play
from flywheel.core.traces import Outcome, Trace
from flywheel.core.verifiers import CAUSES, Verdict
from flywheel.edge.jobs import Lease, State
from flywheel.environments import ledger
from flywheel.environments.models import MEASURED, Opening, Split, Task
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.models import Engine as Engines
from flywheel.evals.models import EvalRun
from flywheel.evals.models.runs import BUDGET_CHUNK
from flywheel.evals.runs import first_requests, result_rows, run_budget
from flywheel.evals.runs.run_summaries import summary_of
from flywheel.evals.runs.submission import attempt_seed
from flywheel.evals.runs.void_scores import unscore
from flywheel.promotions.candidacy import propose_for
from flywheel.training.datasets import contamination_checks
from flywheel.trajectories.store.merge import store_rollouts
from flywheel.trajectories.store.rollout_traces import trace_of_rollout
from workers.engines.process_engine import open_beside
from workers.judging import attempt_verdicts, project_judges
from workers.policies.answer_prices import by_the_hour, hour_of, with_price
from workers.policies.answer_stream import AHEAD, Asking
from workers.policies.endpoint_keys import with_key
from workers.policies.program_runs import ProgramRuns
from workers.policies.vllm_policies import open_served
from workers.worlds import gym_sessions

Asked = list[tuple[Task, Rollout]]

CHUNK = 64
"""Attempts asked at once: enough to fill a batch, few enough to show progress and to stop soon."""
SILENT = 8
"""Attempts of a later chunk that a server which is away must fail, all of them, for the run to end there."""


class VerifierChanged(RuntimeError):
    """Another revision of the verifier would judge than the run was submitted with."""

    kind = "verifier_changed"


def open_version(version: Version) -> Engine:
    """The engine that answers as this version. Raises EngineError or ArtifactError."""
    project_id = version.agent.project_id
    is_own = version.endpoint.get("kind") == "transformers"
    spec = with_key(version.endpoint if is_own else with_price(version.endpoint, project_id), project_id)
    if not version.weights and version.is_program:
        raise EngineError(f"{version} is a program: it makes whole attempts in evals, and no single answer")
    if not version.weights and is_own:
        raise EngineError(f"{version} has no weights here; make a version with weights, or one that names a server")
    engine = open_beside(spec | artifacts.places(version))
    return by_the_hour(engine, project_id) if is_own else engine


def evaluate(lease: Lease) -> None:
    """Carry out the run that the lease holds."""
    run = EvalRun.objects.select_related(
        "version__agent__live__agent",
        "version__agent__live__weights",
        "version__agent__live__adapter",
        "version__weights",
        "version__adapter",
        "task_set__environment_version__environment",
        "project",
    ).get(pk=lease.job.pk)
    _look_for_leaks(lease, run)
    environment = run.task_set.environment_version
    if verifiers.digest(environment.verifier) != run.verifier_digest:
        raise VerifierChanged(
            f"the verifier's code changed since eval {run.pk} was submitted; submit it anew: one judge scores all of it"
        )
    kind = environment.environment.kind
    runners = project_judges.runners(
        run.project, environment.verifier, run.judges, simulated=run.simulator, lease=lease
    )
    env = envs.build(kind, environment.config, environment.verifier, runners, run.version.config())
    if _ask_and_judge(lease, run, env):
        _conclude(lease, run)


def _look_for_leaks(lease: Lease, run: EvalRun) -> None:
    """Compare what the version learnt from with what it is measured by, where nobody did: pages only read it."""
    if run.split not in MEASURED:
        return
    for check in contamination_checks.check_version(run.version, run.task_set):
        if problem := contamination_checks.refusal(check, run.task_set):
            lease.log(f"{run.version} learnt from {check.dataset}: {problem}", "warning")


def _ask_and_judge(lease: Lease, run: EvalRun, env: envs.Environment) -> bool:
    """Whether every attempt has its result now; not when the lease was lost or a person asked for an end."""
    members = run.task_set.members.filter(split=run.split).select_related("task").order_by("task__number")
    tasks = [member.task for member in members]
    done = set(run.results.values_list("task_id", "sample"))
    waiting = [(task, k) for k in range(run.samples) for task in tasks if (task.pk, k) not in done]
    lease.progress(len(done), len(tasks) * run.samples, f"loading {run.version}" if waiting else "")
    asked = f"{run.version} at {run.task_set} ({run.get_split_display().lower()}): {len(tasks)} tasks × {run.samples}"
    lease.log(f"{asked}, {len(done)} attempts are done already" if done else asked)
    if not waiting:
        return True
    project_judges.meet(lease, env, core_task(waiting[0][0]), run.results.all())
    gym_sessions.meet(env, core_task(waiting[0][0]))
    stored = len(done)
    with _answers(lease, run, env, tasks, waiting) as asking:
        since = timezone.now()
        while stored < len(done) + len(waiting):
            if spent := run_budget.spent(run, timezone.now() - since):
                lease.log(f"{spent}; what was attempted is kept", "warning")
                lease.finish(State.CANCELLED, error=f"{spent[:1].upper()}{spent[1:]}.", error_kind="budget")
                return False
            answered = asking.next()
            if lease.lost:
                return False
            if answered is None:
                lease.log("stopped as asked; what was attempted is kept")
                lease.finish(State.CANCELLED)
                return False
            stored += len(answered)
            if answered:
                _store(lease, run, env, answered, done=stored)
    return True


def _answers(
    lease: Lease, run: EvalRun, env: envs.Environment, tasks: Sequence[Task], waiting: Sequence[tuple[Task, int]]
) -> ProgramRuns | Asking[Asked]:
    """Whoever makes the attempts that wait, to be asked for some of them at a time."""
    if run.version.is_program:
        return ProgramRuns(lease, run, env, waiting)
    if run.engine == Engines.VLLM:
        engine = by_the_hour(open_served(lease, run, env, _to_show(run, tasks)), run.project_id)
    else:
        engine = open_version(run.version)
    size, is_first = min(CHUNK, BUDGET_CHUNK) if run.budget else CHUNK, not run.results.exists()

    def ask(number: int) -> Asked:
        chunk = waiting[number * size : (number + 1) * size]
        attempts = [(core_task(task), sample, attempt_seed(run, task, sample)) for task, sample in chunk]
        # Only what may be trained on is worth its probabilities, of which offline RL makes importance ratios.
        rollouts = play(engine, env, attempts, Sampling(**run.sampling), tells_tokens=run.split == Split.TRAIN)
        answered = [
            (task, rollout) for (task, _), rollout in zip(chunk, rollouts, strict=True) if rollout.error != UNASKED
        ]
        refuse_silence([rollout for _, rollout in answered], is_first=is_first and not number)
        return answered

    # What is asked is paid for: nothing ahead of a budget.
    return Asking(lease, engine, ask, -(-len(waiting) // size), ahead=0 if run.budget else AHEAD)


def _to_show(run: EvalRun, tasks: Sequence[Task]) -> list[envs.Task]:
    """Tasks that a self-test may ask, and show with what was answered: none that is sealed."""
    if run.split != Split.SEALED:
        return [core_task(task) for task in tasks]
    members = run.task_set.members.filter(split=Split.HELD_OUT).select_related("task").order_by("task__number")
    return [core_task(member.task) for member in members]


def refuse_silence(rollouts: Sequence[Rollout], *, is_first: bool, least: int = SILENT) -> None:
    """Raise EngineError when not one of these attempts was answered: none will be for now, and there is one reason.

    Those that the environment broke say nothing about the policy. Where the server has answered others only its being
    away does, at `least` attempts: requests that it refuses it would refuse in every go, and the run would never end.
    """
    asked = [rollout for rollout in rollouts if not rollout.broken]
    if not asked or not all(rollout.error for rollout in asked):
        return
    if is_first or (len(asked) >= least and all(rollout.is_away for rollout in asked)):
        cause, times = Counter(rollout.error for rollout in asked).most_common(1)[0]
        which = "the first" if is_first else "the last"
        raise EngineError(f"not one of {which} {len(asked)} requests was answered; {times} times: {cause}")


def _conclude(lease: Lease, run: EvalRun) -> None:
    if run.split != Split.SEALED:  # its sums stand with the candidate that it was asked for, and nowhere else
        run.summary = {**summary_of(run), **hour_of(run)}
    lease.update(summary=run.summary, message="")
    causes = Counter(run.results.filter(score=None).values_list("cause", flat=True))
    if causes:
        said = ", ".join(f"{CAUSES.get(cause, 'no cause')} {count}" for cause, count in causes.most_common())
        lease.log(f"{causes.total()} of {run.results.count()} attempts are unscored: {said}", "warning")
    # Before the end, so that a worker which dies here leaves a job that is taken over, not a candidate never made.
    # `run` is this function's own copy of the row; proposing wants an eval that has succeeded.
    run.state = State.SUCCEEDED
    try:
        candidate = propose_for(run)
    except ValueError as error:  # Refused, or arms that cannot be compared: the eval stands whatever comes of it
        lease.log(f"no candidate was made of it: {error}", "warning")
    else:
        if candidate is not None:
            lease.log(f"candidate {candidate.pk}: the gate says {candidate.verdict.replace('_', ' ')}")
    lease.finish(State.SUCCEEDED)


def _store(lease: Lease, run: EvalRun, env: envs.Environment, answered: Asked, *, done: int) -> None:
    verdicts = project_judges.settled(env, attempt_verdicts.of_rollouts(env, [rollout for _, rollout in answered]))
    traces: list[Trace] = []
    if run.split != Split.SEALED:  # what nobody may look at is not kept
        judged = zip(answered, verdicts, strict=True)
        traces = [_trace(run, task, rollout, verdict, env.tools) for (task, rollout), verdict in judged]
    with lease.guard():
        stored = store_rollouts(run.project, traces, version=run.version) if traces else []
        keys = [row.pk for row in stored] if traces else [None] * len(answered)
        rows = zip(answered, verdicts, keys, strict=True)
        _note_first(lease, run, env, answered)
        result_rows.write(run, ((task.pk, rollout, verdict, key) for (task, rollout), verdict, key in rows))
        if run.split == Split.HELD_OUT:
            ledger.opened(
                task_set=run.task_set, kind=Opening.Kind.EVAL, subject=run, actor=Actor(run.created_by), times=1
            )
        run.judges = project_judges.note(lease, env)
        unscore(run.results.all(), run.judges)
        if simulated := project_judges.simulator_report(env):
            run.simulator = simulated
            lease.update(simulator=simulated)
        lease.progress(done)
    project_judges.refuse_void(env)


def _note_first(lease: Lease, run: EvalRun, env: envs.Environment, answered: Asked) -> None:
    """Keep what the run sent first, as it was sent, before anything of it is compared."""
    first = next(((task, rollout) for task, rollout in answered if rollout.messages), None)
    if run.first_request or first is None or run.results.exists():
        return  # what was attempted before it was kept may have been asked otherwise
    task, rollout = first
    if run.version.is_program:
        parts = first_requests.of_program(run.version, run.sampling, first_requests.code_of(run))
    else:
        parts = first_request(rollout.messages, env.tools, run.sampling)
    run.first_request = parts | {"task": task.pk}
    lease.update(first_request=run.first_request)


def _trace(run: EvalRun, task: Task, rollout: Rollout, verdict: Verdict, tools: Sequence[dict[str, Any]]) -> Trace:
    """The rollout, which had these tools, as a trajectory; its id is a function of the attempt, so storing it twice is
    storing it once."""
    name = f"eval/{run.pk}/{task.pk}/{rollout.sample}"
    outcome: Outcome | None = None
    if verdict.success is not None:
        outcome = "success" if verdict.success else "failed"
    return trace_of_rollout(
        rollout,
        trace_id=hashlib.sha256(name.encode()).hexdigest()[:32],
        started_at=timezone.now(),
        tools=tools,
        session_id=task.cluster,
        model=run.version.base_model,
        outcome=outcome,
        metadata={
            "eval_run": run.pk,
            "task": str(task),
            "sample": rollout.sample,
            "seed": rollout.seed,
            # As production sends them, so that a rollout which is labelled makes the same task again.
            "state": task.state,
            "slice": task.slice,
            **({"ended": rollout.ended} if rollout.ended else {}),
        },
    )
