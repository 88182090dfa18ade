"""PreparedQuery questions: answered as Django would, whoever asks and whatever the values are."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, connection, transaction
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from flywheel.accounts.models import Membership, User
from flywheel.edge.prepared_queries import PreparedQuery
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db

FOUND = PreparedQuery(
    lambda outcome, project, since: (
        Trajectory.objects.filter(Q(outcome=outcome) | Q(label="pass"), project=project, started_at__gt=since)
        .exclude(source="rollout")
        .select_related("project", "agent", "version__agent")
        .order_by("-title", "id")[:3]
    )
)


def _all(row: Any) -> dict[str, Any]:
    """What was read of a row and of those beside it."""
    cached = {name: _all(other) for name, other in row._state.fields_cache.items() if other is not None}
    return {name: value for name, value in vars(row).items() if name != "_state"} | cached


def test_rows_come_as_the_query_brings_them(cast: Cast, build: Build) -> None:
    version = build.version()
    for number in range(5):
        row = build.trajectory(
            version=version if number else None, outcome="failed", prompt=f"it's 100 %s {number}", tags=["a", "%s"]
        )
    since = row.started_at - timedelta(days=1)
    query = FOUND._form("failed", cast.project, since)
    assert len(query) == 3
    for _ in range(2):
        with CaptureQueriesContext(connection) as captured:
            found = FOUND("failed", cast.project.pk, since)
            assert [_all(row) for row in found] == [_all(row) for row in query]
        assert len(captured) == 1, "everything that was asked for came with it"
    assert FOUND("success", cast.project.pk, since) == []
    assert FOUND.first("success", cast.project.pk, since) is None
    assert FOUND("failed", cast.project.pk + 1, since) == []
    found[0].title = "to be continued"
    found[0].save()
    (again, *_) = FOUND("failed", cast.project.pk, since)
    assert (again, again.title) == (found[0], "to be continued")


def test_what_is_left_out_is_read_when_it_is_needed(cast: Cast) -> None:
    (found,) = PreparedQuery(lambda name: User.objects.filter(username=name).only("username"))(cast.viewer.username)
    assert found.get_deferred_fields()
    assert found.email == cast.viewer.email


def test_values_stay_values(cast: Cast) -> None:
    named = PreparedQuery(lambda name: User.objects.filter(username=name))
    for name in ("' OR 1=1 --", "%s", "$1", '"', "\\", "{a}"):
        assert named(name) == []
        made = User.objects.create(username=name)
        assert named(name) == [made]
    with pytest.raises(DataError), transaction.atomic():
        named("a\x00b")


def test_it_sees_the_transaction_it_is_asked_in(cast: Cast) -> None:
    roles = PreparedQuery(lambda user: Membership.objects.filter(user=user))
    before = roles(cast.viewer.pk)
    with transaction.atomic():
        Membership.objects.filter(user=cast.viewer).delete()
        assert roles(cast.viewer.pk) == []
        transaction.set_rollback(True)
    assert roles(cast.viewer.pk) == before != []
