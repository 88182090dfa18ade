"""The draft of the next task set: what is in it, what is left out and why, and that it is drafted once."""

from datetime import timedelta
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.agents.models import Agent
from flywheel.edge.refusals import Missing, Refused
from flywheel.environments.models import Environment, Split, Task, TaskSetMember
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure, Recurrence
from flywheel.promotions.models import Candidate
from flywheel.promotions.turns import drafts
from flywheel.promotions.turns.drafts import Draft, draft_of, environment_of, environments_of, start
from flywheel.promotions.turns.stations import STATIONS
from flywheel.promotions.turns.turn_bounds import present, turn_numbered
from tests.conftest import Build, Cast
from tests.promotions.conftest import agent, candidate, evaluated
from tests.promotions.turns.test_turn_bounds import promoted

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db
WRONG = '{"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "someday"}}'


@pytest.fixture
def world(build: Build) -> Environment:
    return build.environment()


def failed(cast: Cast, build: Build, session: str, bucket: str = "wrong_arguments", **fields: Any) -> Failure:
    row = build.trajectory(f"Meet {session} on friday", answer=WRONG, agent=build.agent(), session_id=session)
    right = {"tool": "calendar.create_event", "arguments": {"person": session, "day": "friday"}}
    return decide(trajectory=row, actor=Actor(cast.reviewer), bucket=bucket, **{"corrected": right, **fields})


def draft(agent: Agent, environment: Environment) -> Draft:
    return draft_of(present(agent), environment)


def names(agent: Agent, environment: Environment, show: str) -> list[str]:
    return [row.trajectory.session_id for row in draft(agent, environment).shown(show).order_by("-is_back", "pk")]


def test_it_is_drafted_once_and_begins_with_what_came_back(cast: Cast, build: Build, world: Environment) -> None:
    agent = build.agent()
    for number in range(4):
        failed(cast, build, f"Person{number}")
    back = failed(cast, build, "Returned", bucket="wrong_tool")
    failed(cast, build, "Bare", corrected=None)
    Recurrence.objects.create(
        project=cast.project, bucket="wrong_tool", version=build.version(agent),
        claim=0.02, failed=0.5, sessions=9, path=[],
    )  # fmt: skip
    assert names(agent, world, "taskless") == ["Returned", "Person0", "Person1", "Person2", "Person3"]
    actor = Actor(cast.builder)
    made = start(agent=agent, environment=world, actor=actor)
    assert made.made[0].failure == back
    assert (len(made.made), made.left) == (5, 0)
    again = start(agent=agent, environment=world, actor=actor)
    assert (again.made, again.existing, Task.objects.count()) == ([], 0, 5)
    assert AuditEntry.objects.filter(action="promotions.start_turn").count() == 1
    found = draft(agent, world)
    assert len(found.tasks) + len(found.left) == 5
    assert sum(count for _, count in found.counts()) == len(found.tasks)
    assert names(agent, world, "uncorrected") == ["Bare"]
    assert names(agent, world, "taskless") == []
    assert set(names(agent, world, "in")) | set(names(agent, world, "left")) == set(names(agent, world, "")) - {"Bare"}


def test_what_is_left_out_says_why_and_the_rest_becomes_the_next_version(
    cast: Cast, build: Build, world: Environment
) -> None:
    agent, actor = build.agent(), Actor(cast.builder)
    before = build.task_set(train=2, held_out=2)
    Task.objects.update(environment=world)
    elsewhere = build.environment("elsewhere")
    reasons: dict[str, tuple[str, dict[str, Any]]] = {
        "Train": ("", {"split": Split.TRAIN}),
        "Measured": ("", {"split": Split.HELD_OUT}),
        "Leaks": (drafts.MEASURED_ELSEWHERE, {"split": Split.TRAIN}),
        "Learnt": ("trained on in elsewhere@", {"split": Split.HELD_OUT}),
        "Aside": (drafts.SET_ASIDE, {"split": Split.SET_ASIDE}),
        "Sealed": (drafts.TOO_FEW_SEALED, {"split": Split.SEALED}),
        "Unproved": ("its proof failed: recorded", {"split": Split.TRAIN, "is_proved": False}),
        "Waits": (drafts.UNPROVED, {"split": Split.TRAIN, "is_proved": False, "proof": {"recorded": {}}}),
    }
    for name in reasons:
        failed(cast, build, name)
    start(agent=agent, environment=world, actor=actor)
    tasks = {task.source.session_id: task for task in Task.objects.exclude(source=None) if task.source}
    version = str(world.latest)
    for name, (_, fields) in reasons.items():
        proof = {"environment_version": version, "checks": [{"name": "recorded", "passed": False}]}
        Task.objects.filter(pk=tasks[name].pk).update(**{"is_proved": True, "proof": proof, **fields})
    build.task(Split.HELD_OUT, elsewhere, prompt="x", cluster=tasks["Leaks"].cluster)
    learnt = build.task_set(train=1, held_out=1, name="elsewhere", environment=elsewhere)
    TaskSetMember.objects.create(
        task_set=learnt, task=build.task(Split.TRAIN, elsewhere, cluster=tasks["Learnt"].cluster), split=Split.TRAIN
    )
    found = draft(agent, world)
    told = {task.source.session_id: reason for task, reason in found.left.items() if task.source}
    assert told.keys() == {name for name, (reason, _) in reasons.items() if reason}
    for name, reason in told.items():
        assert reasons[name][0] in reason, name
    assert [str(task) for task in found.tasks] == [str(tasks["Train"]), str(tasks["Measured"])]
    assert found.counts() == [("train", 1), ("held-out", 1)]
    assert drafts.name_of_set(world) == before.name

    made = drafts.freeze(agent=agent, environment=world, name=before.name, actor=actor)
    assert made.version == before.version + 1
    assert set(made.tasks.all()) == {*before.tasks.all(), tasks["Train"], tasks["Measured"]}
    assert before.members.count() == 4
    assert drafts.freeze(agent=agent, environment=world, name=before.name, actor=actor) == made
    assert names(agent, world, "frozen") == ["Train", "Measured"]
    with pytest.raises(Refused, match="no proved train task"):
        drafts.freeze(agent=agent, environment=world, name="elsewhere", actor=actor)


def test_what_was_confirmed_while_the_version_was_trained_and_released_is_in_the_next_draft(
    cast: Cast, build: Build, candidate: Candidate
) -> None:
    agent, world = candidate.agent, build.environment()
    rows = [failed(cast, build, name) for name in ("Before", "Meanwhile", "After")]
    promotion = promoted(candidate, cast)
    frozen, live = candidate.version_eval.task_set.created_at, promotion.created_at
    for row, at in zip(rows, (frozen - timedelta(days=1), frozen, live), strict=True):
        Failure.objects.filter(pk=row.pk).update(labelled_at=at)
    assert drafts.last_set(present(agent)) == candidate.version_eval.task_set
    assert names(agent, world, "") == ["Meanwhile", "After"]
    counts = [STATIONS["failures"].counted(turn_numbered(agent, number)).number for number in (1, 2)]
    assert counts == [2, 1], "each of one turn all the same"


def test_the_environment_with_the_newest_set_is_meant(cast: Cast, build: Build) -> None:
    agent = build.agent()
    with pytest.raises(Missing, match="create one"):
        environment_of(agent)
    one, two = build.environment("one"), build.environment("two")
    build.environment("anothers", build.agent("another"))
    build.task_set(name="two", environment=two)
    assert environments_of(agent) == [two, one]
    assert (environment_of(agent), environment_of(agent, "one")) == (two, one)
    with pytest.raises(Missing, match="no environment 'anothers' takes"):
        environment_of(agent, "anothers")
