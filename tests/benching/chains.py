"""A turn of the wheel through trajectories that are there, which lineage leads through: failures of a version's
traffic, their tasks, a task set, a dataset, a training run, the version that it made, its comparison."""

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flywheel.accounts.models import Project, User
    from flywheel.promotions.models import Candidate, Ramp

TASKS = 400
"""Of a large project."""
SESSIONS = 30_000
"""Of a long ramp, at most."""


def chained(project: "Project", admin: "User", tasks: int) -> "Candidate":
    """The candidate that came of the most used version's failures, of so many; made if it is not there yet."""
    from django.db.models import Count
    from django.utils import timezone

    from flywheel.accounts.actors import Actor
    from flywheel.agents.models import Version
    from flywheel.edge.jobs import State
    from flywheel.environments.models import Task
    from flywheel.failures.labels.decisions import decide
    from flywheel.promotions.candidacy import propose
    from flywheel.promotions.models import Candidate
    from flywheel.training.models import Dataset, TrainingRun
    from flywheel.trajectories.models import Source, Trajectory
    from tests.conftest import Build, Cast
    from tests.promotions.conftest import evaluated_with

    if found := Candidate.objects.filter(agent__project=project).first():
        return found
    people: dict[str, Any] = dict.fromkeys(
        ("viewer", "reviewer", "builder", "trainer", "approver", "admin", "stranger"), admin
    )
    build = Build(Cast(project=project, elsewhere=project, **people))
    used = Version.objects.filter(agent__project=project).annotate(n=Count("trajectories")).order_by("-n")[0]
    task_set = build.task_set(train=tasks, held_out=max(12, tasks // 4))
    rows = Trajectory.objects.filter(project=project, source__in=Source.TRAFFIC, version=used).order_by("-pk")
    made = list(task_set.tasks.order_by("pk"))
    for task, row in zip(made, rows.iterator(), strict=False):
        task.source, task.failure = row, decide(trajectory=row, actor=Actor(admin), bucket="wrong_tool")
    Task.objects.bulk_update(made, ["source", "failure"])
    better = build.version(used.agent, system_prompt="Answer with exactly one call.", parent=used)
    dataset = Dataset.objects.create(
        project=project, name="bench", kind="sft", digest="d" * 64, rows=tasks, recipe={}, file="x", version=1,
        created_by=admin, task_set=task_set,
    )  # fmt: skip
    TrainingRun.objects.create(
        project=project, created_by=admin, base=used, dataset=dataset, task_set=task_set, algorithm="sft", settings={},
        tuning={"mode": "full"}, spec_digest="s" * 64, state=State.SUCCEEDED, produced=better,
        finished_at=timezone.now(), idempotency_key=uuid.uuid4(),
    )  # fmt: skip
    evaluated = evaluated_with(build)
    return propose(
        version_eval=evaluated(better, task_set, passing=24),
        baseline_eval=evaluated(used, task_set, passing=6),
        actor=Actor(admin),
    )


def ramped(candidate: "Candidate") -> "Ramp":
    """A ramp of the candidate that the newest sessions of its agent met, a quarter of them its own arm; made if it is
    not there yet."""
    from django.db import connection

    from flywheel.agents.models import Split
    from flywheel.core.evidence.ramp.ramp_plan import Plan
    from flywheel.promotions.models import Ramp

    if found := Ramp.objects.filter(candidate=candidate).first():
        return found
    agent, live = candidate.agent, candidate.baseline
    split = Split.objects.create(
        agent=agent, live=live, candidate=candidate.version, salt="bench", lease_until=candidate.created_at,
        closed_at=candidate.created_at,
    )  # fmt: skip
    statement = """
        INSERT INTO agents_splitunit (split_id, kind, name, trace_id, is_candidate, share, is_assigned, met_at, look_at,
                                      mixed, parts, wealth, trajectories, overriding_calls, overrides)
        SELECT %s, 'session', session_id, '', row_number() OVER () %% 4 = 0, 2500, false, now(), now(),
               '', '{}', '{}', 1, 0, '{}'
        FROM (SELECT DISTINCT session_id FROM trajectories_trajectory
              WHERE agent_id = %s AND source = 'production' AND session_id <> '' LIMIT %s) AS sessions
        """
    with connection.cursor() as cursor:
        cursor.execute(statement, [split.pk, agent.pk, SESSIONS])
        cursor.execute("ANALYZE agents_splitunit")
    return Ramp.objects.create(
        agent=agent, candidate=candidate, split=split, plan=Plan().to_json(), state=Ramp.State.STOPPED, reason="bench",
        agent_generation=agent.generation, approved_by=candidate.version_eval.created_by,
    )  # fmt: skip
