"""Buckets for programs."""

from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.models import Recurrence
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db


def test_a_recurrence_has_its_evidence_over_time(
    cast: Cast, build: Build, key: Callable[..., dict[str, str]], client: Client
) -> None:
    found = Recurrence.objects.create(
        project=cast.project, bucket="wrong_tool", version=build.version(build.agent()), claim=0.02, failed=0.5,
        sessions=20, path=[[10, 2.0], [20, 70.0], ["bound", 60.0]],
    )  # fmt: skip
    bucket_lifecycle.reopen_by_watch(found)
    listed = client.get("/api/v1/buckets", headers=key("read")).json()
    said = {row["key"]: row["recurrence"] for row in listed}
    assert said["wrong_tool"]["path"] == [{"sessions": 10, "evidence": 2.0}, {"sessions": 20, "evidence": 70.0}]
    assert (said["wrong_tool"]["bound"], said["format_error"]) == (60.0, None)
