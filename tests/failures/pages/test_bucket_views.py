"""The page of a bucket."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.models import Recurrence
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
PATH = [[10, 2.0], [20, 30.0], ["bound", 60.0]]


@pytest.mark.parametrize(("path", "parts"), [(PATH, [2 / 60, 0.5]), ([], None)], ids=["kept", "none"])
def test_a_recurrence_is_shown_with_the_evidence_over_time(
    path: list[list[float]], parts: list[float] | None, cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    found = Recurrence.objects.create(
        project=cast.project, bucket="wrong_tool", version=build.version(build.agent()), claim=0.02, failed=0.5,
        sessions=20, path=path,
    )  # fmt: skip
    bucket_lifecycle.reopen_by_watch(found)
    answer = sign_in(cast.viewer).get(reverse("failures:bucket", args=["acme", "wrong_tool"]))
    chart = answer.context["recurrence_chart"]
    assert (chart and chart["series"][0]["y"]) == (parts and pytest.approx(parts))
    assert ("Evidence against the claim" in answer.content.decode()) == bool(parts)
    assert reverse("promotions:lineage", args=["acme", "recurrence", found.pk]) in answer.content.decode()
