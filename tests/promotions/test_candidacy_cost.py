"""The gate's cost guard judges tuned weights: a device-hour priced in Settings, two real evals, one comparison."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.urls import reverse
from safetensors.numpy import load_file, save_file

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun
from flywheel.promotions.candidacy import propose
from tests.conftest import Build, Cast
from tests.evals.fake import submit
from workers import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def arms(build: Build, tmp_path: Path) -> tuple[Version, Version]:
    """The policy that ships, and the same tuned a little."""
    source, agent = Path(settings.REFERENCE_POLICY), build.agent()
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(source / "model.safetensors")
    save_file({name: weight * 1.001 for name, weight in weights.items()}, tmp_path / "model.safetensors")
    stored = [artifacts.store(place, "model") for place in (source, tmp_path)]
    base, tuned = (build.version(agent, weights=each, endpoint={"kind": "transformers"}) for each in stored)
    return base, tuned


def price(cast: Cast, sign_in: Any, usd: str) -> None:
    answer = sign_in(cast.admin).post(
        reverse("settings:set_device_hour", args=["acme"]), {"usd_per_hour": usd, "source": "the bill"}
    )
    assert answer.status_code == 302


def evaluated(build: Build, task_set: TaskSet, version: Version) -> EvalRun:
    run = submit(build, task_set, version=version, samples=2)
    lease = EvalRun.claim(run.pk)
    assert lease is not None
    with lease:
        tasks.handler(lease.job.label)(lease)
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED, run.error
    return run


def cost_check(build: Build, before: EvalRun, after: EvalRun) -> dict[str, Any]:
    made = propose(version_eval=after, baseline_eval=before, actor=Actor(build.cast.trainer))
    (check,) = [each for each in made.report["decision"]["checks"] if each["name"] == "cost"]
    return dict(check)


def test_both_arms_cost_what_the_device_had_for_them(
    build: Build, cast: Cast, sign_in: Any, arms: tuple[Version, Version]
) -> None:
    price(cast, sign_in, "3600")  # a dollar a second
    task_set = build.task_set(train=2, held_out=40)  # two batches: the answers of one cost alike
    before, after = (evaluated(build, task_set, version) for version in arms)
    for run in (before, after):
        assert run.summary["usd_per_hour"] == 3600
        costs: list[Any] = list(run.results.values_list("cost_usd", "latency_ms"))
        assert len(costs) == 80
        assert all(cost and latency and cost < 60 for cost, latency in costs)
        kept: list[Any] = list(run.results.values_list("trajectory__cost_usd", flat=True))
        assert sorted(kept) == pytest.approx(sorted(cost for cost, _ in costs))
        told = run.summary["metrics"]["cost_usd"]
        assert told["low"] <= told["mean"] <= told["high"]
        assert told["mean"] == pytest.approx(sum(cost for cost, _ in costs) / 80)
    check = cost_check(build, before, after)
    assert check["outcome"], check["detail"]
    assert isinstance(check["value"], float)
    assert isinstance(check["bound"], float)
    is_worse = check["outcome"] == "worse"  # by what is told of the ratio: more than it, or less
    assert (check["bound"] <= check["value"]) is is_worse
    ratio = after.summary["metrics"]["cost_usd"]["mean"] / before.summary["metrics"]["cost_usd"]["mean"]
    assert check["value"] == pytest.approx(ratio - 1, abs=1e-6)


def test_arms_at_other_prices_of_the_hour_are_not_compared(
    build: Build, cast: Cast, sign_in: Any, arms: tuple[Version, Version]
) -> None:
    task_set = build.task_set(train=2, held_out=4)
    price(cast, sign_in, "2")
    before = evaluated(build, task_set, arms[0])
    price(cast, sign_in, "4")
    check = cost_check(build, before, evaluated(build, task_set, arms[1]))
    assert (check["passed"], "$2 and $4" in check["detail"]) == (None, True)
