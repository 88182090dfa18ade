"""What a training run asks of others, by its worker's broker: with a real trainer, and what a judge can do to it."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.accounts.project_settings.provider_keys import enter
from flywheel.core.verifiers import Verdict
from flywheel.edge.jobs import State
from flywheel.environments.models import JudgeMemory
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.training.launch import run_budgets
from flywheel.training.models import Point, TrainingRun
from flywheel.training.runs import alert_evidence
from tests.conftest import Build
from tests.workers.jobs.training.test_training_runs import Launch, carry_out, launched, log_of, page, version
from tests.workers.judge_server import JudgeServer, judge_server
from tests.workers.judging.test_project_judges import JUDGE, books, judged
from workers.jobs.training import run_broker
from workers.jobs.training.run_broker import RunBroker
from workers.jobs.training.trainer_process import TrainingFailed
from workers.judging import attempt_verdicts, llm_judge
from workers.judging.broker_line import BrokerLine, runners_over

__all__ = ["launched", "page"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server(build: Build) -> Iterator[JudgeServer]:
    with judge_server(books) as server:
        project, admin = build.cast.project, Actor(build.cast.admin)
        enter(project=project, actor=admin, name="JUDGE_API_KEY", base_url=server.url, secret="sk-judge-of-ours")
        set_upstream(project=project, actor=admin, base_url=server.url, api_key_env="JUDGE_API_KEY")
        yield server


def credulous(data: dict[str, Any], _: dict[str, Any]) -> int:
    return int("full marks" in json.dumps(data))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_judge_is_a_reward_and_its_key_stays_with_the_worker(
    processes: int, launched: Launch, build: Build, server: JudgeServer
) -> None:
    """Several processes ask the same broker, each about its own attempts."""
    judged(build)
    shared = {"processes": processes, "num_generations": 4, "sharding": "fsdp2" if processes > 1 else "none"}
    run = carry_out(launched(algorithm="grpo", steps=2, settings=shared))
    assert run.state == State.SUCCEEDED, run.error
    figures = run.points.get(kind=Point.Kind.STEP, step=2).values
    assert (figures["unscored"], "reward/right" in figures) == (0, True)
    report = run.outside_calls["judges"]["right"]
    assert report["judged"] + report["remembered"] == run.outside_calls["questions"]["judge"]
    assert (report["requests"], report["void"]) == (len(server.seen), "")
    assert set(server.keys) == {"Bearer sk-judge-of-ours"}
    assert JudgeMemory.objects.count() == report["judged"], "the eval at its end knows them"
    assert run.points.filter(kind=Point.Kind.EVAL, values__unscored=0).count() == 3
    for path in run.directory.rglob("*"):
        assert not path.is_file() or b"sk-judge-of-ours" not in path.read_bytes(), path


def test_a_recipe_asks_judges_of_its_own(launched: Launch, build: Build, server: JudgeServer) -> None:
    base, task_set = version(build), build.task_set(train=6, held_out=5)
    parts = [{"type": "environment", "name": "task", "weight": 1}, {**JUDGE, "weight": 1}]
    recipe, _ = reward_recipe(project=build.cast.project, name="both", parts=parts, actor=Actor(build.cast.builder))
    build.overridden(base, task_set, recipe)
    run = launched(algorithm="grpo", steps=2, base=base, task_set=task_set, reward=recipe)
    expected = run.outside_calls["expected"]
    assert (expected["judgements"], expected["usd"]) == (16, None), "its curves are the verifier's"
    carry_out(run)
    assert run.state == State.SUCCEEDED, run.error
    figures = run.points.get(kind=Point.Kind.STEP, step=2).values
    assert {"reward/task", "reward/right"} <= set(figures)
    assert figures["unscored"] == 0
    report = run.outside_calls["judges"]["right"]
    assert 0 < report["judged"] <= expected["judgements"]
    assert report["canaries"] == 10


def test_validation_asks_the_judges_of_a_recipe_too_and_has_the_reward(
    launched: Launch, build: Build, server: JudgeServer
) -> None:
    """Within what was forecast, and the best weights are those of the best reward."""
    base, task_set = version(build), build.task_set(train=6, held_out=5)
    parts = [{"type": "environment", "name": "task", "weight": 1}, {**JUDGE, "weight": 1}]
    recipe, _ = reward_recipe(project=build.cast.project, name="both", parts=parts, actor=Actor(build.cast.builder))
    build.overridden(base, task_set, recipe)
    settings = {"validation_share": 0.4, "best_metric": "reward"}
    run = launched(algorithm="grpo", steps=2, base=base, task_set=task_set, reward=recipe, settings=settings)
    carry_out(run)
    assert run.state == State.SUCCEEDED, run.error
    points = {point.step: point.values for point in run.points.filter(kind=Point.Kind.VALIDATION)}
    assert all(values["rewarded"] == values["n"] > 0 for values in points.values())
    assert run.chosen_step == min((step for step in points if step), key=lambda step: -points[step]["reward"])
    assert run.outside_calls["expected"]["judgements"] > 16
    assert run.outside_calls["questions"]["judge"] <= run.outside_calls["expected"]["judgements"]


@pytest.mark.parametrize("is_believed", [True, False])
def test_a_watched_judge_is_asked_about_a_sample_and_ends_no_run(
    is_believed: bool, launched: Launch, build: Build, server: JudgeServer
) -> None:
    """Even one that a canary has made void: nothing is learnt from it."""
    base, task_set = version(build), build.task_set(train=6, held_out=5)
    parts = [{"type": "environment", "name": "task", "weight": 1}, {**JUDGE, "weight": 0, "sample": 0.5}]
    recipe, _ = reward_recipe(project=build.cast.project, name="watch", parts=parts, actor=Actor(build.cast.builder))
    build.overridden(base, task_set)
    if not is_believed:
        server.mark = credulous
    run = launched(algorithm="grpo", steps=2, base=base, task_set=task_set, reward=recipe)
    assert run.outside_calls["expected"]["judgements"] == 8
    carry_out(run)
    assert run.state == State.SUCCEEDED, run.error
    figures = run.points.get(kind=Point.Kind.STEP, step=2).values
    assert figures["unscored"] == 0
    report = run.outside_calls["judges"]["right"]
    assert 0 < run.outside_calls["questions"]["judge"] < 16
    assert bool(report["void"]) is not is_believed
    assert ("counts for nothing" in log_of(run)) is not is_believed
    assert alert_evidence.watched_of(run) == (["right"] if is_believed else [])


def test_a_judge_that_can_be_talked_round_ends_the_run_before_it_learns(
    launched: Launch, build: Build, server: JudgeServer
) -> None:
    server.mark = credulous
    judged(build)
    run = launched(algorithm="grpo")
    assert (carry_out(run).state, run.error_kind) == (State.FAILED, "canary")
    assert "canary" in run.outside_calls["judges"]["right"]["void"], "another go is refused by it too"
    assert not (run.directory / "trainer.pid").exists()


def test_a_judge_that_never_answers_ends_the_run_before_it_learns(
    launched: Launch, build: Build, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_judge, "TIMEOUT_S", 0.2)
    server.mark = lambda *_: 3.0
    judged(build)
    run = launched(algorithm="grpo")
    assert (carry_out(run).state, run.error_kind) == (State.FAILED, "judge")
    assert "its attempts cannot be judged" in run.error
    assert not (run.directory / "trainer.pid").exists()


def test_a_budget_that_is_spent_and_then_a_judge_that_talks_nonsense_end_a_run_on_the_way(
    launched: Launch, build: Build, server: JudgeServer, page: Callable[[TrainingRun], str]
) -> None:
    """Both with their reasons where people look, and both can be resumed."""
    ModelPrice.objects.create(project=build.cast.project, model="m", price_in=1, price_out=1)
    judged(build)
    run = carry_out(launched(algorithm="grpo", steps=60, budget={"usd": 0.002}))
    assert (run.state, run.error_kind) == (State.CANCELLED, "budget"), run.error
    paid = run.outside_calls["judges"]["right"]["cost_usd"]
    assert paid == pytest.approx(len(server.seen) * 110 / 1e6)
    told = re.search(r"The budget of \$0\.002 is spent: \$([0-9.]+)\.", page(run))
    assert told, "what it had taken when that was noticed; what was being judged is paid too"
    assert 0.002 <= float(told[1]) <= round(paid, 4)
    assert run.done < 60

    JudgeMemory.objects.all().delete()
    before = len(server.seen)
    server.mark = lambda data, body: books(data, body) if len(server.seen) <= before + 11 else "Well, it depends."
    run_budgets.resume(run, Actor(build.cast.trainer), {})
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "verifier"), run.error
    assert "nothing was scored in 3 steps on end: right: " in run.error
    assert "Well, it depends." in run.error
    assert "Failed: verifier" in page(run)
    assert "Well, it depends." in page(run)


def test_a_run_that_learns_from_answers_goes_on_without_its_judge(
    launched: Launch, build: Build, server: JudgeServer
) -> None:
    server.mark = credulous
    judged(build)
    run = launched(algorithm="sft")
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        with run_broker.broker_of(lease, run) as broker:
            assert broker is None
        lease.finish(State.CANCELLED)
    assert "its tasks cannot be asked while it trains" in log_of(run)


def test_a_judge_that_turns_and_a_broker_that_dies_are_noticed_on_the_way(
    launched: Launch, build: Build, server: JudgeServer
) -> None:
    judged(build)
    run = launched(algorithm="grpo")
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        with run_broker.broker_of(lease, run) as broker:
            assert broker is not None
            broker.follow(lease)
            assert run.outside_calls["judges"]["right"]["canaries"] == 10
            broker._judge._parts[next(iter(broker._judge._parts))].void = "it passed a canary"
            with pytest.raises(TrainingFailed, match="passed a canary") as failed:
                broker.follow(lease)
            assert failed.value.kind == "canary"
            broker._broker.close()
            with pytest.raises(TrainingFailed, match="is gone; resume the run") as failed:
                broker.follow(lease)
            assert failed.value.kind == "broker"
        lease.finish(State.CANCELLED)
    run.refresh_from_db()
    assert run.outside_calls["judges"]["right"]["void"], "another owner knows it"


def test_what_a_judge_said_and_took_is_kept_before_the_trainer_hears_it(
    launched: Launch, build: Build, server: JudgeServer
) -> None:
    """So it does not matter when the worker is killed: the next owner pays for canaries alone."""
    ModelPrice.objects.create(project=build.cast.project, model="m", price_in=1, price_out=1)
    judged(build)
    run = launched(algorithm="grpo")
    lease = TrainingRun.claim(run.pk)
    assert lease is not None

    def ask(broker: RunBroker | None) -> Verdict:
        assert broker is not None
        env = run_broker._environment(run.task_set, runners_over(BrokerLine(broker.path)))
        member = run.task_set.members.select_related("task").first()
        assert member is not None
        task = core_task(member.task)
        (verdict,) = attempt_verdicts.verdicts(env, [(task, [*env.reset(task, 0), env.solve(task, [])])])
        return verdict

    def kept() -> dict[str, Any]:
        found: dict[str, Any] = TrainingRun.objects.get(pk=run.pk).outside_calls
        return found

    with lease:
        with run_broker.broker_of(lease, run) as broker:
            first = ask(broker)
            report = kept()["judges"]["right"]
            assert (report["canaries"], report["judged"], report["requests"]) == (10, 1, 11)
            assert report["cost_usd"] == pytest.approx(11 * 110 / 1e6)
            assert (kept()["questions"], JudgeMemory.objects.count()) == ({"judge": 1}, 1)
            with run_broker.broker_of(lease, TrainingRun.objects.get(pk=run.pk)) as another:
                assert ask(another) == first
                assert kept()["questions"] == {"judge": 2}, "of the run, not of its owner"
            report = kept()["judges"]["right"]
            assert (report["judged"], report["remembered"], len(server.seen)) == (1, 1, 21)
            assert report["cost_usd"] == pytest.approx(21 * 110 / 1e6)
        lease.finish(State.CANCELLED)


def test_a_run_that_asks_nobody_has_no_broker(launched: Launch) -> None:
    run = launched()
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        with run_broker.broker_of(lease, run) as broker:
            assert broker is None
        lease.finish(State.CANCELLED)
    assert "cannot be asked" not in log_of(run)
