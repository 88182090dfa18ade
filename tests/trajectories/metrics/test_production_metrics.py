"""The metrics of production: the figures against ones added up by hand, and that each is the list it leads to."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.core.evidence.statistics.estimates import proportion
from flywheel.trajectories.metrics import production_metrics
from flywheel.trajectories.metrics.production_metrics import Figures, Metrics
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.pages.metrics import metrics_charts
from flywheel.trajectories.search.query import parse
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
NOTE = [{"kind": "takeover", "step": "s2", "note": ""}]


def at(day: int, hour: int = 12) -> datetime:
    return datetime(2026, 11, day, hour, tzinfo=UTC)


@pytest.fixture
def six(build: Build) -> list[Trajectory]:
    """Two days, 2 and 3 November 2026 (a Monday and a Tuesday), and the Monday after."""
    first, second = build.version(), build.version(system_prompt="another")
    rows: list[dict[str, Any]] = [
        {"outcome": "success", "latency_ms": 1000.0, "cost_usd": 0.5, "tokens_in": 10, "tokens_out": 1},
        {"outcome": "failed", "latency_ms": 2000.0, "cost_usd": 0.25, "proposed_bucket": "wrong_tool"},
        {"outcome": "success", "latency_ms": 3000.0, "interventions": NOTE, "tokens_in": 30},
        {"outcome": None, "latency_ms": 4000.0, "label": "failure", "label_bucket": "format_error"},
        {"outcome": "failed", "latency_ms": None, "label": "pass", "proposed_bucket": "wrong_tool"},
        {"outcome": None, "latency_ms": None, "environment": "none"},
    ]
    days = [2, 2, 2, 3, 3, 9]
    tools = [["email.send"], ["email.send", "crm.find"], [], ["crm.find"], ['odd "name"'], []]
    versions = [first, first, second, second, None, None]
    return [
        build.trajectory(
            started_at=at(day),
            agent=version and version.agent,
            tool_names=names,
            version=version,
            environment=fields.pop("environment", "dev"),
            **fields,
        )
        for fields, day, names, version in zip(rows, days, tools, versions, strict=True)
    ]


def measured(cast: Cast, **asked: str) -> Metrics:
    asked = {"from": "2026-11-02", "to": "2026-11-09", "every": "day"} | asked
    return production_metrics.measure(cast.project, production_metrics.ask(cast.project, asked))


def test_the_figures_are_those_added_up_by_hand(cast: Cast, six: list[Trajectory]) -> None:
    found = measured(cast)
    assert found.total == Figures(
        count=6,
        scored=4,
        succeeded=2,
        confirmed=1,
        proposed=1,
        intervened=1,
        cost=0.75,
        costed=2,
        tokens_in=40,
        tokens_out=1,
        counted=2,
        p50=2500.0,
        p95=found.total.p95,
        timed=4,
    )
    assert found.total.p95 == pytest.approx(3850.0)
    assert found.total.success == proportion(2, 4, unscored=2)
    assert found.total.failure == proportion(2, 6)
    assert found.total.intervention == proportion(1, 6)
    assert (found.total.cost_each, found.total.tokens_each) == (0.375, 20.5)
    assert [day.isoformat() for day in found.times] == [f"2026-11-0{day}" for day in range(2, 10)]
    assert [these.count for these in found.times.values()] == [3, 2, 0, 0, 0, 0, 0, 1]
    assert {bucket.key: (bucket.total.confirmed, bucket.total.proposed) for bucket in found.buckets} == {
        "wrong_tool": (0, 1),
        "format_error": (1, 0),
    }


def test_what_nobody_told_is_none_and_never_zero(cast: Cast, six: list[Trajectory]) -> None:
    last = measured(cast).times[date(2026, 11, 9)]
    assert (last.success.mean, last.success.n, last.success.unscored) == (None, 0, 1)
    assert (last.cost, last.cost_each, last.p50, last.tokens_in, last.tokens_each) == (None,) * 5
    empty = measured(cast).times[date(2026, 11, 5)]
    assert (empty.count, empty.success.mean, empty.failure.mean) == (0, None, None)


def test_groups_are_told_apart_and_a_trajectory_counts_under_each_of_its_tools(
    cast: Cast, six: list[Trajectory]
) -> None:
    assert {group.name: group.total.count for group in measured(cast, by="version").groups} == {
        "assistant@1": 2,
        "assistant@2": 2,
        "unknown version": 2,
    }
    by_tool = measured(cast, by="tool")
    assert {group.name: group.total.count for group in by_tool.groups} == {
        "email.send": 2,
        "crm.find": 2,
        'odd "name"': 1,
        "no tool called": 2,
    }
    assert by_tool.total.count == 6
    assert {group.name: group.total.count for group in measured(cast, by="env").groups} == {"dev": 5, "none": 1}


@pytest.mark.parametrize("by", ["", *production_metrics.BY])
@pytest.mark.parametrize(("every", "q"), [("day", ""), ("day", "env:dev or has:cost"), ("week", 'env:"dev')])
def test_every_figure_is_as_long_as_the_list_that_it_leads_to(
    cast: Cast, build: Build, six: list[Trajectory], by: str, every: str, q: str
) -> None:
    build.trajectory(started_at=at(3), source=Source.ROLLOUT)
    build.trajectory(started_at=at(3), project=cast.elsewhere)
    build.trajectory(started_at=at(1, 23))
    build.trajectory(started_at=at(10, 0))
    found = measured(cast, by=by, every=every, q=q)

    def listed(*terms: object, start: date | None = None) -> int:
        query = parse(found.request.where(*terms, start=start))  # type: ignore[arg-type]
        assert not query.problems, query.text
        return query.apply(Trajectory.objects.filter(project=cast.project)).count()

    assert found.total.count
    holders: list[Any] = [found, *found.groups, *found.buckets]
    for holder in holders:
        terms = getattr(holder, "terms", ())
        for start, these in ((None, holder.total), *holder.times.items()):
            assert listed(*terms, start=start) == these.count
            assert listed(*terms, *metrics_charts.SCORED, start=start) == these.scored
            assert listed(*terms, *metrics_charts.FAILED, start=start) == these.confirmed + these.proposed
            assert listed(*terms, *metrics_charts.INTERVENED, start=start) == these.intervened
            assert listed(*terms, *metrics_charts.COSTED, start=start) == these.costed


def test_a_point_of_p95_opens_what_was_slower(cast: Cast, six: list[Trajectory]) -> None:
    found = measured(cast)
    [chart] = [spec for spec in metrics_charts.charts_of(found, "/list", {}) if "latency" in spec["key"]]
    link = chart["series"][1]["links"][0]
    assert chart["series"][1]["y"][0] == pytest.approx(2.9)
    q = parse_qs(urlsplit(link).query)["q"][0]
    assert [row.latency_ms for row in parse(q).apply(Trajectory.objects.all())] == [3000.0]


def test_weeks_begin_on_monday_and_stay_within_the_period(cast: Cast, six: list[Trajectory]) -> None:
    found = measured(cast, every="week", **{"from": "2026-11-03"})
    assert list(found.times) == [date(2026, 11, 2), date(2026, 11, 9)]
    assert found.request.where(start=date(2026, 11, 2)) == "started:2026-11-03..2026-11-08"
    assert [these.count for these in found.times.values()] == [2, 1]


def test_a_period_by_its_length_ends_with_the_newest_trajectory(cast: Cast, six: list[Trajectory]) -> None:
    asked = production_metrics.ask(cast.project, {"days": "7"})
    assert (asked.first, asked.last, asked.every) == (date(2026, 11, 3), date(2026, 11, 9), "day")
    assert production_metrics.ask(cast.project, {"days": "90"}).every == "week"


@pytest.mark.parametrize(
    "asked",
    [
        {"by": "moon"},
        {"every": "hour"},
        {"days": "0"},
        {"days": "x"},
        {"days": "99999"},
        {"from": "soon"},
        {"from": "2026-11-09", "to": "2026-11-02"},
        {"from": "1000-01-01", "to": "2026-11-02"},
        {"from": "0001-01-01"},
    ],
)
def test_what_is_no_period_is_said(
    cast: Cast, sign_in: SignIn, key: Callable[..., dict[str, str]], asked: dict[str, str]
) -> None:
    with pytest.raises(production_metrics.BadPeriod):
        production_metrics.ask(cast.project, asked)
    page = sign_in(cast.viewer).get(reverse("trajectories:metrics", args=["acme"]), asked)
    assert page.status_code == 200
    assert b"The last 30 days are shown." in page.content
    assert sign_in(cast.viewer).get(reverse("trajectories:metrics_figures", args=["acme"]), asked).status_code == 400
    assert Client().get("/api/v1/metrics", asked, headers=key("read")).status_code in (400, 422)


def test_the_page_asks_for_its_figures_and_they_lead_to_lists(
    cast: Cast, sign_in: SignIn, six: list[Trajectory]
) -> None:
    client = sign_in(cast.viewer)
    asked = {"from": "2026-11-02", "to": "2026-11-09", "by": "tool", "q": "env:dev"}
    page = client.get(reverse("trajectories:metrics", args=["acme"]), asked)
    assert b"by=tool" in page.content
    with CaptureQueriesContext(
        connection,
    ) as queries:
        answer = client.get(reverse("trajectories:metrics_figures", args=["acme"]), asked)
    assert len([each for each in queries.captured_queries if each["sql"].startswith("WITH chosen")]) == 1
    assert not any("trajectories_step" in each["sql"] for each in queries.captured_queries)
    assert "odd &quot;name&quot;" in answer.content.decode()
    assert "tool%3Aemail.send" in answer.content.decode()


def test_a_filter_that_cannot_be_read_measures_nothing(cast: Cast, sign_in: SignIn, six: list[Trajectory]) -> None:
    page = sign_in(cast.viewer).get(reverse("trajectories:metrics", args=["acme"]), {"q": "moon:full"})
    assert b"No metrics." in page.content
    assert b"figures" not in page.content
    assert (
        production_metrics.measure(cast.project, production_metrics.ask(cast.project, {"q": "moon:full"})).total.count
        == 0
    )


def test_programs_get_the_same_figures(cast: Cast, key: Callable[..., dict[str, str]], six: list[Trajectory]) -> None:
    asked = {"from": "2026-11-02", "to": "2026-11-09", "by": "env", "every": "day"}
    found = Client().get("/api/v1/metrics", asked, headers=key("read")).json()
    assert found["total"]["success"] == {
        "mean": 0.5,
        "low": pytest.approx(0.150, abs=1e-3),
        "high": pytest.approx(0.850, abs=1e-3),
        "n": 4,
        "unscored": 2,
        "method": "Wilson",
        "reason": "",
    }
    assert (found["total"]["latency_p50_ms"], found["total"]["cost_usd"]) == (2500.0, 0.75)
    assert [point["count"] for point in found["times"]] == [3, 2, 0, 0, 0, 0, 0, 1]
    assert found["times"][-1]["success"]["mean"] is None
    assert [(group["name"], group["q"]) for group in found["groups"]] == [
        ("dev", "env:dev started:2026-11-02..2026-11-09"),
        ("none", 'env:"none" started:2026-11-02..2026-11-09'),
    ]
    assert {bucket["bucket"]: bucket["count"] for bucket in found["buckets"]} == {"format_error": 1, "wrong_tool": 1}
    refused = Client().get("/api/v1/metrics", {"q": "moon:full"}, headers=key("read"))
    assert refused.status_code == 400


def test_of_a_key_whose_every_value_is_another_only_those_listed_are_measured(
    cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        build.trajectory(started_at=at(2), attributes=[f"job={number // 2 if number < 4 else number}"])
    monkeypatch.setattr(production_metrics, "GROUPS", 3)
    monkeypatch.setattr(production_metrics, "_TOP", production_metrics._TOP.replace("LIMIT 50", "LIMIT 3"))
    asked = production_metrics.ask(cast.project, {"from": "2026-11-02", "to": "2026-11-02", "by": "attr.job"})
    rows = production_metrics._rows(cast.project, asked)
    assert sorted(row[2] for row in rows if row[0] == "group" and row[1] is None) == ["0", "1", "4"]
    found = production_metrics.measure(cast.project, asked)
    assert [(group.name, group.total.count) for group in found.groups] == [("0", 2), ("1", 2), ("4", 1)]
    assert found.is_cut
    assert found.total.count == 6, "the whole is that of all"


def test_figures_that_take_too_long_are_given_up(cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(production_metrics, "statement_of", lambda *_: ("SELECT pg_sleep(60)", ()))
    monkeypatch.setattr(production_metrics, "PATIENCE_S", 0.05)
    address = reverse("trajectories:metrics_figures", args=["acme"])
    response = sign_in(cast.viewer).get(address, {"q": "env:dev"})
    assert response.status_code == 400
    assert "took longer than 0.05 seconds; choose a shorter period" in response.content.decode()
