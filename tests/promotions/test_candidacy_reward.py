"""A run that learnt from a reward nobody showed to be right says so on every candidate that comes of it."""

from collections.abc import Callable

from django.test import Client
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.edge.jobs import State
from flywheel.promotions.candidacy import propose
from flywheel.training.models import Dataset, TrainingRun
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated


def test_an_override_stands_with_the_candidates_of_what_was_made_later_too(
    cast: Cast, build: Build, agent: Agent, evaluated: Evaluated, sign_in: Callable[[User], Client]
) -> None:
    assert agent.live is not None
    task_set = build.task_set(train=2, held_out=12)
    made = build.version(agent, parent=agent.live, system_prompt="tuned")
    dataset = Dataset.objects.create(
        project=cast.project,
        name="tasks",
        version=1,
        kind=Dataset.Kind.TASKS,
        task_set=task_set,
        digest="d" * 64,
        rows=2,
        file="gone",
        created_by=cast.trainer,
    )
    run = TrainingRun.objects.create(
        project=cast.project,
        created_by=cast.trainer,
        base=agent.live,
        dataset=dataset,
        task_set=task_set,
        algorithm="grpo",
        tuning={"mode": "full"},
        settings={},
        spec_digest="s" * 64,
        state=State.SUCCEEDED,
        produced=made,
        finished_at=timezone.now(),
        audit_override=build.overridden(agent.live, task_set),
    )
    child = build.version(agent, parent=made, system_prompt="tuned, and told better")
    before = evaluated(agent.live, task_set, passing=4)
    for version in (made, child):
        candidate = propose(
            version_eval=evaluated(version, task_set, passing=20), baseline_eval=before, actor=Actor(cast.trainer)
        )
        (kept,) = candidate.report["rewards"]
        assert (kept["run"], kept["override"]) == (run.pk, {"by": "approver", "reason": "a test"})
        page = sign_in(cast.viewer).get(f"/p/acme/promotions/candidates/{candidate.pk}/").content.decode()
        assert "was trained on an unaudited reward" in page
