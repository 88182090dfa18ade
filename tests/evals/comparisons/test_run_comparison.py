"""Two runs side by side: what changed, what is doubtful about it, what cannot be compared."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.edge.jobs import State
from flywheel.environments.models import Opening, Task, TaskSet, TaskSetMember
from flywheel.evals.comparisons import run_comparison
from flywheel.evals.comparisons.run_comparison import CannotCompare, comparison, doubts
from flywheel.evals.models import Comparison, EvalRun
from flywheel.evals.pages.comparison_context import comparison_context
from tests.conftest import Build, Cast
from tests.evals.fake import finished, right, say, submit, wrong

SignIn = Callable[[User], Client]
Pair = tuple[EvalRun, EvalRun, list[Task]]


@pytest.fixture
def runs(build: Build, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Candidate and baseline over ten tasks: the first two broken, the next three fixed, the rest the same."""
    task_set = build.task_set(held_out=10)
    tasks = [m.task for m in task_set.members.filter(split="held_out").select_related("task").order_by("task__number")]
    person = {task.prompt: index for index, task in enumerate(tasks)}

    def answer(good: Callable[[int], bool]) -> Callable[[ChatRequest], ChatResponse]:
        def say_it(request: ChatRequest) -> ChatResponse:
            return right(request) if good(person[request.messages[-1].content]) else say("<script>x</script>")

        return say_it

    baseline = finished(build, monkeypatch, answer(lambda i: i < 2 or i > 4), task_set=task_set)
    candidate = finished(
        build, monkeypatch, answer(lambda i: i > 1), task_set=task_set, version=build.version(system_prompt="new")
    )
    return candidate, baseline, tasks


def test_a_comparison_of_what_is_asked_again_meanwhile_is_not_kept(runs: Pair) -> None:
    candidate, baseline, _ = runs
    EvalRun.objects.filter(pk=baseline.pk).update(state=State.QUEUED)
    with pytest.raises(CannotCompare, match=f"{candidate} or {baseline} is asked again just now"):
        comparison(candidate, baseline)
    EvalRun.objects.filter(pk=baseline.pk).update(state=State.SUCCEEDED, fence=baseline.fence + 1)
    with pytest.raises(CannotCompare, match="asked again"):
        comparison(candidate, baseline)
    assert not Comparison.objects.exists()
    baseline.refresh_from_db()
    assert comparison(candidate, baseline)


def test_broken_tasks_come_first_with_both_rollouts(runs: Pair, cast: Cast, sign_in: SignIn) -> None:
    candidate, baseline, tasks = runs
    client = sign_in(cast.viewer)
    answer = client.get(reverse("evals:compare", args=["acme", candidate.pk, baseline.pk]))
    context, text = answer.context, answer.content.decode()
    assert context["counts"] == {"fixed": 3, "broken": 2, "same": 5, "unscored": 0}
    assert [change["change"] for change in context["changed"]] == ["broken"] * 2 + ["fixed"] * 3
    first = context["changed"][0]
    assert first["task"] in tasks[:2]
    assert first["pair"]["old"].success is True
    assert first["pair"]["new"].success is False
    assert first["pair"]["old"].sample == first["pair"]["new"].sample
    assert [message.content for message in first["pair"]["opening"]] == [first["task"].prompt]
    assert "<script>x" not in text
    assert round(context["success"]["mean"], 6) == 0.1
    assert context["doubts"] == []
    # Rollouts of the others are fetched when a person opens them.
    assert context["changed"][-1]["pair"] is None
    fragment = client.get(context["changed"][-1]["url"])
    assert fragment.status_code == 200
    assert b"<html" not in fragment.content
    assert context["changed"][-1]["task"].prompt in fragment.content.decode()


def test_a_comparison_is_computed_once(runs: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, baseline, _ = runs
    found = comparison(candidate, baseline)
    assert found == comparison(candidate, baseline)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(run_comparison, "compare", refuse)
    assert comparison(candidate, baseline) == found
    assert Comparison.objects.count() == 1
    monkeypatch.setattr(run_comparison, "REVISION", 99)
    with pytest.raises(AssertionError, match="computed again"):
        comparison(candidate, baseline)


def test_what_was_stored_shows_the_same_as_what_was_computed(runs: Pair) -> None:
    candidate, baseline, _ = runs
    shown = comparison_context(candidate, baseline, comparison(candidate, baseline), margins={"unsafe": 0.01})
    series = shown["charts"][0]["series"][0]
    assert series["margin"][series["y"].index("Side effects (lower is better)")] == 1.0
    assert {row["key"] for row in shown["metrics"]} >= {"success", "unsafe", "latency_p95_ms"}
    latency = next(row for row in shown["metrics"] if row["key"] == "latency_p50_ms")
    assert latency["note"]
    assert latency["better"] == ""


def test_differences_besides_the_version_are_said(runs: Pair, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, _, _ = runs
    other = finished(
        build, monkeypatch, task_set=build.task_set(held_out=6), seed=9, samples=1, sampling={"temperature": 0.0}
    )
    EvalRun.objects.filter(pk=other.pk).update(verifier_digest="f" * 64)
    other.refresh_from_db()
    said = " ".join(doubts(candidate, other))
    for word in (
        "task sets differ",
        "Different verifiers",
        "seeds differ (1 and 9)",
        "temperature 1.0 and 0.0",
    ):
        assert word in said
    assert "Both runs are of" in doubts(candidate, candidate)[0]


def test_tasks_of_one_run_only_are_named(
    runs: Pair, build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch, sign_in: SignIn
) -> None:
    candidate, _, tasks = runs
    smaller = TaskSet.objects.create(
        project=cast.project,
        environment_version=candidate.task_set.environment_version,
        name="smaller",
        version=1,
        digest="0" * 64,
        created_by=cast.builder,
    )
    extra = build.task("held_out")
    for task in [*tasks[:6], extra]:
        TaskSetMember.objects.create(task_set=smaller, task=task, split="held_out")
    other = finished(build, monkeypatch, wrong, task_set=smaller)
    context = sign_in(cast.viewer).get(reverse("evals:compare", args=["acme", candidate.pk, other.pk])).context
    assert context["only_baseline"] == [extra]
    assert set(context["only_candidate"]) == set(tasks[6:])
    assert sum(context["counts"].values()) == 6


def test_runs_that_cannot_be_compared_say_why(
    runs: Pair, build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch, sign_in: SignIn
) -> None:
    candidate, _, _ = runs
    waiting = submit(build)
    with pytest.raises(CannotCompare, match=f"eval {waiting.pk} is queued"):
        comparison(candidate, waiting)
    with pytest.raises(CannotCompare, match="choose two different runs"):
        comparison(candidate, candidate)
    page = sign_in(cast.viewer).get(reverse("evals:compare", args=["acme", candidate.pk, waiting.pk]))
    assert "both must have succeeded" in page.content.decode()
    environment = build.environment(name="other")
    task_set = TaskSet.objects.create(
        project=cast.project,
        environment_version=environment.latest,
        name="else",
        version=1,
        digest="1" * 64,
        created_by=cast.builder,
    )
    TaskSetMember.objects.create(
        task_set=task_set, task=build.task("held_out", environment=environment), split="held_out"
    )
    other = finished(build, monkeypatch, task_set=task_set)
    with pytest.raises(CannotCompare, match="different environments"):
        comparison(candidate, other)


def test_two_ticked_runs_lead_to_their_comparison(runs: Pair, cast: Cast, sign_in: SignIn) -> None:
    candidate, baseline, _ = runs
    client = sign_in(cast.viewer)
    url = reverse("evals:pair", args=["acme"])
    answer = client.get(url, {"id": [baseline.pk, candidate.pk]})
    assert answer["location"] == reverse("evals:compare", args=["acme", candidate.pk, baseline.pk])
    assert client.get(url, {"id": [baseline.pk]})["location"] == reverse("evals:index", args=["acme"])
    assert client.get(url, {"id": ["x", "9" * 30]}).status_code == 302


def test_strangers_see_no_comparison(runs: Pair, cast: Cast, sign_in: SignIn, client: Client, key: Any) -> None:
    candidate, baseline, tasks = runs
    stranger = sign_in(cast.stranger)
    assert stranger.get(reverse("evals:compare", args=["acme", candidate.pk, baseline.pk])).status_code == 404
    assert stranger.get(reverse("evals:compare", args=["elsewhere", candidate.pk, baseline.pk])).status_code == 404
    changed = reverse("evals:changed", args=["elsewhere", candidate.pk, baseline.pk, tasks[0].number])
    assert stranger.get(changed).status_code == 404
    url = f"/api/v1/evals/{candidate.pk}/against/{baseline.pk}"
    assert client.get(url, headers=key("read", by=cast.stranger, project=cast.elsewhere)).status_code == 404
    answer = client.get(url, headers=key("read", by=cast.viewer)).json()
    assert answer["comparison"]["differences"]["success"]["n"] == 10
    assert len([task for task in answer["comparison"]["tasks"] if task["change"] == "broken"]) == 2
    looks = Opening.objects.filter(kind=Opening.Kind.PAGE).values_list("subject", "actor__username")
    assert sorted(looks) == sorted((str(run), "viewer") for run in (candidate, baseline)), "no stranger has looked"
    assert client.get(f"/api/v1/evals/{candidate.pk}/against/{candidate.pk}", headers=key("read")).status_code == 409
