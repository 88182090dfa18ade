"""A call that came without its cost has one by its tokens, marked as derived; what a sender states is his."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.models import ModelPrice, User
from flywheel.core import traces
from flywheel.trajectories.models import Source, Step, Trajectory
from flywheel.trajectories.operations.rereads import reread
from flywheel.trajectories.store.aggregates import running_totals
from flywheel.trajectories.store.merge import write
from tests.conftest import Build, Cast
from tests.trajectories.talking import body_of, span

pytestmark = pytest.mark.django_db
Send = Callable[..., None]


@pytest.fixture
def send(client: Client, key: Callable[..., dict[str, str]]) -> Send:
    headers = key("ingest")

    def go(number: int = 1, **attributes: Any) -> None:
        said: dict[str, Any] = {"gen_ai__operation__name": "chat", "gen_ai__usage__input_tokens": 1000} | attributes
        body = body_of([span(number, gen_ai__usage__output_tokens=100, **said)])
        assert (
            client.post("/v1/traces", body, content_type="application/x-protobuf", headers=headers).status_code == 200
        )

    return go


def priced(cast: Cast, **fields: Any) -> str:
    row = ModelPrice.objects.create(project=cast.project, **{"model": "m", "price_in": 1, "price_out": 10} | fields)
    return f"table:{row.pk}"


def test_a_cost_is_derived_where_none_was_sent(cast: Cast, send: Send) -> None:
    origin = priced(cast)
    send(1, gen_ai__request__model="m")
    send(2, gen_ai__request__model="m", gen_ai__usage__cost=1)
    send(3, gen_ai__request__model="unheard-of")
    send(4, gen_ai__request__model="gpt-5-mini")
    steps: dict[int, Any] = {int(step.span_id, 16): (step.cost_usd, step.priced_by) for step in Step.objects.all()}
    assert steps[1] == (pytest.approx(0.002), origin)
    assert steps[2] == (1, None)
    assert steps[3] == (None, None), "unknown is not free"
    assert steps[4] == (pytest.approx((1000 * 0.25 + 100 * 2) / 1e6), "list:gpt-5-mini@2026-11-23")
    assert Trajectory.objects.get().cost_usd == pytest.approx(0.002 + 1 + 0.00045)


def test_the_price_is_that_of_the_calls_day(cast: Cast, send: Send) -> None:
    priced(cast, price_in=7, valid_from="2026-06-01")
    origin = priced(cast, valid_from="2026-01-01")
    send(gen_ai__request__model="m")
    assert Step.objects.get().priced_by == origin, "the span began in May 2026"


def test_a_span_that_comes_again_is_a_duplicate_whatever_it_costs_now(cast: Cast, send: Send) -> None:
    send(gen_ai__request__model="m")
    priced(cast)
    send(gen_ai__request__model="m")
    assert Step.objects.get().cost_usd is None


def test_the_versions_own_endpoint_holds_over_the_table(build: Build, cast: Cast, send: Send) -> None:
    priced(cast)
    endpoint = {"kind": "openai", "base_url": "http://x/v1", "model": "m", "price_in": 2, "price_out": 20}
    version = build.version(endpoint=endpoint)
    said = {"gen_ai__agent__name": version.agent.name, "gen_ai__agent__version": str(version.number)}
    send(1, gen_ai__request__model="m", **said)
    send(2, gen_ai__request__model="gpt-5-mini", **said)
    send(3, gen_ai__request__model="m-2026-01-31", **said)
    send(4, gen_ai__request__model="m-20260131", **said)
    found = list(Step.objects.order_by("span_id").values_list("priced_by", flat=True))
    own = f"version:{version.pk}"
    assert found == [own, "list:gpt-5-mini@2026-11-23", own, own], "snapshots are the model's own too"


def test_imported_steps_have_it_too_and_rollouts_keep_what_their_eval_says(cast: Cast) -> None:
    origin = priced(cast)
    step = traces.Step("a", "assistant", model="m", tokens_in=1000, tokens_out=100)
    write(cast.project, [traces.Trace("1" * 32, [step])], source=Source.IMPORT)
    write(cast.project, [traces.Trace("2" * 32, [step])], source=Source.ROLLOUT)
    found = list(Step.objects.order_by("trajectory__trace_id").values_list("priced_by", flat=True))
    assert found == [origin, None]


def test_reading_again_derives_anew(cast: Cast, send: Send) -> None:
    send(gen_ai__request__model="m")
    origin = priced(cast)
    assert list(reread(cast.project))[-1].changed == 1
    assert Step.objects.get().priced_by == origin
    assert Trajectory.objects.get().cost_usd == pytest.approx(0.002)
    assert list(reread(cast.project))[-1].changed == 0
    ModelPrice.objects.all().delete()
    list(reread(cast.project))
    assert (Step.objects.get().cost_usd, Trajectory.objects.get().cost_usd) == (None, None)


def test_what_is_derived_below_a_stated_cost_counts_not_twice() -> None:
    outer = traces.Step("a", "assistant", cost_usd=1.0)
    inner = traces.Step("b", "assistant", parent_id="a", cost_usd=0.9, priced_by="table:1")
    assert running_totals._telling(traces.Trace("1" * 32, [outer, inner]), "cost_usd") == [outer]


def test_the_page_says_by_which_price(cast: Cast, send: Send, sign_in: Callable[[User], Client]) -> None:
    priced(cast, source="contract")
    send(gen_ai__request__model="m")
    step = Step.objects.get()
    page = sign_in(cast.viewer).get(f"/p/acme/trajectories/{step.trajectory.trace_id}/?step={step.span_id}")
    assert "derived by m: $1 in, $10 out for a million tokens" in page.content.decode()
