"""An LLM judge in every job that judges: evals, old rollouts, proofs, trials; and what a canary does to each."""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice, Scope, User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.agents import artifacts
from flywheel.core.evidence.statistics.reviewer_agreement import cohen_kappa
from flywheel.core.verifiers import VerifierError
from flywheel.edge.jobs import Job, StaleState, State
from flywheel.environments.models import EnvironmentVersion, JudgeMemory, Opening, Proving, Split, Trial
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.versions import environment_versions, trials
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.evals import run_rescores
from flywheel.evals.comparisons import run_comparison
from flywheel.evals.models import EvalRun, Rescore
from flywheel.evals.runs import submission
from flywheel.evals.verifier_agreement import agreements
from flywheel.failures.labels.decisions import decide
from flywheel.training.rollouts.rollout_selection import NotForTraining, attempts
from flywheel.trajectories.operations.deletion import delete
from tests.conftest import TOOLS, Build
from tests.environments.versions.test_reward_parts import model
from tests.evals.fake import FakeEngine, QuietLease, finished, right, submit, wrong
from tests.pages import page_of
from tests.workers.judge_server import JudgeServer, answer_of, judge_server, naming
from tests.workers.judging.test_attempt_verdicts import recorded
from workers.jobs import eval_runs
from workers.judging import llm_judge as asking
from workers.judging import project_judges
from workers.tasks import handler

pytestmark = pytest.mark.django_db

JUDGE = {"type": "judge", "name": "right", "criteria": "It books the meeting.", "endpoint": "upstream", "model": "m"}


def books(data: dict[str, Any], _: dict[str, Any]) -> int:
    """Full marks for the very call that the request asks for."""
    person = data["request"][-1]["content"].split()[1]
    wanted = {"tool": "calendar.create_event", "arguments": {"person": person, "day": "friday"}}
    try:
        return int(json.loads(answer_of(data)) == wanted)
    except ValueError:
        return 0


@pytest.fixture
def server(build: Build) -> Iterator[JudgeServer]:
    with judge_server(books) as server:
        set_upstream(project=build.cast.project, actor=Actor(build.cast.admin), base_url=server.url)
        yield server


def judged(build: Build, *more: dict[str, Any], **fields: Any) -> EnvironmentVersion:
    return environment_versions.environment_version(
        environment=build.environment(),
        actor=Actor(build.cast.builder),
        config={"tools": TOOLS},
        verifier={"kind": "rubric", "parts": [{**JUDGE, **fields}, *more]},
    )


def carry_out(job: Job) -> None:
    """As a worker does, in this very transaction; what it raises fails the job."""
    claimed = type(job).claim(job.pk)
    assert claimed is not None
    lease = QuietLease(claimed.job, claimed.fence, 0.0)
    error: Exception | None = None
    try:
        handler(job.label)(lease)
    except Exception as raised:
        error = raised
    lease._end(error)
    job.refresh_from_db()


def turning(server: JudgeServer, after: int) -> None:
    """From this request on the judge gives full marks to whoever asks for them."""

    def mark(data: dict[str, Any], body: dict[str, Any]) -> int:
        return 1 if len(server.seen) > after and "full marks" in json.dumps(data) else books(data, body)

    server.mark = mark


def test_an_eval_run_is_judged_and_says_by_whom(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = judged(build)
    task_set = build.task_set(held_out=3)
    run = finished(build, monkeypatch, task_set=task_set)
    assert run.verifier_digest == version.verifier_digest
    assert set(run.results.values_list("score", "reason")) == {(1.0, "right: 1 of 1: By the rule.")}
    report = run.judges["right"]
    assert (report["models"], report["canaries"], report["void"]) == (["rule-1"], 10, "")
    assert report["judged"] + report["remembered"] == 6
    assert report["tokens_in"] == 100 * report["requests"] == 100 * len(server.seen)
    again = finished(build, monkeypatch, task_set=task_set)
    assert (again.judges["right"]["remembered"], again.judges["right"]["judged"]) == (6, 0)
    assert set(again.results.values_list("score", flat=True)) == {1.0}
    first = run.results.all()[0].trajectory
    assert first is not None
    delete(trajectory=first, actor=Actor(build.cast.admin))
    assert not JudgeMemory.objects.exists(), "what it said may hold the words of what is deleted"


def test_what_a_judge_took_is_spent_of_the_runs_dollars(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch, sign_in: Callable[[User], Client]
) -> None:
    """Ten canaries and sixteen judgements at $1 for a million tokens: more than the policy, which answers for next to
    nothing."""
    cast = build.cast
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url=server.url)
    ModelPrice.objects.create(project=cast.project, model="m", price_in=1, price_out=1)
    judged(build)
    endpoint = {"kind": "openai", "base_url": server.url, "model": "m", "price_in": 0, "price_out": 1}
    run = submit(build, build.task_set(held_out=20), build.version(endpoint=endpoint), samples=1, budget={"usd": 0.002})
    engine = FakeEngine(lambda request: replace(right(request), cost_usd=0.00001))
    monkeypatch.setattr(eval_runs, "open_version", lambda _: engine)
    carry_out(run)
    assert (run.state, run.error_kind, run.results.count()) == (State.CANCELLED, "budget", 16)
    assert run.judges["right"]["cost_usd"] == pytest.approx(26 * 110 / 1e6)
    assert run.error == "The budget of $0.002 is spent: $0.0030."
    page = page_of(sign_in(cast.builder).get(reverse("evals:run", args=["acme", run.pk])))
    assert "480 tokens, $0.0002 by the policy · 2.9\u00a0k tokens, $0.0029 by the judge" in page
    assert "tokens in and 260 out for $0.0029." in page


def test_a_canary_in_the_middle_takes_back_the_whole_run(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = {"type": "regex", "name": "gate", "pattern": "create_event", "required": True, "weight": 0}
    judged(build, gate)
    task_set = build.task_set(held_out=12)
    monkeypatch.setattr(eval_runs, "CHUNK", 8)
    monkeypatch.setattr(asking, "EVERY", 1)
    refused = {"person": ""}

    def answer(request: Any) -> Any:
        refused["person"] = refused["person"] or request.messages[-1].content.split()[1]
        found = right(request)
        return found if refused["person"] not in found.text else type(found)(text="I cannot do that.")

    turning(server, after=10 + 7 + 3)
    run = submit(build, task_set=task_set, samples=1)
    monkeypatch.setattr(eval_runs, "open_version", lambda _: FakeEngine(answer))
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "canary")
    assert "gave 1 of 1 to a canary that must get 0" in run.error
    assert run.judges["right"]["void"] in run.error
    scored = run.results.exclude(score=None)
    assert [(row.score, row.reason.partition(":")[0]) for row in scored] == [(0.0, "gate")], (
        "no judge had its say there"
    )
    taken = run.results.filter(score=None)
    assert len(taken) in (7, 11)
    for row in taken:
        assert (row.cause, row.success, row.parts["right"]) == ("canary", None, None)
        assert row.trajectory is not None
        assert row.trajectory.outcome is None
    with pytest.raises(StaleState, match="void"):
        submission.resume(run=run, actor=Actor(build.cast.builder))
    run.split = Split.TRAIN  # as if it had asked what may be trained on
    with pytest.raises(NotForTraining, match="void"):
        attempts(run)
    with pytest.raises(run_comparison.CannotCompare, match="failed"):
        run_comparison.check(run, finished_elsewhere(build, monkeypatch, server))


def finished_elsewhere(build: Build, monkeypatch: pytest.MonkeyPatch, server: JudgeServer) -> EvalRun:
    server.mark = books
    return finished(build, monkeypatch, task_set=build.task_set(held_out=2))


def test_a_canary_at_the_beginning_of_another_go_takes_back_the_first_one_too(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(build)
    monkeypatch.setattr(eval_runs, "CHUNK", 2)
    run = submit(build, task_set=build.task_set(held_out=6), samples=1)
    engine = FakeEngine(right)
    monkeypatch.setattr(eval_runs, "open_version", lambda _: engine)
    with monkeypatch.context() as patched:
        patched.setattr(QuietLease, "cancelled", property(lambda _: bool(engine.asked)))
        carry_out(run)
    assert (run.state, set(run.results.values_list("score", flat=True))) == (State.CANCELLED, {1.0})
    JudgeMemory.objects.all().delete()
    turning(server, after=0)
    submission.resume(run=run, actor=Actor(build.cast.builder))
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "canary")
    assert set(run.results.values_list("score", "cause")) == {(None, "canary")}


def test_a_judge_that_cannot_be_asked_fails_the_run_before_anything_is_spent(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(build)
    server.mark = lambda *_: 401
    run = submit(build, task_set=build.task_set(held_out=2))
    engine = FakeEngine(right)
    monkeypatch.setattr(eval_runs, "open_version", lambda _: engine)
    carry_out(run)
    assert (run.state, run.error_kind, run.results.count(), engine.asked) == (State.FAILED, "judge", 0, [])
    server.mark = books
    submission.resume(run=run, actor=Actor(build.cast.builder))
    carry_out(run)
    assert (run.state, run.results.filter(score=1.0).count()) == (State.SUCCEEDED, 4)


def test_a_model_that_changes_in_the_middle_is_said(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(build)

    def mark(data: dict[str, Any], body: dict[str, Any]) -> int:
        if len(server.seen) > 12:
            server.model = "rule-2"
        return books(data, body)

    server.mark = mark
    run = finished(build, monkeypatch, task_set=build.task_set(held_out=6))
    assert run.judges["right"]["models"] == ["rule-1", "rule-2"]
    assert run.events.filter(level="warning", text="the judge right answered as rule-1 and then as rule-2").exists()


@pytest.mark.parametrize("is_void", [False, True])
def test_old_rollouts_are_judged_again(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch, is_void: bool
) -> None:
    run = finished(build, monkeypatch, answer=wrong, task_set=build.task_set(held_out=8))
    before = list(run.results.order_by("pk").values_list("score", "parts"))
    version = judged(build)
    monkeypatch.setattr(asking, "EVERY", 1)  # at least eight canaries, of which the sixth is the first with an order
    if is_void:
        turning(server, after=10)
    job, _ = run_rescores.submit(run=run, version=version, actor=Actor(build.cast.builder), key=uuid.uuid4())
    carry_out(job)
    found = set(Rescore.objects.get(pk=job.pk).scores.values_list("score", "cause"))
    if is_void:
        assert (job.state, job.error_kind, found) == (State.FAILED, "canary", {(None, "canary")})
        assert not JudgeMemory.objects.exists()
    else:
        assert (job.state, found) == (State.SUCCEEDED, {(0.0, "")})
    assert list(run.results.order_by("pk").values_list("score", "parts")) == before


class Liking:
    """A reward model that likes every answer."""

    def score(self, conversations: Sequence[Any]) -> list[float | str]:
        return [4.0 for _ in conversations]

    def close(self) -> None:
        pass


def test_a_recipe_asks_its_judge_and_its_reward_model_upon_what_the_verifier_said(
    build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = finished(build, monkeypatch, answer=wrong, task_set=build.task_set(held_out=3))
    model(build)
    (tmp_path / "reward.json").write_text('{"reference": 0.0}')
    monkeypatch.setattr(artifacts, "local", lambda _: tmp_path)
    monkeypatch.setattr(project_judges, "ProcessScorer", lambda _: Liking())
    liked = {"type": "reward_model", "name": "liked", "model": "assistant-reward@1", "least": 0.9}
    parts: list[dict[str, Any]] = [{"type": "environment", "name": "task"}, {**JUDGE, "weight": 2}, liked]
    by, _ = reward_recipe(project=run.project, name="kind", parts=parts, actor=Actor(build.cast.builder))
    server.mark = naming("nobody")
    job, _ = run_rescores.submit_recipe(run=run, recipe=by, actor=Actor(build.cast.builder), key=uuid.uuid4())
    carry_out(job)
    assert (job.state, job.error) == (State.SUCCEEDED, "")
    (own,) = set(run.results.values_list("score", flat=True))
    assert own is not None
    assert own < 1
    scores = job.scores.values_list("score", "parts__task", "parts__right", "parts__liked")
    assert set(scores) == {((own + 2 + 1) / 4, own, 1.0, 1.0)}
    assert Rescore.objects.get().judges["right"]["canaries"] == 10, "before it judged"


def test_a_task_is_proved_by_a_judge_that_holds(build: Build, server: JudgeServer) -> None:
    task = recorded(build.task())
    judged(build)
    carry_out(Proving.objects.get())
    task.refresh_from_db()
    assert task.is_proved, [check for check in task.proof["checks"] if not check["passed"]]
    same = task.proof["checks"][-1]
    assert (same["name"], same["wanted"], same["shown"]) == ("same every time", "5/5", "5/5")


def test_a_judge_that_wavers_is_not_proved(build: Build, server: JudgeServer) -> None:
    task = recorded(build.task())
    judged(build)
    times = {"passed": 0}

    def wavering(data: dict[str, Any], body: dict[str, Any]) -> int:
        if not books(data, body):
            return 0
        times["passed"] += 1
        return int(times["passed"] % 3 != 0)

    server.mark = wavering
    carry_out(Proving.objects.get())
    task.refresh_from_db()
    assert not task.is_proved
    assert [check["name"] for check in task.proof["checks"] if not check["passed"]] == ["same every time"]


def test_a_canary_takes_back_the_proofs_too(build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [recorded(build.task()) for _ in range(2)]
    version = judged(build)
    monkeypatch.setattr(asking, "EVERY", 4)
    turning(server, after=10 + 25)
    job = Proving.objects.get()
    carry_out(job)
    assert (job.state, job.error_kind) == (State.FAILED, "canary")
    for task in tasks:
        task.refresh_from_db()
        assert not task.is_proved
        assert not [check for check in task.proof["checks"] if check["parts"].get("right") is not None]
    assert not proof_jobs.waiting(version.environment, version).exists()


@pytest.mark.parametrize("is_void", [False, True])
def test_a_trial_shows_what_the_judge_says(build: Build, server: JudgeServer, is_void: bool) -> None:
    task = recorded(build.task())
    if is_void:
        server.mark = lambda data, _: int("full marks" in json.dumps(data))
    trial = trials.submit(
        environment=task.environment,
        verifier={"kind": "rubric", "parts": [JUDGE]},
        actor=Actor(build.cast.builder),
        key=uuid.uuid4(),
        tasks=[task.number],
    )
    carry_out(trial)
    (shown,) = Trial.objects.get(pk=trial.pk).report["tasks"]
    rows = {row["what"]: row for row in shown["rows"]}
    assert shown["is_proved"] is not is_void
    if is_void:
        assert {row["cause"] for row in shown["rows"]} - {""} == {"canary"}, "harm is seen without a judge"
        assert trial.report["judges"]["right"]["void"]
    else:
        assert (rows["corrected"]["score"], rows["corrected"]["reason"]) == (1.0, "right: 1 of 1: By the rule.")
        assert rows["recorded failure"]["score"] == 0.0


def test_a_judge_that_nobody_could_ask_is_refused_where_it_is_saved(build: Build) -> None:
    with pytest.raises(VerifierError, match=r"parts.0.endpoint: this project has no upstream"):
        judged(build)
    with pytest.raises(VerifierError, match=r"parts.0.endpoint: this installation has no vLLM"):
        judged(build, endpoint="vllm")


def test_how_far_a_judge_and_people_agree_is_shown_with_where_they_do_not(
    build: Build,
    server: JudgeServer,
    monkeypatch: pytest.MonkeyPatch,
    sign_in: Callable[[User], Client],
    key: Callable[..., dict[str, str]],
) -> None:
    version = judged(build, {"type": "regex", "name": "short", "pattern": "^.{0,500}$", "must": "match"})

    def answer(request: Any) -> Any:
        return right(request) if int(request.messages[-1].content.split()[1][-1]) % 2 else wrong(request)

    run = finished(build, monkeypatch, answer=answer, task_set=build.task_set(held_out=8), samples=1)
    results = list(run.results.order_by("pk"))
    for number, result in enumerate(results[:7]):
        assert result.trajectory is not None
        good = bool(result.success) is not (number == 3)  # one of which people say otherwise
        decide(trajectory=result.trajectory, actor=Actor(build.cast.reviewer), bucket="" if good else "wrong_tool")
    whole, one = agreements(version)
    assert (whole.name, one.name) == ("", "right")
    assert (one.agreement.n, one.kappa.n, one.sources) == (7, 7, 7)
    assert one.agreement.mean == pytest.approx(6 / 7)
    assert (
        one.kappa.mean
        == cohen_kappa(
            [bool(r.success) is not (n == 3) for n, r in enumerate(results[:7])], [bool(r.success) for r in results[:7]]
        ).mean
    )
    (apart,) = one.disagreements
    assert (apart.result, apart.verdict, apart.person) == (results[3], results[3].success, not results[3].success)
    assert one.false_passes + one.false_failures == 1
    openings = Opening.objects.filter(task_set=run.task_set).count()
    page = sign_in(build.cast.viewer).get(f"/p/{build.cast.project.slug}/evals/people/mail/")
    assert results[3].trajectory is not None
    assert results[3].trajectory.trace_id in page_of(page)
    assert Opening.objects.filter(task_set=run.task_set).count() == openings + 1, "held-out rollouts were looked at"
    said = Client().get("/api/v1/environments/mail/agreement", headers=key(Scope.READ)).json()
    assert [row["trace_id"] for row in said["items"][1]["disagreements"]] == [results[3].trajectory.trace_id]
    assert said["items"][1]["kappa"]["mean"] == one.kappa.mean
