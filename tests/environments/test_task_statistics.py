"""From failure to fix: how far the labelled failures of a project came."""

import pytest

from flywheel.agents.models import Agent
from flywheel.environments.models import Split
from flywheel.environments.task_statistics import funnel
from flywheel.evals.models import Result
from flywheel.trajectories.models import Label
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, agent, evaluated

__all__ = ["agent", "evaluated"]
pytestmark = pytest.mark.django_db


def test_each_step_is_a_part_of_the_one_before(
    agent: Agent,
    build: Build,
    cast: Cast,
    evaluated: Evaluated,
) -> None:
    failures = [build.trajectory(label=Label.FAILURE, label_bucket="wrong_tool") for _ in range(6)]
    build.trajectory(label=Label.PASS)
    environment = build.environment(agent=agent)
    build.task(environment=environment)  # of no failure
    build.task(environment=environment, source=failures[0], is_proved=False)
    build.task(environment=environment, source=failures[1])
    task_set = build.task_set(train=1, held_out=0, environment=environment)
    for failure in failures[2:5]:
        task = build.task(Split.HELD_OUT, environment, source=failure)
        task_set.members.create(task=task, split=Split.HELD_OUT)
    assert agent.live is not None
    evaluated(agent.live, task_set, passing=4)  # two of the three tasks, each tried twice
    evaluated(build.version(agent, system_prompt="Do."), task_set, passing=6)  # not live
    Result.objects.filter(task=task).update(success=None, score=None)
    assert [n for _, n in funnel(cast.project)] == [6, 5, 4, 2, 2]
