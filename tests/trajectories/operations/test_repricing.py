"""Costs follow the prices when somebody asks for it: those that were derived, and nobody's own."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.models import AuditEntry, ModelPrice, User
from flywheel.core import traces
from flywheel.edge.jobs import Lease, State
from flywheel.trajectories.models import MetricsStale, Reread, Source, Step, Trajectory
from flywheel.trajectories.operations.repricing import derive_again
from flywheel.trajectories.store.merge import write
from tests.conftest import Build, Cast
from workers.jobs.trajectories import span_rereads

pytestmark = pytest.mark.django_db
LAST_WEEK = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY = "6f2c1a52-9f0f-4f3e-9a38-6c0a9b4b7b11"


def call(name: str = "a", **fields: Any) -> traces.Step:
    known: dict[str, Any] = {"model": "m", "tokens_in": 1000, "tokens_out": 100, "started_at": LAST_WEEK} | fields
    return traces.Step(name, "assistant", **known)


def stored(cast: Cast, *steps: traces.Step, number: int = 1, source: str = Source.IMPORT) -> Trajectory:
    write(cast.project, [traces.Trace(f"{number:032x}", list(steps))], source=source)
    return Trajectory.objects.get(trace_id=f"{number:032x}")


def priced(cast: Cast, price_in: float = 1, **fields: Any) -> str:
    ModelPrice.objects.filter(project=cast.project).delete()
    row = ModelPrice.objects.create(project=cast.project, model="m", price_in=price_in, price_out=10, **fields)
    return f"table:{row.pk}"


def costs() -> list[Any]:
    return list(Step.objects.order_by("span_id").values_list("cost_usd", "priced_by"))


def test_derived_costs_follow_and_stated_ones_stay(cast: Cast) -> None:
    priced(cast)
    row = stored(cast, call("a"), call("b", cost_usd=1.0), call("c", model="unheard-of"), call("d", tokens_out=None))
    read_on = timezone.now()
    Trajectory.objects.update(detected_at=read_on)
    origin = priced(cast, price_in=3)
    assert derive_again(cast.project, row.pk)
    assert costs() == [(pytest.approx(0.004), origin), (1.0, None), (None, None), (None, None)]
    row.refresh_from_db()
    assert row.cost_usd == pytest.approx(1.004)
    assert row.detected_at == read_on, "no news to detectors"
    assert not derive_again(cast.project, row.pk), "nothing is left to do"


def test_a_price_named_later_fills_what_was_unknown_and_a_removed_one_leaves_it_so(cast: Cast) -> None:
    row = stored(cast, call())
    assert costs() == [(None, None)]
    origin = priced(cast)
    assert derive_again(cast.project, row.pk)
    assert costs() == [(pytest.approx(0.002), origin)]
    ModelPrice.objects.all().delete()
    assert derive_again(cast.project, row.pk)
    row.refresh_from_db()
    assert (costs(), row.cost_usd) == ([(None, None)], None)


def test_the_price_is_that_of_the_calls_day(cast: Cast) -> None:
    origin = priced(cast)
    row = stored(cast, call())
    ModelPrice.objects.create(project=cast.project, model="m", price_in=9, price_out=9, valid_from="2026-06-01")
    assert not derive_again(cast.project, row.pk)
    assert costs()[0][1] == origin


def test_a_versions_own_price_and_what_an_eval_measured_stay(cast: Cast) -> None:
    row = stored(cast, call())
    Step.objects.update(cost_usd=5.0, priced_by="version:1")
    priced(cast)
    assert not derive_again(cast.project, row.pk)
    rollout = stored(cast, call(), number=2, source=Source.ROLLOUT)
    assert not derive_again(cast.project, rollout.pk)
    assert not derive_again(cast.project, 0)


def test_what_is_told_twice_is_still_counted_once(cast: Cast) -> None:
    priced(cast)
    row = stored(cast, call("a"), call("b", parent_id="a"))
    priced(cast, price_in=3)
    assert derive_again(cast.project, row.pk)
    row.refresh_from_db()
    assert row.cost_usd == pytest.approx(0.004)
    assert row.tokens_in == 1000


def test_days_that_were_added_up_are_added_up_anew(cast: Cast) -> None:
    row = stored(cast, call())
    MetricsStale.objects.all().delete()
    priced(cast)
    assert derive_again(cast.project, row.pk)
    assert MetricsStale.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_worker_goes_on_from_where_the_last_one_stopped(
    cast: Cast, sign_in: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.trajectories.operations.rereads.TRAJECTORIES_AT_ONCE", 1)
    for number in (1, 2, 3):
        stored(cast, call(), number=number)
    origin = priced(cast)
    client = sign_in(cast.admin)
    shown = client.get(reverse("settings:prices", args=[cast.project.slug])).content.decode()
    assert reverse("trajectories:costs", args=[cast.project.slug]) in shown
    for _ in range(2):
        client.post(reverse("trajectories:start_costs", args=[cast.project.slug]), {"key": KEY})
    job = Reread.objects.get()
    assert AuditEntry.objects.filter(action="trajectories.derive_costs").count() == 1
    Reread.objects.update(at=Trajectory.objects.order_by("pk")[0].pk, done=1)
    lease = Reread.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        span_rereads.read_again(lease)
    job.refresh_from_db()
    assert (job.state, job.done, job.total, job.changed) == (State.SUCCEEDED, 3, 3, 2)
    assert [each for _, each in costs()] == [None, origin, origin]
    fragment = client.get(reverse("trajectories:costs", args=[cast.project.slug]), headers={"HX-Request": "true"})
    assert (fragment.status_code, b"2 of them with another cost" in fragment.content) == (286, True)


def test_a_program_asks_for_it_looks_and_stops_it(
    client: Client, cast: Cast, key: Callable[..., dict[str, str]], build: Build
) -> None:
    headers = key("admin")
    asked = client.post("/api/v1/prices/derivations", headers=headers)
    assert asked.status_code == 202
    again = client.post("/api/v1/prices/derivations", headers=headers)
    assert asked.json()["id"] == again.json()["id"], "one at a time"
    address = f"/api/v1/prices/derivations/{asked.json()['id']}"
    assert client.get(address, headers=headers).json()["changed"] == 0
    assert client.post(f"{address}/cancel", headers=headers).json()["state"] == State.CANCELLED
    assert client.post(f"{address}/cancel", headers=headers).status_code == 409
