"""Tasks of chosen trajectories, as an action of the list: each that can be one is, the others say why not."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.core.traces import tooling
from flywheel.edge.jobs import Lease
from flywheel.environments.models import Environment, Task
from flywheel.failures.labels.decisions import decide
from flywheel.trajectories.models import Bulk, Source
from flywheel.trajectories.operations import bulk_actions
from tests.conftest import Build, Cast
from workers.jobs.trajectories.bulk_changes import carry_out

RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
WRONG = tooling.call_text("calendar.create_event", {"person": "Bako", "day": "monday"})
RIGHT_CALL = tooling.call_text("calendar.create_event", {"person": "Bako", "day": "friday"})
PEOPLE = {"state": {"people": ["Bako", "Ines"]}, "slice": "plain"}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def environment(build: Build) -> Environment:
    return build.environment()


def work(cast: Cast, environment: Environment, **about: Any) -> Bulk:
    job = bulk_actions.submit(
        project=cast.project,
        actor=Actor(cast.builder),
        action="make_tasks",
        options={"environment": environment.name},
        key=uuid.uuid4(),
        **about,
    )
    lease = Bulk.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        carry_out(lease)
    job.refresh_from_db()
    return job


def test_each_that_is_labelled_becomes_a_task_once(
    cast: Cast, build: Build, environment: Environment, sign_in: Callable[[User], Client]
) -> None:
    for prompt in ("Meet Bako on friday", "Meet Bako on friday, please"):
        row = build.trajectory(answer=WRONG, prompt=prompt, metadata=PEOPLE)
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    passing = build.trajectory(answer=RIGHT_CALL, prompt="Friday, Bako", metadata=PEOPLE)
    decide(trajectory=passing, actor=Actor(cast.reviewer), bucket="")
    bare = build.trajectory(answer=WRONG, prompt="No correction", metadata=PEOPLE)
    decide(trajectory=bare, actor=Actor(cast.reviewer), bucket="wrong_arguments")
    build.trajectory(answer=WRONG, prompt="Nobody looked")
    attempt = build.trajectory(answer=WRONG, source=Source.ROLLOUT)

    first = work(cast, environment)
    assert first.report["changed"] == Task.objects.count() == 3
    assert first.report["skipped"] == {"not labelled": 1}
    [(problem, count)] = first.report["failed"].items()
    assert "no corrected action" in problem
    assert count == 1
    assert [each["trace_id"] for each in first.report["examples"]] == [bare.trace_id]
    page = sign_in(cast.viewer).get(reverse("trajectories:bulk", args=["acme", first.pk])).content.decode()
    assert reverse("environments:taskless", args=["acme"]) in page, "where each says what it lacks"
    entry = AuditEntry.objects.filter(action="environments.make_task").first()
    assert entry is not None
    assert (entry.actor, entry.through) == (cast.builder, f"bulk action {first.pk}")

    again = work(cast, environment, ids=[passing.trace_id, attempt.trace_id])
    assert again.report["changed"] == 0
    assert again.report["skipped"] == {"a task already": 1, "an attempt at a task already": 1}
    assert Task.objects.count() == 3


def test_the_list_offers_it_to_builders_alone(
    cast: Cast, build: Build, environment: Environment, sign_in: Callable[[User], Client]
) -> None:
    build.trajectory()
    page, start = (reverse(f"trajectories:{name}", args=["acme"]) for name in ("index", "start_bulk"))
    assert 'value="make_tasks"' in sign_in(cast.builder).get(page).content.decode()
    reviewer = sign_in(cast.reviewer)
    assert 'value="make_tasks"' not in reviewer.get(page).content.decode()
    asked = {"action": "make_tasks", "environment": environment.name, "all": "1", "key": str(uuid.uuid4())}
    assert reviewer.post(start, asked).status_code == 403
    assert not Bulk.objects.exists()


@pytest.mark.parametrize("name", ["", "elsewhere", "nul\0"])
def test_an_environment_that_is_none_is_told(cast: Cast, build: Build, name: str) -> None:
    build.environment()
    with pytest.raises(bulk_actions.BadBulk, match="there is no environment"):
        bulk_actions.submit(
            project=cast.project,
            actor=Actor(cast.builder),
            action="make_tasks",
            options={"environment": name},
            key=uuid.uuid4(),
        )


def test_a_program_asks_for_the_same(
    cast: Cast, build: Build, environment: Environment, key: Callable[..., dict[str, str]], client: Client
) -> None:
    row = build.trajectory(answer=WRONG, metadata=PEOPLE)
    wanted = {"id": [row.trace_id], "environment": environment.name, "key": str(uuid.uuid4())}

    def ask(scope: str) -> Any:
        return client.post("/api/v1/bulk/tasks", wanted, content_type="application/json", headers=key(scope))

    assert ask("review").status_code == 403
    answer = ask("build")
    assert (answer.status_code, answer.json()["action"]) == (202, "make_tasks")
