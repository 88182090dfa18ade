"""Tasks × versions: a set's tasks as rows, versions as columns, what each solved, and where they or people differ."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.environments.models import Task, TaskSet
from flywheel.evals.comparisons import task_grid
from flywheel.evals.models import EvalRun
from flywheel.failures.models import Decision, Failure
from tests.conftest import Build, Cast
from tests.evals.fake import finished, right, submit, wrong

SignIn = Callable[[User], Client]


@pytest.fixture
def task_set(build: Build) -> TaskSet:
    return build.task_set(held_out=6)


@pytest.fixture
def tasks(task_set: TaskSet) -> list[Task]:
    members = task_set.members.filter(split="held_out").select_related("task").order_by("task__number")
    return [member.task for member in members]


@pytest.fixture
def runs(
    build: Build, monkeypatch: pytest.MonkeyPatch, task_set: TaskSet, tasks: list[Task]
) -> tuple[EvalRun, EvalRun]:
    """The old version solves the first two tasks, the new one all but the first, half of its attempts at the last."""
    place = {task.prompt: number for number, task in enumerate(tasks)}

    def answer(solves: Callable[[int, int], bool]) -> Callable[[ChatRequest], ChatResponse]:
        def say(request: ChatRequest) -> ChatResponse:
            good = solves(place[request.messages[-1].content], request.seed)
            return right(request) if good else wrong(request)

        return say

    first: list[int] = []

    def half_of_the_last(number: int, seed: int) -> bool:
        if number == 5:
            first.append(seed)
        return number > 0 and (number < 5 or seed == first[0])

    old = finished(build, monkeypatch, answer(lambda number, _: number < 2), task_set=task_set)
    version = build.version(system_prompt="new")
    finished(build, monkeypatch, wrong, task_set=task_set, version=version)  # an older eval of it says nothing here
    new = finished(build, monkeypatch, answer(half_of_the_last), task_set=task_set, version=version)
    return old, new


def address(task_set: TaskSet) -> str:
    return reverse("evals:grid", args=["acme", task_set.name, task_set.version])


def shown(answer: Any) -> dict[int, list[str]]:
    """By the task's number, what each version passed of what was scored."""
    lines = answer.context["grid"].lines
    return {task.number: [f"{cell.passed}/{cell.scored}" for cell in cells] for task, cells in lines}


def test_each_version_stands_with_its_newest_eval_that_succeeded(
    runs: tuple[EvalRun, EvalRun], task_set: TaskSet, tasks: list[Task], build: Build, cast: Cast, sign_in: SignIn
) -> None:
    old, new = runs
    submit(build, task_set, old.version)  # waits
    answer = sign_in(cast.viewer).get(address(task_set))
    assert answer.context["columns"] == [old, new]
    expected = [["2/2", "0/2"], ["2/2", "2/2"], *[["0/2", "2/2"]] * 3, ["0/2", "1/2"]]
    assert shown(answer) == {task.number: row for task, row in zip(tasks, expected, strict=True)}
    text = answer.content.decode()
    for run in runs:
        assert f'{reverse("evals:run", args=["acme", run.pk])}?task={tasks[0].number}#matrix"' in text
    assert (
        f'href="{address(task_set)}?split=held_out"'
        in sign_in(cast.viewer).get(reverse("evals:run", args=["acme", new.pk])).content.decode()
    )
    page = reverse("environments:task_set", args=["acme", task_set.name, task_set.version])
    assert address(task_set) in sign_in(cast.viewer).get(page).content.decode()


def test_it_filters_to_failures_and_to_disagreements(
    runs: tuple[EvalRun, EvalRun], task_set: TaskSet, tasks: list[Task], cast: Cast, sign_in: SignIn
) -> None:
    """Half of the attempts count as solved, as in a comparison."""
    client, numbers = sign_in(cast.viewer), [task.number for task in tasks]
    answer = client.get(address(task_set), {"show": "failures"})
    assert sorted(shown(answer)) == [numbers[0], *numbers[2:]]
    answer = client.get(address(task_set), {"show": "differ"})
    assert sorted(shown(answer)) == [numbers[0], *numbers[2:]]
    alone = {"show": "differ", "version": str(runs[1].version)}
    answer = client.get(address(task_set), alone)
    assert shown(answer) == {}
    assert "These versions solve the same tasks" in answer.content.decode()
    counts = client.get(address(task_set), {"version": str(runs[1].version)}).context["grid"].counts
    assert counts == {"all": 6, "failures": 2, "differ": 0, "disputed": 0}


def test_it_filters_to_where_people_disagree_with_the_verifier(
    runs: tuple[EvalRun, EvalRun], task_set: TaskSet, tasks: list[Task], cast: Cast, sign_in: SignIn
) -> None:
    said = {"project": cast.project, "labelled_by": cast.reviewer}
    for run, task, decision, bucket in (
        (runs[0], tasks[1], Decision.ADDED, "wrong_tool"),  # it passed, and somebody says that it failed
        (runs[1], tasks[2], Decision.REJECTED, ""),  # it passed, and somebody says the same
    ):
        trajectory = run.results.get(task=task, sample=0).trajectory
        assert trajectory is not None
        Failure.objects.create(trajectory=trajectory, decision=decision, bucket=bucket, **said)
    answer = sign_in(cast.viewer).get(address(task_set), {"show": "disputed"})
    assert shown(answer) == {tasks[1].number: ["2/2", "2/2"]}
    assert [cell.is_disputed for cell in answer.context["grid"].lines[0][1]] == [True, False]


def test_versions_are_chosen_in_the_address(
    runs: tuple[EvalRun, EvalRun], task_set: TaskSet, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, names = sign_in(cast.viewer), [str(run.version) for run in runs]
    answer = client.get(address(task_set), {"version": names[:1]})
    assert answer.context["columns"] == [runs[0]]
    monkeypatch.setattr(task_grid, "MOST", 1)
    assert client.get(address(task_set)).context["columns"] == [runs[1]], "the newest where none is named"
    for wanted, says in (
        (names, "version: 2 are too many; at most 1 fit side by side"),
        (["<b>nobody@1"], "has no eval here that succeeded; these have: assistant@"),
    ):
        answer = client.get(address(task_set), {"version": wanted}, follow=True)
        assert answer.redirect_chain
        assert says in answer.content.decode()
        assert "<b>nobody" not in answer.content.decode()


def test_it_turns_pages_and_costs_the_same_for_any_number_of_tasks(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    monkeypatch.setattr(task_grid, "ROWS", 15)
    task_set = build.task_set(held_out=40)
    finished(build, monkeypatch, task_set=task_set, samples=1)
    client = sign_in(cast.viewer)
    client.get(address(task_set))
    seen: list[int] = []
    query = "?show=all"
    while query:
        with django_assert_max_num_queries(32):
            answer = client.get(address(task_set) + query)
        seen += shown(answer)
        query = answer.context["grid"].page.next
    assert len(seen) == len(set(seen)) == 40
    assert seen == sorted(seen, reverse=True)
    assert client.get(address(task_set), {"cursor": "nonsense"}).status_code == 302


def test_a_look_at_held_out_tasks_is_noted_and_one_at_train_tasks_is_not(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_set = build.task_set()
    held_out = finished(build, monkeypatch, task_set=task_set)
    finished(build, monkeypatch, task_set=task_set, split="train")
    looks = task_set.openings.filter(kind="page")
    client = sign_in(cast.viewer)
    assert client.get(address(task_set), {"split": "train"}).context["split"] == "train"
    assert not looks.exists()
    client.get(address(task_set), {"split": "set_aside"})
    assert [(look.actor, look.subject) for look in looks] == [(cast.viewer, str(held_out))]


def test_a_set_that_nobody_was_evaluated_on_says_so_and_a_stranger_finds_none(
    task_set: TaskSet, cast: Cast, sign_in: SignIn
) -> None:
    answer = sign_in(cast.builder).get(address(task_set))
    assert "No version was evaluated on these tasks yet" in answer.content.decode()
    assert sign_in(cast.stranger).get(address(task_set)).status_code == 404


def test_evals_that_differ_in_more_than_the_version_are_said_to(
    runs: tuple[EvalRun, EvalRun],
    task_set: TaskSet,
    build: Build,
    cast: Cast,
    sign_in: SignIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = sign_in(cast.viewer)
    assert client.get(address(task_set)).context["doubts"] == []
    third = finished(build, monkeypatch, task_set=task_set, version=build.version(system_prompt="third"), seed=9)
    answer = client.get(address(task_set))
    assert [run for run, _ in answer.context["doubts"]] == list(runs)
    assert "The seeds differ (9 and " in answer.content.decode()
    assert third in answer.context["columns"]


def test_a_program_reads_the_same(
    runs: tuple[EvalRun, EvalRun], task_set: TaskSet, tasks: list[Task], cast: Cast, client: Client, key: Any
) -> None:
    headers = key("read", by=cast.viewer)
    url = f"/api/v1/task-sets/{task_set.name}/{task_set.version}/grid"
    found = client.get(url, {"limit": 4}, headers=headers).json()
    assert [column["eval"] for column in found["columns"]] == [run.pk for run in runs]
    assert found["columns"][1]["version"] == str(runs[1].version)
    assert found["counts"] == {"all": 6, "failures": 5, "differ": 5, "disputed": 0}
    rest = client.get(url, {"limit": 4, "cursor": found["next"]}, headers=headers).json()
    lines = [*found["items"], *rest["items"]]
    assert [line["task"] for line in lines] == [str(task) for task in reversed(tasks)]
    assert lines[-1]["cells"][0] == {"eval": runs[0].pk, "attempts": 2, "scored": 2, "passed": 2, "disputed": False}
    assert rest["next"] is None
    assert task_set.openings.filter(kind="page", actor=cast.viewer).count() == 2
    one = client.get(url, {"version": [str(runs[0].version)]}, headers=headers).json()
    assert [column["eval"] for column in one["columns"]] == [runs[0].pk]
    for wrong_query, code, says in (
        ({"split": "set_aside"}, 422, "split: 'set_aside' is unknown; use one of held_out, train"),
        ({"show": "x"}, 422, "show: 'x' is unknown"),
        ({"version": "x@1"}, 422, "version: 'x@1' has no eval here that succeeded"),
        ({"cursor": "x"}, 400, "cursor 'x' is none of ours"),
    ):
        refused = client.get(url, wrong_query, headers=headers)
        assert (refused.status_code, refused.json()["detail"][: len(says)]) == (code, says)
