"""Days that were added up beforehand: whatever changes, the figures are those that adding up now would give."""

from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.accounts.actors import Actor
from flywheel.failures.labels.decisions import decide, undo
from flywheel.trajectories.metrics import daily_metrics, production_metrics
from flywheel.trajectories.models import MetricsDay, MetricsStale, Source, Trajectory
from flywheel.trajectories.operations.deletion import delete
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
TODAY = timezone.now().astimezone(UTC).date()


def on(back: int) -> datetime:
    """At noon, so many days ago."""
    return datetime.combine(TODAY - timedelta(days=back), datetime.min.time(), UTC) + timedelta(hours=12)


def figures(cast: Cast, *, direct: bool, **values: str) -> Any:
    """Everything that is said of a period, from the sums or from the trajectories themselves."""
    asked = production_metrics.ask(cast.project, {"from": str(TODAY - timedelta(days=9)), "to": str(TODAY), **values})
    with pytest.MonkeyPatch.context() as patch:
        if direct:
            patch.setattr(production_metrics, "_added_up", production_metrics._read)
        found = production_metrics.measure(cast.project, asked)
    said: dict[Any, Any] = {"times": found.times, "total": found.total}
    said |= {("group", each.name): (each.total, each.times) for each in found.groups}
    said |= {("bucket", each.key): (each.total, each.times) for each in found.buckets}
    return said


def plain(value: Any) -> Any:
    """Nested figures as a flat mapping, floats to be compared as such."""
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, production_metrics.Figures):
            for key, each in asdict(value).items():
                found[f"{name}.{key}"] = each
        elif isinstance(value, dict):
            for key, each in value.items():
                walk(each, f"{name}/{key}")
        elif isinstance(value, tuple):
            for at, each in enumerate(value):
                walk(each, f"{name}[{at}]")

    walk(value, "")
    return found


def agree(cast: Cast) -> None:
    for by, every in (("", "week"), ("version", "day"), ("tool", "day"), ("tool", "week"), ("env", "day")):
        sums, now = (plain(figures(cast, direct=direct, by=by, every=every)) for direct in (False, True))
        assert sums.keys() == now.keys()
        for key, value in now.items():
            wanted = pytest.approx(value) if isinstance(value, float) else value
            assert sums[key] == wanted, key


FIELDS = st.fixed_dictionaries(
    {
        "started_at": st.integers(0, 9).map(on),
        "outcome": st.sampled_from([None, "success", "failed"]),
        "proposed_bucket": st.sampled_from(["", "wrong_tool", "format_error"]),
        "latency_ms": st.none() | st.floats(0, 1e6),
        "cost_usd": st.none() | st.floats(0, 10),
        "tokens_in": st.none() | st.integers(0, 10**6),
        "tokens_out": st.none() | st.integers(0, 10**6),
        "environment": st.sampled_from(["", "dev", "production"]),
        "tool_names": st.lists(st.sampled_from(["email.send", "crm.find", ""]), unique=True, max_size=2),
        "interventions": st.sampled_from([[], [{"kind": "takeover", "step": "s", "note": ""}]]),
        "source": st.sampled_from([Source.PRODUCTION, Source.PRODUCTION, Source.IMPORT, Source.ROLLOUT]),
    }
)
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "change", "change", "label", "undo", "delete", "roll", "roll"]),
        st.integers(0, 50),
        FIELDS,
    ),
    min_size=3,
    max_size=16,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(MOVES)
def test_sums_are_what_adding_up_now_gives_whatever_happens(
    cast: Cast, build: Build, moves: list[tuple[str, int, dict[str, Any]]]
) -> None:
    with transaction.atomic():
        versions = [None, build.version()]
        for move, at, fields in moves:
            rows = list(Trajectory.objects.filter(project=cast.project).order_by("pk"))
            row = rows[at % len(rows)] if rows else None
            version = versions[at % 2]
            if move == "come":
                build.trajectory(**fields, version=version, agent=version and version.agent)
            elif move == "roll":
                daily_metrics.catch_up()
            elif row is None:
                continue
            elif move == "change":
                Trajectory.objects.filter(pk=row.pk).update(**fields, version=version)
            elif move == "label":
                decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool" if at % 3 else "")
            elif move == "undo":
                undo(trajectory=row, actor=Actor(cast.reviewer))
            elif move == "delete":
                delete(trajectory=row, actor=Actor(cast.admin))
        agree(cast)
        daily_metrics.catch_up()
        agree(cast)
        transaction.set_rollback(True)


def test_a_finished_day_is_added_up_once_and_again_when_it_changes(cast: Cast, build: Build) -> None:
    old, young = build.trajectory(started_at=on(5)), build.trajectory(started_at=on(0))
    assert daily_metrics.due(cast.project) == [TODAY - timedelta(days=back) for back in range(2, 6)]
    daily_metrics.catch_up()
    assert daily_metrics.due(cast.project) == []
    Trajectory.objects.filter(pk=old.pk).update(title="of no account", detected_at=timezone.now())
    Trajectory.objects.filter(pk=young.pk).update(outcome="failed")
    assert daily_metrics.due(cast.project) == []
    Trajectory.objects.filter(pk=old.pk).update(outcome="failed")
    assert daily_metrics.due(cast.project) == [TODAY - timedelta(days=5)]
    daily_metrics.catch_up()
    Trajectory.objects.filter(pk=old.pk).update(started_at=on(3))
    assert daily_metrics.due(cast.project) == [TODAY - timedelta(days=3), TODAY - timedelta(days=5)]
    agree(cast)


def test_what_is_being_written_while_a_day_is_added_up_is_not_lost(cast: Cast, build: Build) -> None:
    row = build.trajectory(started_at=on(4))
    daily_metrics.roll(cast.project, TODAY - timedelta(days=4))
    # Noted by somebody whose change is not committed yet: the note outlives an adding up that could not see it.
    MetricsStale.objects.create(project=cast.project, day=TODAY - timedelta(days=4))
    Trajectory.objects.filter(pk=row.pk).update(cost_usd=2.5)
    agree(cast)
    daily_metrics.roll(cast.project, TODAY - timedelta(days=4))
    assert not MetricsStale.objects.exists()
    agree(cast)


def test_the_name_of_a_tool_goes_with_the_last_trajectory_that_called_it(cast: Cast, build: Build) -> None:
    row = build.trajectory(started_at=on(4), tool_names=["secret.plan"])
    daily_metrics.catch_up()
    assert MetricsDay.objects.filter(kind="tool", key="secret.plan").exists()
    delete(trajectory=row, actor=Actor(cast.admin))
    assert not MetricsDay.objects.filter(key="secret.plan").exists()


def test_a_long_period_reads_no_trajectory_of_a_finished_day(cast: Cast, build: Build) -> None:
    for back in range(2, 10):
        build.trajectory(started_at=on(back))
    daily_metrics.catch_up()
    asked = production_metrics.ask(
        cast.project, {"from": str(TODAY - timedelta(days=9)), "to": str(TODAY), "by": "tool"}
    )
    with CaptureQueriesContext(connection) as captured:
        assert production_metrics.measure(cast.project, asked).total.count == 8
    [fresh] = [query["sql"] for query in captured if "trajectories_trajectory" in query["sql"]]
    first = TODAY - timedelta(days=1)
    assert fresh.count('started_at" >=') == 1
    assert f"'{first}" in fresh, "from yesterday on"


def test_a_project_goes_with_its_sums(cast: Cast, build: Build) -> None:
    build.trajectory(started_at=on(3), project=cast.elsewhere)
    daily_metrics.catch_up()
    Trajectory.objects.filter(project=cast.elsewhere).delete()
    assert not MetricsDay.objects.filter(project=cast.elsewhere, day=TODAY - timedelta(days=3)).exists()


def test_days_that_follow_one_another_are_one_run() -> None:
    first = date(2026, 11, 1)
    days = [first + timedelta(days=at) for at in (0, 1, 2, 5, 7, 8)]
    assert [(b - a).days + 1 for a, b in daily_metrics._runs(days)] == [3, 1, 2]
