"""The story, told through the product's own verbs: what `make demo` loads and `make turn` plays to the end.

Nothing here writes a score, a label or a verdict by itself: traffic goes in over HTTP, detectors and evals run in the
worker, labels are those of the story's oracle (it knows what each customer wanted) and are recorded as the oracle's.
"""

import logging
import time
import urllib.request
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db.models import F, Q

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, Membership, Project, Role, User
from flywheel.accounts.project_settings import api_keys
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Version
from flywheel.core.envs.policy_rollouts import Engine
from flywheel.core.evidence.gate.decision import Policy as Rules
from flywheel.core.traces import Trace, tooling
from flywheel.edge.jobs import Job, State
from flywheel.environments.models import Environment, Split, Suite, Task, TaskSet
from flywheel.environments.task_sets import suite_definitions, task_selection
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks.bulk_tasks import tasks_from_all
from flywheel.environments.tasks.recorded_tasks import prove_made
from flywheel.environments.versions.environment_versions import environment_version
from flywheel.evals.models import EvalRun, RewardAudit
from flywheel.evals.reward_audits import audit_lifecycle
from flywheel.evals.runs import submission
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Decision, Failure
from flywheel.promotions.live_version import make_first
from flywheel.promotions.models import Candidate, Policy
from flywheel.promotions.sealed_comparison import Comparison, final_of, open_sealed
from flywheel.promotions.suite_standings import Standing, standings
from flywheel.system import env
from flywheel.training.launch.run_control import LaunchRequest, launch
from flywheel.training.models import TrainingRun
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.store.stored_traces import traces_of
from workers.jobs.eval_runs import open_version
from workers.reference import story, traffic

log = logging.getLogger("workers.programs.story_playback")

J = TypeVar("J", bound=Job)

SEED = env.story_seed()
ENVIRONMENT = "workplace"
TASK_SET = "workplace-requests"
RESERVED = sorted(w.id for w in story.WORDINGS.values() if w.group == "reserved")
THROUGH = "the story's oracle"
AUDITED_SAMPLES = 6
"""Attempts at each train task for the audit: it needs different answers that passed, and one task has few of them."""
UNREAD = Q(detected_at=None) | Q(detected_at__lt=F("changed_at"))
"""Trajectories that the detectors have still to read."""
SUITES = 2
GUARDED = 30
"""Tasks of each of the story's regression suites."""


class StoryFailed(RuntimeError):
    """A step of the story did not come about; the message says which and why."""


def person(project: Project, name: str, *roles: Role) -> User:
    """An account of the story without a password."""
    user, _ = User.objects.get_or_create(username=name, defaults={"password": make_password(None)})
    for role in roles:
        Membership.objects.get_or_create(user=user, project=project, role=role)
    return user


def oracle(project: Project) -> Actor:
    return Actor(person(project, "demo-colleague", Role.TRAINER), THROUGH)


def approver(project: Project) -> Actor:
    return Actor(person(project, "demo-approver", Role.APPROVER), THROUGH)


def agent_with_first_version(project: Project, temperature: float = traffic.SAMPLING.temperature) -> Agent:
    """The agent `workplace-assistant`, its first version made of the shipped policy and live."""
    agent, _ = Agent.objects.get_or_create(
        project=project, name=story.AGENT, defaults={"description": "Turns requests at work into tool calls."}
    )
    if agent.live is None:
        version = Version.make(
            agent,
            oracle(project).user,
            base_model="flywheel-reference",
            endpoint={"kind": "transformers"},
            weights=artifacts.store(Path(settings.REFERENCE_POLICY), "model"),
            system_prompt=story.SYSTEM_PROMPT,
            tools=story.TOOLS,
            sampling={**traffic.SAMPLING.to_json(), "temperature": temperature},
            form=story.AGENT_CONFIG.form,
            note="the policy that ships with Flywheel",
        )
        make_first(agent=agent, version=version, actor=approver(project), reason="the first version")
    return Agent.objects.select_related("live__weights").get(pk=agent.pk)


def environment(project: Project, agent: Agent) -> Environment:
    """The environment that the agent's failures become tasks of."""
    row, _ = Environment.objects.get_or_create(
        project=project,
        name=ENVIRONMENT,
        defaults={
            "kind": "tool_call",
            "agent": agent,
            "description": "One request, one tool call. Tasks of a customer are trained on or held out, never both.",
            "held_out_share": 0.4,
            "sealed_share": 0.1,
            "reserved_slices": RESERVED,
        },
    )
    environment_version(
        environment=row,
        actor=Actor(oracle(project).user),
        config=story.environment_config(),
        verifier=dict(traffic.VERIFIER),
    )
    return row


def policy(project: Project) -> Policy:
    """The story's gate. Latency is shown but not judged: a laptop that trains beside it cannot measure it fairly."""
    newest = project.policies.order_by("-version").first()
    rules = Rules(latency_margin=None, invalid_margin=0.05, cost_margin=None).to_dict()
    return newest or Policy.objects.create(project=project, version=1, rules=rules, created_by=oracle(project).user)


def send_traffic(
    project: Project, agent: Agent, endpoint: str, customers: range, *, begin: datetime, end: datetime
) -> int:
    """Let the live version answer these customers and export what happened; returns the number of trajectories."""
    assert agent.live is not None
    engine = open_version(agent.live)
    try:
        return answer_customers(project, agent.live, engine, endpoint, customers, begin=begin, end=end)
    finally:
        engine.close()


def answer_customers(
    project: Project,
    version: Version,
    engine: Engine,
    endpoint: str,
    customers: range,
    *,
    begin: datetime,
    end: datetime,
) -> int:
    """Let a version's open engine answer these customers and export what happened; returns how many requests. Who came
    already is left out, so that a story that was ended in its middle can be told again."""
    asked = story.sessions(len(customers), seed=SEED, first=customers.start)
    sessions = {request.session_id for request in asked}
    came = set(project.trajectories.filter(session_id__in=sessions).values_list("session_id", flat=True))
    requests = [request for request in asked if request.session_id not in came]
    if not requests:
        return 0
    rollouts = traffic.answer(engine, requests)
    wait_until(lambda: _answers(endpoint), 120, f"{endpoint}/healthz answers")
    key, text = ApiKey.make(project, "story traffic", ["ingest"], oracle(project).user)
    traffic.send(endpoint, text, requests, rollouts, version=str(version.number), begin=begin, end=end)
    api_keys.revoke(key=key, actor=oracle(project))  # what it has sent names it
    return len(requests)


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/healthz", timeout=10) as answer:  # noqa: S310 our own server
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for_detectors(project: Project) -> None:
    """Until every trajectory of production has been read by the detectors."""

    def read() -> bool:
        return not Trajectory.objects.filter(UNREAD, project=project).exclude(source__in=Source.ATTEMPTS).exists()

    wait_until(read, 120, "the detectors read every trajectory")


def label_all(project: Project, before: datetime | None = None) -> list[Failure]:
    """The oracle's decision about every unlabelled trajectory of production, oldest first."""
    wanted = {(request.session_id, request.prompt): request for request in story.sessions(2000, seed=SEED)}
    rows = Trajectory.objects.filter(project=project, source=Source.PRODUCTION, label="").order_by("started_at", "id")
    if before is not None:
        rows = rows.filter(started_at__lt=before)
    actor, traces = oracle(project), traces_of(rows)
    made = []
    for row in rows:
        trace = traces[row.pk]
        prompt = next((message.content for message in trace.conversation() if message.role == "user"), "")
        request = wanted.get((row.session_id, prompt))
        if request is not None:
            made.append(_label(row, trace, request, actor))
    return made


def _label(row: Trajectory, trace: Trace, request: story.Request, actor: Actor) -> Failure:
    """Label one trajectory as the oracle does, who knows the target."""
    parsed = tooling.parse_call(trace.final())
    note = "labelled by the story's oracle, which knows what the customer wanted"
    call = parsed.call
    if call and call.name == request.target["tool"] and call.arguments == request.target["arguments"]:
        return decide(trajectory=row, actor=actor, decision=Decision.REJECTED, note=note)
    if call is None:
        bucket = "format_error"
    elif (tool := tooling.find(story.TOOLS, call.name)) is None:
        bucket = "hallucinated_api"
    elif call.name != request.target["tool"]:
        bucket = "unsafe_action" if tool.get("x-unsafe") else "wrong_tool"
    else:
        bucket = "wrong_arguments"
    decision = Decision.ADDED
    if row.proposed_bucket:
        decision = Decision.CONFIRMED if row.proposed_bucket == bucket else Decision.CHANGED
    answered = [step.span_id for step in trace.steps if step.kind == "assistant"]
    return decide(
        trajectory=row,
        actor=actor,
        decision=decision,
        bucket=bucket,
        step=answered[-1] if answered else "",
        corrected=request.target,
        note=note,
    )


def make_tasks(
    project: Project, environment: str = ENVIRONMENT, name: str = TASK_SET, *, only_new: bool = False
) -> TaskSet:
    """A task of every labelled trajectory, frozen as the next version of the set: all tasks, or those in no set yet."""
    row = Environment.objects.get(project=project, name=environment)
    actor = oracle(project)
    labelled = project.failures.filter(current=True, tasks=None).select_related("trajectory").order_by("pk")
    prove_made(row, list(row.tasks.filter(proof__checks=[])))  # of a start that was ended before it came to that
    made = tasks_from_all(environment=row, actor=actor, limit=len(labelled), failures=labelled)
    for reason, count in made.refused.items():
        log.warning("no task of %d labels: %s", count, reason)
    tasks = list(task_selection.to_freeze(row, task_selection.fresh(row.tasks.all()))) if only_new else None
    return freeze(environment=row, name=name, actor=actor, tasks=tasks)


def guard(agent: Agent, task_set: TaskSet) -> list[Suite]:
    """One small regression suite of each kind, of the set's held-out tasks: a mail must not go to everybody, and what
    the agent did right in production it must do still."""
    members = task_set.members.filter(split=Split.HELD_OUT).select_related("task").order_by("pk")
    held_out = [member.task for member in members]
    mails = [task for task in held_out if task.target["tool"].startswith("email.")]
    right = [task for task in held_out if not task.bucket]
    chosen: dict[str, tuple[list[Task], dict[str, Any]]] = {
        "mail-to-all": (mails, {"kind": "safety", "measure": "safe"}),
        "still-right": (right, {"kind": "general", "margin": 0.1, "samples": 4}),
    }
    actor = oracle(agent.project)
    made = []
    for name, (tasks, rule) in chosen.items():
        place = task_set.environment_version.environment
        frozen = freeze(environment=place, name=name, actor=actor, tasks=tasks[:GUARDED])
        suite, _ = suite_definitions.put(agent=agent, actor=actor, name=name, task_set=frozen, **rule)
        made.append(suite)
    return made


def stands(candidate: Candidate) -> list[Standing]:
    """Return the candidate's standings in its agent's regression suites, once it and the live version have run them."""

    def now() -> list[Standing]:
        return standings(candidate.version_eval, candidate.baseline_eval)

    wait_until(lambda: all(stand.state != "unfinished" for stand in now()), 300, f"{candidate} has run its suites")
    return now()


def confirm(candidate: Candidate) -> Comparison | None:
    """Compare the candidate on the sealed part, once an approver has had it asked; None where its set has none, or
    where there is nothing to confirm."""
    if candidate.verdict != Candidate.Verdict.ELIGIBLE or final_of(candidate) is None:
        return None
    open_sealed(candidate=candidate, actor=approver(candidate.project))

    def now() -> Comparison:
        found = final_of(candidate)
        assert found is not None
        return found

    wait_until(lambda: not now().is_running, 300, f"{candidate} was asked the sealed tasks")
    return now()


def evaluate(version: Version, task_set: TaskSet, samples: int = 4, split: Split = Split.HELD_OUT) -> EvalRun:
    """The version's finished eval on a split."""
    run, _ = submission.submit(
        key=uuid.uuid5(uuid.NAMESPACE_OID, f"{version.pk} {task_set.pk} {split} {samples}"),
        version=version,
        task_set=task_set,
        actor=oracle(task_set.project),
        split=split,
        settings=submission.RunSettings(samples=samples),
    )
    return finished(run)


def audit_reward(version: Version, task_set: TaskSet) -> RewardAudit:
    """The audit of the set's verifier on the version's outputs, judged by the oracle, which knows what each customer
    wanted and has not seen a verdict. Recorded as the oracle's."""
    actor = oracle(task_set.project)
    audits = RewardAudit.objects.filter(run__version=version, run__task_set=task_set).exclude(finished_at=None)
    if made := audits.first():
        return made
    run = evaluate(version, task_set, AUDITED_SAMPLES, Split.TRAIN)
    audit, _ = audit_lifecycle.begin(run=run, actor=actor)
    wanted = {(request.session_id, request.prompt): request.target for request in story.sessions(2000, seed=SEED)}
    items = list(audit.items.select_related("result__task", "result__trajectory"))
    traces = traces_of([item.result.trajectory for item in items if item.result.trajectory])
    for item in items:
        task, trace = item.result.task, traces[item.result.trajectory_id or 0]
        call = tooling.parse_call(trace.final()).call
        target = wanted[task.cluster, task.prompt]
        is_right = call is not None and {"tool": call.name, "arguments": call.arguments} == target
        audit_lifecycle.judge(
            item=item,
            actor=Actor(actor.user),
            answer="pass" if is_right else "fail",
            note="by the story's oracle, which knows what the customer wanted",
        )
    return audit_lifecycle.finish(audit=audit, actor=actor)


def start_training(version: Version, task_set: TaskSet, algorithm: str, chosen: dict[str, Any]) -> TrainingRun:
    """A launched training run of the version."""
    request = LaunchRequest(
        key=uuid.uuid4(),
        base=version,
        algorithm=algorithm,
        task_set=task_set,
        settings=chosen,
        override_reason="the story shows this algorithm, whatever the ladder says",
    )
    run, _ = launch(request, oracle(task_set.project))
    return run


def candidate_of(run: TrainingRun) -> Candidate:
    """The candidate that the finished run's finished evaluation made."""
    finished(run, timeout_s=900)
    assert run.evaluation is not None
    finished(run.evaluation)
    wait_until(lambda: run.candidates.exists(), 60, f"{run} has a candidate")
    return run.candidates.select_related("agent", "version", "baseline").latest("pk")


def finished(job: J, timeout_s: float = 300) -> J:
    """The job once it has succeeded. Raises StoryFailed with its reason otherwise."""

    def over() -> bool:
        job.refresh_from_db()
        return job.is_finished

    wait_until(over, timeout_s, f"{job} ends")
    if job.state != State.SUCCEEDED:
        raise StoryFailed(f"{job} is {job.state}: {job.error or 'no reason given'}")
    return job


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Look again and again. Raises StoryFailed where it does not come about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise StoryFailed(f"waited {timeout_s:.0f} s until {what}")
        time.sleep(0.2)
