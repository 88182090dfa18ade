"""Buckets of a project's own: defined, offered, labelled with, counted in their family, archived."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Project, User
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.edge.refusals import Refused
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.failures.buckets import bucket_counts
from flywheel.failures.buckets.bucket_definitions import (
    Wanted,
    archive,
    change,
    define,
    every,
    family,
    name_of,
    of_project,
)
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import ProjectBucket
from flywheel.training.launch.fix_recommendation import buckets_of, evidence_of
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]

RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
REFUND = Wanted("Refund promised", "unsafe_action", "It promises money back that policy does not give.", "o")


@pytest.fixture
def refund(cast: Cast) -> ProjectBucket:
    return define(project=cast.project, actor=Actor(cast.builder), wanted=REFUND)


def again(project: Project) -> Project:
    """As the next request reads it."""
    return Project.objects.get(pk=project.pk)


def test_a_defined_bucket_stands_after_the_built_in_ones(cast: Cast, refund: ProjectBucket) -> None:
    offered = of_project(again(cast.project))
    assert list(offered) == [*BUCKETS, "refund_promised"]
    assert offered["refund_promised"].fix == BUCKETS["unsafe_action"].fix
    assert list(of_project(cast.elsewhere)) == list(BUCKETS)
    assert name_of(cast.project, "refund_promised") == "refund promised"
    assert name_of(cast.elsewhere, "refund_promised") == "refund promised"  # its key, as a stranger would read it
    assert (family(cast.project, "refund_promised"), family(cast.project, "other")) == ("unsafe_action", "other")
    assert AuditEntry.objects.get().subject == "bucket refund_promised"
    assert define(project=cast.project, actor=Actor(cast.builder), wanted=Wanted("取消", "other")).key == "bucket_2"


def test_names_of_a_page_of_rows_are_one_statement(cast: Cast, refund: ProjectBucket) -> None:
    project = again(cast.project)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert [name_of(project, "refund_promised") for _ in range(50)]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"label": " "}, "label: expected between 1 and 60"),
        ({"label": "x" * 61}, "label: expected between 1 and 60"),
        ({"label": "a\u202eb"}, "label: expected between 1 and 60 visible"),
        ({"label": "Wrong Tool", "key": "mine"}, "label: a category 'Wrong Tool' already exists"),
        ({"label": "REFUND PROMISED", "key": "mine"}, "label: a category"),
        ({"label": "New one", "key": "wrong_tool"}, "key: 'wrong_tool' is taken"),
        ({"label": "New one", "key": "refund_promised"}, "key: 'refund_promised' is taken"),
        ({"label": "None"}, "key: 'none' is taken"),
        ({"label": "New one", "key": "New-One"}, "key: expected lower-case letters"),
        ({"parent": "refund_promised"}, "parent: 'refund_promised' is not built in"),
        ({"shortcut": "o"}, "shortcut: o already selects 'Refund promised'"),
        ({"shortcut": "p"}, "shortcut: expected one of a b h"),
        ({"shortcut": "1"}, "shortcut: expected one of a b h"),
        ({"shortcut": "ab"}, "shortcut: expected one of a b h"),
        ({"description": "a\0b"}, "description: "),
    ],
)
def test_what_does_not_fit_is_refused_by_field(
    cast: Cast, refund: ProjectBucket, fields: dict[str, Any], message: str
) -> None:
    key = fields.pop("key", "")
    wanted = Wanted(**{"label": "Another", "parent": "other", **fields})
    with pytest.raises(Refused) as caught:
        define(project=cast.project, actor=Actor(cast.builder), wanted=wanted, key=key)
    assert message in str(caught.value)


def test_a_change_is_audited_with_what_changed_and_the_same_again_is_none(cast: Cast, refund: ProjectBucket) -> None:
    changed = Wanted("Money promised", "unsafe_action", REFUND.description, "o")
    change(bucket=refund, actor=Actor(cast.builder), wanted=changed)
    change(bucket=refund, actor=Actor(cast.builder), wanted=changed)
    entry = AuditEntry.objects.get(action="failures.change_bucket")
    assert entry.data == {"label": "Money promised"}
    assert name_of(again(cast.project), "refund_promised") == "money promised"


def test_an_archived_bucket_is_not_offered_and_keeps_its_name(cast: Cast, build: Build, refund: ProjectBucket) -> None:
    old, new = build.trajectory(), build.trajectory()
    decide(trajectory=old, actor=Actor(cast.reviewer), bucket="refund_promised")
    archive(bucket=refund, actor=Actor(cast.builder))
    project = again(cast.project)
    assert "refund_promised" not in of_project(project)
    assert every(project)["refund_promised"].is_archived
    with pytest.raises(Refused, match="'refund_promised' is archived, expected one of format_error"):
        decide(trajectory=new, actor=Actor(cast.reviewer), bucket="refund_promised")
    decide(trajectory=old, actor=Actor(cast.reviewer), bucket="refund_promised", note="still so")
    other = define(project=cast.project, actor=Actor(cast.builder), wanted=REFUND, key="refund")
    with pytest.raises(Refused, match="label: a category"):
        archive(bucket=refund, actor=Actor(cast.builder), is_archived=False)
    archive(bucket=other, actor=Actor(cast.builder))
    archive(bucket=refund, actor=Actor(cast.builder), is_archived=False)
    assert "refund_promised" in of_project(again(cast.project))


def test_a_label_of_it_becomes_a_task_and_counts_in_its_family(cast: Cast, build: Build, refund: ProjectBucket) -> None:
    version = build.version()
    row = build.trajectory(version=version, agent=version.agent, answer="{")
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="refund_promised", corrected=RIGHT)
    task, _ = task_from(failure=failure, environment=build.environment(), actor=Actor(cast.builder))
    assert task.bucket == "refund_promised"
    other = build.trajectory(version=version, agent=version.agent)
    decide(trajectory=other, actor=Actor(cast.reviewer), bucket="unsafe_action")
    task_set = build.task_set()
    assert buckets_of(version, task_set) == {"refund_promised": 1, "unsafe_action": 1}
    assert dict(evidence_of(version, task_set, None).buckets) == {"unsafe_action": 2}
    project = again(cast.project)
    found = {
        count.bucket.key: count for count in bucket_counts.by_bucket(project, bucket_counts.period(project, 14))[0]
    }
    assert (found["refund_promised"].confirmed, found["refund_promised"].tasks) == (1, 1)


def test_it_is_chosen_by_its_key_in_the_queue_and_named_everywhere(
    cast: Cast, build: Build, sign_in: SignIn, refund: ProjectBucket
) -> None:
    row = build.trajectory()
    client = sign_in(cast.reviewer)
    page = page_of(client.get(f"/p/acme/failures/review/{row.trace_id}/"))
    assert 'value="refund_promised" data-key="o" data-key-label="Refund promised"' in page
    sent = {"bucket": "refund_promised", "then": "stay"}
    assert client.post(f"/p/acme/failures/review/{row.trace_id}/label/", sent).status_code == 302
    assert Trajectory.objects.get(pk=row.pk).label_bucket == "refund_promised"
    for path in ("?days=90", "trajectories/", "trajectories/?q=bucket:refund_promised", "failures/"):
        assert "efund promised" in page_of(client.get(f"/p/acme/{path}")), path
    assert "failure refund promised" in page_of(client.get(f"/p/acme/trajectories/{row.trace_id}/"))
    archive(bucket=refund, actor=Actor(cast.builder))
    page = page_of(client.get(f"/p/acme/failures/review/{row.trace_id}/"))
    assert 'value="refund_promised" checked> Refund promised' in page
    fresh = page_of(client.get(f"/p/acme/failures/review/{build.trajectory().trace_id}/"))
    assert 'value="refund_promised"' not in fresh
