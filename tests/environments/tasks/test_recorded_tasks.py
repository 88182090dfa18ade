"""A labelled failure becomes a task: what it is made of, once, and what is missing when it cannot be made."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Scope, User
from flywheel.core.traces import Message, ToolCall, tooling
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Split, Task
from flywheel.environments.tasks.bulk_tasks import tasks_from_all, without_task
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.environments.tasks.retirement import retire
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure
from flywheel.trajectories.models import Source, Step, Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of

RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
WRONG = tooling.call_text("calendar.create_event", {"person": "Bako", "day": "monday"})
PEOPLE = {"state": {"people": ["Bako", "Ines"]}, "slice": "plain"}

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


@pytest.fixture
def environment(build: Build) -> Environment:
    return build.environment()


@pytest.fixture
def failure(cast: Cast, build: Build) -> Failure:
    row = build.trajectory(answer=WRONG, metadata=PEOPLE)
    return decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", step="s2", corrected=RIGHT)


def test_a_task_holds_prompt_state_target_and_where_it_came_from(
    cast: Cast, environment: Environment, failure: Failure
) -> None:
    task, is_new = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    assert is_new
    assert (task.prompt, task.state, task.target) == ("Meet Bako on friday", PEOPLE["state"], RIGHT)
    assert (task.bucket, task.slice, task.cluster) == ("wrong_arguments", "plain", failure.trajectory.session_id)
    assert (task.failure, task.source, task.is_proved) == (failure, failure.trajectory, True)
    entry = AuditEntry.objects.get(action="environments.make_task")
    assert (entry.actor, entry.subject) == (cast.builder, "mail/t-1")


def test_the_same_failure_twice_is_one_task(cast: Cast, environment: Environment, failure: Failure) -> None:
    first, _ = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    again, is_new = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    assert (again, is_new) == (first, False)


def test_a_new_correction_retires_the_task_of_the_old_one_and_coming_back_revives_it(
    cast: Cast, environment: Environment, failure: Failure
) -> None:
    first, _ = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    other = {"tool": "calendar.create_event", "arguments": {"person": "Ines", "day": "friday"}}
    later = decide(trajectory=failure.trajectory, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=other)
    second, _ = task_from(failure=later, environment=environment, actor=Actor(cast.builder))
    first.refresh_from_db()
    assert first.retired_at is not None
    back = decide(trajectory=failure.trajectory, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    revived, is_new = task_from(failure=back, environment=environment, actor=Actor(cast.builder))
    second.refresh_from_db()
    assert (revived, is_new, revived.retired_at) == (first, False, None)
    assert second.retired_at is not None


def test_a_trajectory_that_passes_guards_its_own_answer(cast: Cast, build: Build, environment: Environment) -> None:
    row = build.trajectory(metadata=PEOPLE)
    task, _ = task_from(
        failure=decide(trajectory=row, actor=Actor(cast.reviewer)), environment=environment, actor=Actor(cast.builder)
    )
    assert (task.bucket, task.target, task.is_proved) == ("", RIGHT, True)
    assert task.proof["checks"][0]["name"] == "recorded success"


@pytest.mark.parametrize(
    ("label", "fields", "message"),
    [
        ({"bucket": "wrong_tool"}, {}, "has no corrected action"),
        ({"bucket": "wrong_tool", "corrected": {"text": "no"}}, {}, "the corrected action is a text"),
        ({}, {"answer": "I will"}, "the passing answer is no tool call: not valid JSON"),
        ({"bucket": "wrong_tool", "corrected": RIGHT}, {"metadata": {"state": ["Bako"]}}, "is not an object of lists"),
        ({"bucket": "wrong_tool", "corrected": RIGHT}, {"prompt": " "}, "has no user request"),
    ],
)
def test_what_is_missing_is_said(
    cast: Cast,
    build: Build,
    environment: Environment,
    label: dict[str, Any],
    fields: dict[str, Any],
    message: str,
) -> None:
    row = build.trajectory(**fields)
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), **label)
    with pytest.raises(Refused, match=message):
        task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    assert not Task.objects.exists()


def test_a_conversation_with_two_requests_is_no_single_turn_task(
    cast: Cast, build: Build, environment: Environment
) -> None:
    row = build.trajectory(answer=WRONG)
    add_step(row, 3, Message("user", "and 3"))
    add_step(row, 4, Message("assistant", "and 4"))
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool", corrected=RIGHT)
    with pytest.raises(Refused, match="2 requests"):
        task_from(failure=failure, environment=environment, actor=Actor(cast.builder))


def test_the_recorded_failure_is_what_the_marked_step_said(cast: Cast, build: Build, environment: Environment) -> None:
    row = build.trajectory(answer=WRONG, metadata=PEOPLE)
    add_step(row, 3, Message("assistant", "Done."))
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", step="s2", corrected=RIGHT)
    task, _ = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    assert task.proof["recorded"]["content"] == WRONG


def add_step(row: Trajectory, position: int, said: Message) -> None:
    body = {"result": said.content} if said.role == "tool" else {"output": [said.to_json()]}
    Step.objects.create(trajectory=row, span_id=f"s{position}", position=position, kind=said.role, body=body)


LOOKED = Message("assistant", "", (ToolCall("a", "calendar.search", {}),))


@pytest.mark.parametrize(("step", "is_refused"), [("s4", True), ("", True), ("s2", False), ("s3", False)])
def test_what_followed_an_observation_is_no_task_of_one_turn(
    step: str, is_refused: bool, cast: Cast, build: Build, environment: Environment
) -> None:
    row = build.trajectory(metadata=PEOPLE)
    row.steps.get(span_id="s2").delete()
    for position, said in enumerate((LOOKED, Message("tool", "event 17"), Message("assistant", WRONG)), 2):
        add_step(row, position, said)
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", step=step, corrected=RIGHT)
    if is_refused:
        with pytest.raises(Refused, match=r"this failure happens after a call of calendar\.search"):
            task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    else:
        task, _ = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
        assert task.proof["recorded"]["tool_calls"][0]["name"] == "calendar.search"


def test_a_success_that_had_to_look_first_is_no_task_of_one_turn(
    cast: Cast, build: Build, environment: Environment
) -> None:
    row = build.trajectory(answer=WRONG, metadata=PEOPLE)
    add_step(row, 3, Message("tool", "Bako is busy on monday."))
    add_step(row, 4, Message("assistant", json.dumps(RIGHT)))
    with pytest.raises(Refused, match=r"this failure happens after a call of calendar\.create_event"):
        task_from(
            failure=decide(trajectory=row, actor=Actor(cast.reviewer)),
            environment=environment,
            actor=Actor(cast.builder),
        )


@pytest.mark.parametrize("split", [Split.HELD_OUT, Split.SEALED, None])
def test_an_attempt_at_what_is_measured_becomes_no_task(
    split: str | None, cast: Cast, sign_in: SignIn, key: Callable[..., dict[str, str]], build: Build
) -> None:
    """Or an answer that nobody may learn from would teach, in a task of another source."""
    row = build.trajectory(answer=WRONG, metadata=PEOPLE, source=Source.ROLLOUT)
    if split:
        task_set = build.task_set(train=1, held_out=1, sealed=1)
        run = EvalRun.objects.create(
            project=cast.project, created_by=cast.builder, version=build.version(), task_set=task_set, split=split
        )
        asked = task_set.members.get(split=split).task
        Result.objects.create(run=run, task=asked, sample=0, seed=0, trajectory=row)
    before = Task.objects.count()
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    environment = build.environment()
    with pytest.raises(Refused, match="this is an attempt at a task that is not trained on"):
        task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    page = sign_in(cast.builder).post(of(failure), {"environment": "mail"}, headers={"HX-Request": "true"})
    assert "this is an attempt at a task that is not trained on" in page.content.decode()
    answer = Client().post(
        "/api/v1/environments/mail/tasks",
        {"trace_id": row.trace_id},
        content_type="application/json",
        headers=key(Scope.BUILD),
    )
    assert (answer.status_code, "not trained on" in answer.content.decode()) == (422, True)
    assert Task.objects.count() == before


def test_an_attempt_in_training_becomes_no_task(cast: Cast, build: Build) -> None:
    row = build.trajectory(answer=WRONG, metadata=PEOPLE, source=Source.TRAINING)
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    with pytest.raises(Refused, match="of a policy that was still learning"):
        task_from(failure=failure, environment=build.environment(), actor=Actor(cast.builder))


def test_all_labelled_failures_at_once(cast: Cast, build: Build, environment: Environment) -> None:
    def labelled(corrected: dict[str, Any] | None, **fields: Any) -> Trajectory:
        row = build.trajectory(answer=WRONG, metadata=PEOPLE, **fields)
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=corrected)
        return row

    labelled(RIGHT, prompt="Meet Bako on friday, please")
    labelled(RIGHT, prompt="A meeting with Bako on friday")
    labelled(RIGHT, prompt="A meeting with Bako on friday")
    labelled({"text": "no"}, prompt="Do it")
    labelled(None)
    labelled(RIGHT, prompt="An attempt", source=Source.ROLLOUT)
    labelled(RIGHT, prompt="Another agent's", agent=build.agent("other"))
    made = tasks_from_all(environment=environment, actor=Actor(cast.builder))
    assert (len(made.made), made.existing, made.unproved, made.left) == (2, 1, 0, 0)
    assert dict(made.refused) == {"the corrected action is a text; this environment wants a tool call": 1}
    assert str(made).startswith("2 tasks made; 1 were there already; 1 refused: the corrected action is a text")
    again = tasks_from_all(environment=environment, actor=Actor(cast.builder))
    assert (again.made, again.existing) == ([], 0)
    assert Task.objects.get(also__isnull=False).prompt == "A meeting with Bako on friday"


def test_a_bulk_request_stops_at_its_limit_and_the_next_goes_on(
    cast: Cast, build: Build, environment: Environment
) -> None:
    for number in range(5):
        row = build.trajectory(answer=WRONG, prompt=f"Meet Bako on friday {number}", metadata=PEOPLE)
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    assert tasks_from_all(environment=environment, actor=Actor(cast.builder), limit=3).left == 2
    assert len(tasks_from_all(environment=environment, actor=Actor(cast.builder), limit=3).made) == 2
    assert not without_task(environment).exists()


def test_a_retired_task_needs_a_reason_and_is_not_made_again(
    cast: Cast, build: Build, environment: Environment, failure: Failure
) -> None:
    task, _ = task_from(failure=failure, environment=environment, actor=Actor(cast.builder))
    with pytest.raises(Refused, match="reason"):
        retire(task=task, actor=Actor(cast.builder), reason=" ")
    retire(task=task, actor=Actor(cast.builder), reason="ambiguous")
    retire(task=task, actor=Actor(cast.builder), reason="twice")
    assert AuditEntry.objects.get(action="environments.retire").reason == "ambiguous"
    twin = decide(
        trajectory=build.trajectory(answer=WRONG, metadata=PEOPLE),
        actor=Actor(cast.reviewer),
        bucket="wrong_arguments",
        corrected=RIGHT,
    )
    with pytest.raises(Refused, match="t-1 was retired"):
        task_from(failure=twin, environment=environment, actor=Actor(cast.builder))


# One click on the review page


def of(failure: Failure, name: str = "make_task") -> str:
    return reverse(f"environments:{name}", args=["acme", failure.trajectory.trace_id])


def test_one_click_saves_the_decision_and_makes_the_task(
    cast: Cast, sign_in: SignIn, build: Build, environment: Environment
) -> None:
    row = build.trajectory(answer=WRONG, metadata=PEOPLE)
    sent = {
        "environment": "mail",
        "seen": "0",
        "bucket": "wrong_arguments",
        "correct": "1",
        "tool": "calendar.create_event",
        "was": "json",
        "arguments": json.dumps(RIGHT["arguments"]),
    }
    url = reverse("environments:make_task", args=["acme", row.trace_id])
    answer = sign_in(cast.builder).post(url, sent, headers={"HX-Request": "true"})
    failure = Failure.objects.get()
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "created, proved" in page
    assert f"In the {Task.objects.get().get_split_display().lower()} split." in page_of(answer)
    assert f'id="seen" value="{failure.pk}" hx-swap-oob="true"' in page
    assert Task.objects.get().failure == failure


def test_a_decision_that_does_not_fit_makes_no_task(
    cast: Cast, sign_in: SignIn, build: Build, environment: Environment
) -> None:
    row = build.trajectory(answer=WRONG)
    url = reverse("environments:make_task", args=["acme", row.trace_id])
    answer = sign_in(cast.builder).post(url, {"environment": "mail", "seen": "0"}, headers={"HX-Request": "true"})
    assert (answer.status_code, answer["HX-Retarget"]) == (422, "#decision-pane")
    assert "Choose a category" in answer.content.decode()
    assert not Task.objects.exists()


def test_a_pass_that_stands_becomes_a_task_that_guards_it(
    cast: Cast, sign_in: SignIn, build: Build, environment: Environment
) -> None:
    """As the desk sends it after *Nothing wrong*: the decision form, in which no bucket is chosen."""
    row = build.trajectory(
        answer=tooling.call_text("calendar.create_event", {"person": "Bako", "day": "friday"}), metadata=PEOPLE
    )
    passed = decide(trajectory=row, actor=Actor(cast.reviewer))
    client, sent = sign_in(cast.builder), {"environment": "mail", "seen": str(passed.pk), "bucket": ""}
    for unseen in ({"seen": "0"}, {"correct": "1"}):
        refused = client.post(of(passed), sent | unseen, headers={"HX-Request": "true"})
        assert (refused.status_code, Task.objects.count()) == (422, 0), "somebody has more to say than the pass"
    page = client.post(of(passed), sent, headers={"HX-Request": "true"}).content.decode()
    assert "created, proved" in page
    assert Task.objects.get().failure == passed == Failure.objects.get()


def test_without_a_correction_the_page_says_what_is_missing(
    cast: Cast, sign_in: SignIn, environment: Environment, build: Build
) -> None:
    failure = decide(trajectory=build.trajectory(answer=WRONG), actor=Actor(cast.reviewer), bucket="wrong_arguments")
    client = sign_in(cast.builder)
    page = client.post(of(failure), {"environment": "mail"}, headers={"HX-Request": "true"}).content.decode()
    assert "No task was made." in page
    assert "no corrected action" in page
    plain = client.post(of(failure), {"environment": "mail"}, follow=True)
    assert "No task was made. this failure has no corrected action" in plain.content.decode()


def test_reviewers_label_and_builders_make_tasks(
    cast: Cast, sign_in: SignIn, environment: Environment, failure: Failure
) -> None:
    for person in (cast.viewer, cast.reviewer, cast.approver):
        assert sign_in(person).post(of(failure), {"environment": "mail"}).status_code == 403
        assert 'data-key="x"' not in sign_in(person).get(of(failure, "make")).content.decode()
    assert sign_in(cast.stranger).post(of(failure), {"environment": "mail"}).status_code == 404
    assert sign_in(cast.stranger).get(of(failure, "make")).status_code == 404
    assert 'data-key="x"' in sign_in(cast.builder).get(of(failure, "make")).content.decode()
    assert not Task.objects.exists()


def test_a_strangers_task_is_not_there(cast: Cast, sign_in: SignIn, build: Build) -> None:
    task = build.task(Split.TRAIN)
    url = reverse("environments:task", args=["acme", "mail", task.number])
    assert sign_in(cast.viewer).get(url).status_code == 200
    assert sign_in(cast.stranger).get(url).status_code == 404
    elsewhere = reverse("environments:task", args=["elsewhere", "mail", task.number])
    assert sign_in(cast.stranger).get(elsewhere).status_code == 404
