"""The list of runs and the page of one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import AuditEntry, User
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.edge.jobs import State
from flywheel.evals.models import EvalRun
from flywheel.evals.pages import run_facts, run_table
from tests.conftest import Build, Cast
from tests.evals.fake import claim, finished, right, submit, wrong
from tests.pages import page_of

SignIn = Callable[[User], Client]


def page(run: EvalRun, name: str = "run") -> str:
    return reverse(f"evals:{name}", args=["acme", run.pk])


def by_seed(request: ChatRequest) -> ChatResponse:
    return right(request) if request.seed % 2 else wrong(request)


def half(request: ChatRequest) -> ChatResponse:
    if request.seed % 3 == 0:
        return ChatResponse(error="<b>too long</b>")
    return right(request) if request.seed % 3 == 1 else wrong(request)


def test_the_list_shows_success_with_its_interval_and_filters_by_address(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(build, monkeypatch)
    other = submit(build, split="train")
    client = sign_in(cast.viewer)
    url = reverse("evals:index", args=["acme"])
    answer = client.get(url)
    assert [row["run"].pk for row in answer.context["runs"]] == [other.pk, run.pk]
    assert "100.0" in page_of(answer)
    assert "New eval" not in page_of(answer)
    for filters, found in (
        ({"state": "queued"}, [other]),
        ({"split": "held_out"}, [run]),
        ({"agent": "assistant", "version": "1"}, [other, run]),
        ({"agent": "nobody"}, []),
        ({"set": run.task_set.name, "state": "succeeded"}, [run]),
        ({"version": "x"}, [other, run]),
    ):
        assert [row["run"] for row in client.get(url, filters).context["runs"]] == found
    assert client.get(url, {"cursor": "nonsense"}).status_code == 302
    assert sign_in(cast.stranger).get(url).status_code == 404


def test_the_list_costs_the_same_for_any_number_of_runs(
    build: Build, cast: Cast, sign_in: SignIn, django_assert_max_num_queries: Any
) -> None:
    for _ in range(12):
        submit(build)
    client = sign_in(cast.viewer)
    with django_assert_max_num_queries(25):
        client.get(reverse("evals:index", args=["acme"]))


def test_a_finished_run_shows_every_metric_each_cell_and_the_cause_of_what_is_unscored(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(build, monkeypatch, half, task_set=build.task_set(held_out=12), samples=3)
    client = sign_in(cast.viewer)
    answer = client.get(page(run))
    text = page_of(answer)
    assert [tile["label"] for tile in answer.context["tiles"]][:4] == ["Success", "pass@3", "pass^3", "Valid output"]
    unscored = run.results.filter(score=None)
    assert 0 < unscored.count() < 36
    assert f'show=unscored#matrix">{unscored.count()}</a>' in text
    for result in run.results.select_related("trajectory"):
        assert reverse("trajectories:detail", args=["acme", result.trajectory.trace_id]) in text  # type: ignore[union-attr]
    assert "<b>too long" not in text
    assert "&lt;b&gt;too long" in page_of(client.get(page(run), {"show": "unscored"}))
    assert "held-out opened 1 time" in text
    assert run.verifier_digest in text
    assert "every 2s" not in text


def test_the_table_filters_and_turns_pages(
    build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch, sign_in: SignIn
) -> None:
    monkeypatch.setattr(run_table, "ROWS", 5)
    run = finished(build, monkeypatch, half, task_set=build.task_set(held_out=12), samples=1)
    client = sign_in(cast.viewer)
    seen: list[int] = []
    address = ""
    for _ in range(3):
        table = client.get(page(run, "matrix") + address).context["matrix"]
        seen += [line.task.number for line in table["lines"]]
        assert table["total"] == 12
        address = table["next"].removesuffix("#matrix")
    assert seen == sorted(seen)
    assert len(seen) == 12
    assert table["previous"]
    failures = client.get(page(run, "matrix"), {"show": "failures"}).context["matrix"]
    assert failures["total"] == run.results.filter(success=False).count()
    assert all(line.cells[0].success is False for line in failures["lines"])
    guards = client.get(page(run, "matrix"), {"bucket": "guards a success"}).context["matrix"]
    assert guards["total"] == 12
    assert client.get(page(run, "matrix"), {"bucket": "wrong_tool"}).context["matrix"]["total"] == 0
    assert client.get(page(run, "matrix"), {"task": "x" * 40}).context["matrix"]["first"] == 1


def test_a_waiting_run_is_polled_and_the_end_loads_the_page_anew(build: Build, cast: Cast, sign_in: SignIn) -> None:
    run = submit(build)
    client = sign_in(cast.builder)
    text = page_of(client.get(page(run)))
    assert 'hx-trigger="every 2s"' in text
    assert "waiting for a worker" in text
    assert "Stop" in text
    lease = claim(run)
    EvalRun.objects.filter(pk=run.pk).update(done=4)
    answer = client.get(page(run, "live"))
    assert answer.status_code == 200
    assert "4 / 16" in page_of(answer)
    assert "Stop" not in page_of(sign_in(cast.viewer).get(page(run, "live")))
    EvalRun.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    answer = client.get(page(run, "live"))
    assert (answer.status_code, answer["HX-Refresh"]) == (286, "true")
    assert lease.fence == 1


def test_a_failed_run_shows_its_reason_and_goes_on_when_asked(build: Build, cast: Cast, sign_in: SignIn) -> None:
    run = submit(build)
    EvalRun.objects.filter(pk=run.pk).update(state=State.FAILED, error="tensor <q> has shape [1]", error_kind="engine")
    client = sign_in(cast.builder)
    text = page_of(client.get(page(run)))
    assert "Tensor &lt;q&gt; has shape [1]" in text
    assert "Resume" in text
    assert sign_in(cast.reviewer).post(page(run, "resume")).status_code == 403
    assert sign_in(cast.stranger).post(page(run, "resume")).status_code == 404
    client.post(page(run, "resume"))
    client.post(page(run, "resume"))
    run.refresh_from_db()
    assert (run.state, run.error) == (State.QUEUED, "")
    assert AuditEntry.objects.filter(action="evals.resume").count() == 1


def test_a_run_is_stopped_once(build: Build, cast: Cast, sign_in: SignIn) -> None:
    run = submit(build)
    client = sign_in(cast.builder)
    assert client.get(page(run, "cancel")).status_code == 405
    assert sign_in(cast.reviewer).post(page(run, "cancel")).status_code == 403
    for _ in range(2):
        client.post(page(run, "cancel"))
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    assert AuditEntry.objects.filter(action="evals.cancel").count() == 1


def test_several_samples_tell_the_best_and_what_can_be_relied_on(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(build, monkeypatch, by_seed, task_set=build.task_set(held_out=4), samples=2)
    tiles = {tile["label"]: tile["estimate"] for tile in run_facts.tiles(run)}
    assert list(tiles)[:3] == ["Success", "pass@2", "pass^2"]
    assert tiles["pass^2"]["mean"] <= tiles["Success"]["mean"] <= tiles["pass@2"]["mean"]
    assert "every one of 2 attempts" in page_of(sign_in(cast.viewer).get(page(run)))
    run.samples = 1
    assert "pass^1" not in {tile["label"] for tile in run_facts.tiles(run)}


def test_a_run_of_another_project_is_not_found(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(build)
    for name in ("run", "live", "matrix"):
        assert sign_in(cast.stranger).get(page(run, name)).status_code == 404
        elsewhere = reverse(f"evals:{name}", args=["elsewhere", run.pk])
        assert sign_in(cast.stranger).get(elsewhere).status_code == 404


def test_the_api_lists_follows_stops_and_reads_results(
    build: Build, cast: Cast, client: Client, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(build, monkeypatch, half, task_set=build.task_set(held_out=12), samples=4)
    waiting = submit(build)
    read, write = key("read", by=cast.viewer), key("build", by=cast.builder)
    url = "/api/v1/evals"
    first = client.get(url, {"limit": 1}, headers=read).json()
    second = client.get(url, {"limit": 1, "cursor": first["next"]}, headers=read).json()
    assert [first["items"][0]["id"], second["items"][0]["id"], second["next"]] == [waiting.pk, run.pk, None]
    assert second["items"][0]["success"]["n"] == run.summary["metrics"]["success"]["n"]
    assert client.get(url, {"cursor": "zzz"}, headers=read).status_code == 400
    assert [row["id"] for row in client.get(url, {"state": "queued"}, headers=read).json()["items"]] == [waiting.pk]
    whole = client.get(f"{url}/{run.pk}", headers=read).json()
    assert whole["summary"]["metrics"]["success"]["unscored"] == run.results.filter(score=None).count()
    assert whole["events"]
    results = client.get(f"{url}/{run.pk}/results", {"limit": 5}, headers=read).json()
    assert len(results["items"]) == 5
    every = (
        results["items"]
        + client.get(f"{url}/{run.pk}/results", {"limit": 100, "cursor": results["next"]}, headers=read).json()["items"]
    )
    assert len({row["trajectory"] for row in every}) == 48
    unscored = [row for row in every if row["score"] is None]
    assert {row["error"] for row in unscored} == {"not answered: <b>too long</b>"}
    assert client.post(f"{url}/{waiting.pk}/cancel", headers=read).status_code == 403
    assert client.post(f"{url}/{waiting.pk}/cancel", headers=write).json()["state"] == "cancelled"
    assert client.post(f"{url}/{waiting.pk}/cancel", headers=write).status_code == 409
    assert client.generic("POST", f"{url}/{waiting.pk}/resume", headers=write).json()["state"] == "queued"
    elsewhere = key("read", by=cast.stranger, project=cast.elsewhere)
    for path in (f"{url}/{run.pk}", f"{url}/{run.pk}/results"):
        assert client.get(path, headers=elsewhere).status_code == 404
    assert client.get(url, headers=elsewhere).json()["items"] == []
    assert client.get(url).status_code == 401


def away(request: ChatRequest) -> ChatResponse:
    return replace(half(request), is_away=request.seed % 3 == 0)


def test_a_finished_run_offers_to_ask_again_what_its_server_was_away_for(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(build, monkeypatch, away, task_set=build.task_set(held_out=12), samples=3)
    silent = run.results.filter(cause="away").count()
    text = page_of(sign_in(cast.builder).get(page(run)))
    assert f"<b>{silent} attempts not answered.</b>" in text
    assert "Retry</button>" in text
    assert "Retry</button>" not in page_of(sign_in(cast.viewer).get(page(run)))
    sign_in(cast.builder).post(page(run, "resume"))
    run.refresh_from_db()
    assert (run.state, run.results.count()) == (State.QUEUED, 36 - silent)
