"""Any attribute that was sent is kept where it can be, found by the filter bar and told apart in metrics."""

import random
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from flywheel.accounts.models import User
from flywheel.core import traces
from flywheel.trajectories.formats.semantics.sent_attributes import EACH, MOST, items_of, keys_of, merged, sent
from flywheel.trajectories.metrics import production_metrics
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.operations.rereads import reread
from flywheel.trajectories.search.facets import facets_of
from flywheel.trajectories.search.query import parse
from flywheel.trajectories.store.merge import write
from tests.conftest import Cast
from tests.trajectories.talking import body_of, span

Send = Callable[..., None]


@pytest.fixture
def send(client: Client, key: Callable[..., dict[str, str]]) -> Send:
    headers = key("ingest")

    def go(trace: int, *more: KeyValue, **attributes: Any) -> None:
        made = span(trace, trace=f"{trace:032x}", **attributes)
        made.attributes.extend(more)
        answer = client.post("/v1/traces", body_of([made]), content_type="application/x-protobuf", headers=headers)
        assert answer.status_code == 200

    return go


def test_scalars_are_kept_and_what_cannot_be_is_left_out() -> None:
    sent = {
        "app.release": "rc  7", "n": 3, "x": 1.5, "on": True, "long": "v" * 120, "empty": "", "list": [1], "none": None,
        "a=b": "c", "k" * 81: "v", "bell": "\a", "process.pid": 7, "telemetry.sdk.name": "otel",
    }  # fmt: skip
    assert items_of(sent, keys_of(sent)) == ["app.release=rc 7", "n=3", "x=1.5", "on=true"]


def test_ids_of_each_call_and_what_libraries_say_of_themselves_are_left_out() -> None:
    never = [
        "host.name", "os.type", "process.pid", "container.id", "k8s.pod.uid", "telemetry.sdk.name", "thread.id",
        "code.function", "service.instance.id", "request_id", "http.request.id", "requestId", "x-correlation-id",
        "dd.trace_id", "span.id",
    ]  # fmt: skip
    assert keys_of(never) == ()
    usual = ("app.release", "customer.id", "hostel", "k8s.deployment.name", "region", "service.name", "tenant_id")
    assert keys_of(usual) == usual


def test_what_is_kept_does_not_depend_on_the_order_of_arrival() -> None:
    items = [f"key.{number}={value}" for number in range(40) for value in range(7)]
    wanted = merged([], set(items))
    assert len(sent(wanted)) == MOST
    assert set(wanted) - set(sent(wanted)) == {item.partition("=")[0] for item in sent(wanted)}, "and each key alone"
    assert sum(item.startswith("key.0=") for item in wanted) == EACH
    for seed in range(20):
        random.Random(seed).shuffle(items)
        kept: list[str] = []
        for at in range(0, len(items), 13):
            kept = merged(kept, set(items[at : at + 13]))
        assert kept == wanted


def found(cast: Cast, q: str) -> list[int]:
    query = parse(q)
    assert query.problems == [], query.problems
    rows = query.apply(Trajectory.objects.filter(project=cast.project), cast.project.pk)
    return sorted(int(trace_id, 16) for trace_id in rows.values_list("trace_id", flat=True))


@pytest.mark.django_db
def test_the_filter_bar_finds_any_attribute(cast: Cast, send: Send) -> None:
    send(1, app__release="2026.11-rc7", tier="gold, silver", n=3, gen_ai__request__model="m")
    send(2, app__release="2026.12")
    send(1, app__release="2026.11-rc8")
    assert found(cast, "attr.app.release:2026.11-rc7") == [1]
    assert found(cast, "attr.app.release:2026.*") == [1, 2]
    assert found(cast, "attr.app.release:2026.11-rc8,2026.12") == [1, 2]
    assert found(cast, "-attr.app.release:2026.12") == [1]
    assert found(cast, "attr.n:3") == [1]
    assert found(cast, 'attr.tier:"gold, silver"') == [1]
    assert found(cast, "attr.app.releas:*") == found(cast, "attr.app_release:2026.12") == []
    assert found(cast, 'attr."no such key":*') == []
    assert parse("attr:x").problems == ["attr: needs a key. Write attr.<key>:<value>, an attribute that was sent: "
                                        "attr.app.release:2026.11-rc7."]  # fmt: skip
    assert "cannot be compared" in parse("attr.n:>2").problems[0]
    assert Trajectory.objects.get(trace_id=f"{1:032x}").attributes[:2] == [
        "app.release=2026.11-rc7", "app.release=2026.11-rc8",
    ]  # fmt: skip


@pytest.mark.django_db
def test_who_sent_a_key_is_found_by_the_index(cast: Cast, send: Send) -> None:
    send(1, tier="gold")
    send(2, tiers="gold")
    assert found(cast, "attr.tier:*") == [1]
    assert found(cast, "-attr.tier:*") == [2]
    asked = parse("attr.tier:*").apply(Trajectory.objects.filter(project=cast.project), cast.project.pk)
    sql = str(asked.query)
    assert "@@" in sql
    assert "unnest" not in sql
    beginning = str(parse("attr.tier:g*").apply(Trajectory.objects.all()).query)
    assert ("'tier=g':*" in beginning, "unnest" in beginning) == (True, False)


@pytest.mark.django_db
def test_a_key_that_has_a_field_is_answered_by_it(cast: Cast, send: Send) -> None:
    send(1, session__id="s1", gen_ai__agent__name="helper", gen_ai__request__model="m")
    send(2, user__id="u2")
    Trajectory.objects.filter(trace_id=f"{2:032x}").update(environment="staging", metadata={"region": "eu"})
    assert found(cast, "attr.session.id:s1") == found(cast, "attr.gen_ai.agent.name:help*") == [1]
    assert found(cast, "attr.user.id:u2") == found(cast, "attr.deployment.environment:staging") == [2]
    assert found(cast, "attr.flywheel.meta.region:eu") == [2]
    assert parse("attr.gen_ai.request.model:m").problems == [
        "attr.gen_ai.request.model: attributes of this name are read as what a step says, and cannot be filtered by."
    ]
    asked = {"from": "2026-05-01", "to": "2026-06-30"}
    assert production_metrics.ask(cast.project, {**asked, "by": "attr.deployment.environment"}).by == "env"
    with pytest.raises(production_metrics.BadPeriod):
        production_metrics.ask(cast.project, {**asked, "by": "attr.session.id"})


@pytest.mark.django_db
def test_lists_are_passed_over_and_rereading_fills_what_was_stored_before(cast: Cast, send: Send) -> None:
    several = AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="a")]))
    send(1, KeyValue(key="several", value=several), region="eu")
    assert found(cast, "attr.several:*") == []
    Trajectory.objects.update(attributes=[])
    list(reread(cast.project))
    assert found(cast, "attr.region:eu") == [1]
    assert list(reread(cast.project))[-1].changed == 0


@pytest.mark.django_db
def test_of_formats_without_spans_metadata_is_what_was_sent(cast: Cast) -> None:
    trace = traces.Trace(f"{1:032x}", [traces.Step("a", "assistant")], metadata={"run": 7, "nested": {"a": 1}})
    write(cast.project, [trace], source=Source.IMPORT)
    assert found(cast, "attr.run:7") == [1]


@pytest.mark.django_db
def test_facets_show_what_differs(cast: Cast, send: Send) -> None:
    send(1, app__release="a b", same="x")
    send(2, app__release="c", same="x")
    facets, _ = facets_of(cast.project, Trajectory.objects.filter(project=cast.project))
    shown = next(facet for facet in facets if facet.name == "attr")
    assert sorted(value.term for value in shown.values) == ['attr.app.release:"a b"', "attr.app.release:c"]
    for value in shown.values:
        assert len(found(cast, value.term)) == 1


@pytest.mark.django_db
def test_pages_and_api_show_them(
    cast: Cast, send: Send, sign_in: Callable[[User], Client], client: Client, key: Callable[..., dict[str, str]]
) -> None:
    send(1, app__release="<i>7")
    send(2, app__release="8")
    send(3)
    viewer = sign_in(cast.viewer)
    page = viewer.get(f"/p/acme/trajectories/{1:032x}/").content.decode()
    assert "app.release=&lt;i&gt;7" in page
    assert quote('attr.app.release:"<i>7"', safe="/") in page
    headers = key("read")
    row = client.get(f"/api/v1/trajectories/{1:032x}", headers=headers).json()
    assert row["attributes"] == ["app.release=<i>7", "service.name=shop"]
    listed = client.get("/api/v1/trajectories", {"q": "attr.app.release:8"}, headers=headers).json()
    assert [int(each["trace_id"], 16) for each in listed["items"]] == [2]
    asked = {"by": "attr.app.release", "from": "2026-05-01", "to": "2026-06-30"}
    groups = client.get("/api/v1/metrics", asked, headers=headers).json()["groups"]
    assert sorted((group["name"], group["count"]) for group in groups) == [("8", 1), ("<i>7", 1), ("not sent", 1)]
    for group in groups:
        only = client.get("/api/v1/trajectories", {"q": group["q"]}, headers=headers).json()
        assert len(only["items"]) == 1
    assert client.get("/api/v1/metrics", {"by": "attr."}, headers=headers).status_code in (400, 422)
    shown = viewer.get("/p/acme/trajectories/metrics/", asked).content.decode()
    assert 'value="attr.app.release"' in shown
    figures = viewer.get("/p/acme/trajectories/metrics/figures/", asked).content.decode()
    assert "&lt;i&gt;7" in figures
