"""A run whose teacher somebody else serves: its worker asks it, with a real trainer, and what befalls such a run."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice
from flywheel.accounts.project_settings.provider_keys import enter
from flywheel.edge.jobs import State
from flywheel.training.launch import run_budgets
from flywheel.training.models import Point, TrainingRun
from tests.conftest import Build
from tests.workers.hosted_model import KEY, MODEL, HostedModel, better, hosted_model
from tests.workers.jobs.training.test_training_runs import Launch, carry_out, launched, log_of, page, version
from workers.jobs.training import run_broker, training_runs
from workers.judging import hosted_teacher

__all__ = ["launched", "page"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return better(Path(settings.REFERENCE_POLICY), tmp_path_factory.mktemp("teacher"))


@pytest.fixture
def server(weights: Path, build: Build) -> Iterator[HostedModel]:
    with hosted_model(weights) as server:
        server.room = 4096
        yield server


Taught = Callable[..., TrainingRun]


@pytest.fixture
def taught(launched: Launch, build: Build, server: HostedModel) -> Taught:
    """Launches a run on the policy that ships, taught by the server's model."""

    def go(steps: int = 2, **fields: Any) -> TrainingRun:
        who = Actor(build.cast.admin)
        address = server.endpoint["base_url"]
        enter(project=build.cast.project, actor=who, name="BIG_API_KEY", base_url=address, secret=KEY)
        teacher = build.version(endpoint=server.endpoint | {"api_key_env": "BIG_API_KEY"})
        more = {"teacher_from": "endpoint", "num_generations": 4}
        return launched(
            algorithm="distillation", steps=steps, base=version(build), teacher=teacher, settings=more, **fields
        )

    return go


def test_the_worker_asks_it_with_the_projects_key_and_counts_what_it_takes(
    taught: Taught, build: Build, server: HostedModel, page: Callable[[TrainingRun], str]
) -> None:
    ModelPrice.objects.create(project=build.cast.project, model=MODEL, price_in=2, price_out=10)
    run = carry_out(taught(budget={"usd": 10.0}))
    assert run.state == State.SUCCEEDED, run.error
    assert run.points.get(kind=Point.Kind.STEP, step=2).values["teacher_kl"] > 0
    assert server.keys == {f"Bearer {KEY}"}
    report = run.outside_calls["teacher"]
    tokens = sum(map(len, server.asked))
    count = len(server.asked)
    assert (report["requests"], report["tokens_in"], report["tokens_out"]) == (count, tokens, count)
    assert report["cost_usd"] == pytest.approx((tokens * 2 + count * 10) / 1e6)
    assert run.outside_calls["questions"]["read"] == count
    assert "read the attempts at its endpoint" in page(run)
    for path in run.directory.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert run.outside_calls["expected"]["teacher"]["questions"] == 18


def test_a_budget_that_is_spent_stops_the_run_and_more_lets_it_go_on(
    taught: Taught, build: Build, server: HostedModel, page: Callable[[TrainingRun], str]
) -> None:
    ModelPrice.objects.create(project=build.cast.project, model=MODEL, price_in=2000, price_out=10)
    run = carry_out(taught(steps=40, budget={"usd": 5.0}))
    assert (run.state, run.error_kind) == (State.CANCELLED, run_budgets.SPENT), run.error
    paid = run.outside_calls["teacher"]["cost_usd"]
    assert paid == pytest.approx((sum(map(len, server.asked)) * 2000 + len(server.asked) * 10) / 1e6)
    assert re.search(r"The budget of \$5 is spent: \$[0-9.]+\.", page(run))
    done = run.done
    assert done < 40
    run_budgets.resume(run, Actor(build.cast.trainer), {"minutes": 30})
    carry_out(run)
    assert run.state == State.SUCCEEDED, run.error
    assert run.outside_calls["teacher"]["requests"] == len(server.asked), "of both starts"


def test_a_server_that_cannot_teach_fails_the_run_before_it_learns_and_one_that_can_lets_it_go_on(
    taught: Taught, build: Build, server: HostedModel, page: Callable[[TrainingRun], str]
) -> None:
    server.spoil = lambda _: 401
    run = carry_out(taught())
    assert (run.state, run.error_kind, run.done) == (State.FAILED, "teacher", 0)
    assert f"the teacher {MODEL} cannot be asked: the server answered 401" in run.error
    assert KEY not in run.error
    assert "Once the teacher" in page(run)
    server.spoil = lambda answer: answer
    run_budgets.resume(run, Actor(build.cast.trainer))
    carry_out(run)
    assert run.state == State.SUCCEEDED, run.error


def test_a_server_that_is_full_is_waited_for_and_the_log_says_so(
    taught: Taught, server: HostedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = iter([503, 503])
    server.spoil = lambda answer: next(full, answer)
    run = carry_out(taught())
    assert run.state == State.SUCCEEDED, run.error
    assert f"waiting for the teacher {MODEL}, at most 300 s: the server answered 503" in log_of(run)
    assert log_of(run).count("waiting for the teacher") == 1


def test_a_key_that_is_not_there_fails_the_run_before_its_trainer_starts(taught: Taught, build: Build) -> None:
    run = taught()
    build.cast.project.provider_keys.all().delete()
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "teacher")
    assert "BIG_API_KEY" in run.error
    assert not (run.directory / "trainer.pid").exists()


def test_a_directory_names_the_version_and_no_address(taught: Taught, server: HostedModel) -> None:
    run = taught()
    for _ in range(2):
        training_runs.prepare(run, run.directory)
    content = (run.directory / "spec.json").read_text()
    assert run.teacher is not None
    assert f'"hosted":"{run.teacher.digest}"' in content
    assert str(server.port) not in content
    assert hosted_teacher.HIDDEN not in content
    assert run_broker.judges_of(run) == {}
