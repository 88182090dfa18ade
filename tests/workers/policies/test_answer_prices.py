"""What answers cost: by the token where somebody named a price, by the device's time for own weights."""

import time
from collections.abc import Sequence

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice
from flywheel.accounts.project_settings import model_prices
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.evals.models import EvalRun
from tests.conftest import Build, Cast
from workers.policies.answer_prices import DeviceHours, by_the_hour, hour_of, with_price

pytestmark = pytest.mark.django_db


class Slow:
    """Two answers, of which one took three times as long, and one that never was."""

    def chat(self, _: Sequence[ChatRequest]) -> list[ChatResponse]:
        time.sleep(0.01)
        return [ChatResponse("a", latency_ms=10), ChatResponse("b", latency_ms=30), ChatResponse(error="no")]

    def close(self) -> None:
        pass


def test_the_devices_time_is_divided_among_the_answers() -> None:
    a, b, c = DeviceHours(Slow(), 3600.0).chat([])
    assert a.cost_usd is not None
    assert b.cost_usd == pytest.approx(3 * a.cost_usd)
    assert a.cost_usd + (b.cost_usd or 0) >= 0.01, "a dollar a second, and no answer beside the others is charged again"
    assert c.cost_usd is None


def test_without_a_device_hour_the_cost_of_own_weights_is_unknown(cast: Cast) -> None:
    engine = Slow()
    assert by_the_hour(engine, cast.project.pk) is engine
    model_prices.set_hour(project=cast.project, actor=Actor(cast.admin), usd_per_hour=1.0)
    assert isinstance(by_the_hour(engine, cast.project.pk), DeviceHours)


def test_a_hosted_model_has_its_own_price_or_the_projects(cast: Cast) -> None:
    endpoint = {"kind": "openai", "base_url": "http://x/v1", "model": "m"}
    assert with_price(endpoint, cast.project.pk) == endpoint
    ModelPrice.objects.create(project=cast.project, model="m", price_in=1, price_out=2, price_cached=0.5)
    priced = endpoint | {"price_in": 1.0, "price_out": 2.0, "price_cached": 0.5}
    assert with_price(endpoint, cast.project.pk) == priced
    own = endpoint | {"price_in": 7.0, "price_out": 8.0}
    assert with_price(own, cast.project.pk) == own


def test_an_eval_of_own_weights_keeps_the_price_of_the_hour(build: Build) -> None:
    own, hosted = build.version(endpoint={"kind": "transformers"}), build.version(endpoint={"kind": "openai"})
    runs = [EvalRun(project=build.cast.project, version=version) for version in (own, hosted)]
    assert [hour_of(run) for run in runs] == [{}, {}]
    model_prices.set_hour(project=build.cast.project, actor=Actor(build.cast.admin), usd_per_hour=2.0)
    assert [hour_of(run) for run in runs] == [{"usd_per_hour": 2.0}, {}]
    runs[1].engine = "vllm"
    assert hour_of(runs[1]) == {"usd_per_hour": 2.0}
