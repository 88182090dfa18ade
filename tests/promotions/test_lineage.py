"""Where a trajectory came from and what was made of it: all of it, each a link that leads somewhere, boundedly."""

from collections.abc import Callable
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.edge.jobs import State
from flywheel.environments.models import TaskSetMember
from flywheel.evals.models import Result
from flywheel.failures.labels.decisions import decide
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, make
from flywheel.promotions.lineage import lineage_of
from flywheel.promotions.models import Candidate
from flywheel.training.models import Dataset, TrainingRun
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import Build, Cast

SignIn = Callable[[User], Client]


def used(cast: Cast, build: Build, candidate: Candidate, row: Trajectory) -> TrainingRun:
    """The trajectory in a queue, decided, made into the first task of the candidate's set, trained on, promoted."""
    queue = make(project=cast.project, actor=Actor(cast.builder), wanted=Wanted(name="odd <b>ones</b>"))
    intake.add(queue=queue, keys=[row.pk], actor=Actor(cast.builder))
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    task_set = candidate.version_eval.task_set
    for split in ("held_out", "train"):
        task = TaskSetMember.objects.filter(task_set=task_set, split=split).order_by("task__number")[0].task
        type(task).objects.filter(pk=task.pk).update(source=row)
    dataset = Dataset.objects.create(
        project=cast.project,
        name="mail-sft",
        version=1,
        kind="sft",
        task_set=task_set,
        digest="d" * 64,
        rows=2,
        recipe={},
        file="x",
        created_by=cast.trainer,
    )
    run = TrainingRun.objects.create(
        project=cast.project,
        created_by=cast.trainer,
        base=candidate.baseline,
        dataset=dataset,
        task_set=task_set,
        algorithm="sft",
        settings={},
        tuning={"mode": "full"},
        spec_digest="s" * 64,
        state=State.SUCCEEDED,
        produced=candidate.version,
        finished_at=timezone.now(),
    )
    Candidate.objects.filter(pk=candidate.pk).update(run=run)
    return run


def test_all_that_was_made_of_it_is_told_room_by_room(
    cast: Cast, build: Build, candidate: Candidate, sign_in: SignIn, key: Any, client: Client
) -> None:
    row = build.trajectory(version=candidate.baseline)
    run = used(cast, build, candidate, row)
    found = lineage_of(Trajectory.objects.select_related("project", "version__agent").get(pk=row.pk))
    assert [(each.kind, each.label) for each in found.came_from] == [("version", str(candidate.baseline))]
    task_set = candidate.version_eval.task_set
    assert [(each.kind, each.label, each.detail) for each in found.made_of_it] == [
        ("queue", "odd <b>ones</b>", "done"),
        ("decision", "wrong tool", "by reviewer"),
        *(("task", str(task), task.split) for task in row.tasks.order_by("-pk")),
        ("task set", str(task_set), ""),
        ("eval run", str(candidate.baseline_eval), f"2 rollouts of its tasks by {candidate.baseline}"),
        ("eval run", str(candidate.version_eval), f"2 rollouts of its tasks by {candidate.version}"),
        ("dataset", "mail-sft@1", "demonstrations"),
        ("training run", str(run), "succeeded"),
        ("version", str(candidate.version), f"of {run}"),
        ("candidate", str(candidate.version), "waiting for an approver"),
    ]
    admin = sign_in(cast.admin)
    for each in (*found.came_from, *found.made_of_it):
        if each.kind not in ("dataset", "training run"):  # whose files this test has not made
            assert admin.get(each.url).status_code == 200, each
    page = sign_in(cast.viewer).get(reverse("promotions:lineage", args=["acme", row.trace_id])).content.decode()
    assert "odd &lt;b&gt;ones&lt;/b&gt;" in page
    assert f'href="{reverse("training:run", args=["acme", run.pk])}"' in page
    said = client.get(f"/api/v1/trajectories/{row.trace_id}/lineage", headers=key("read")).json()
    assert [each["label"] for each in said["made_of_it"]] == [each.label for each in found.made_of_it]
    assert (
        reverse("promotions:lineage", args=["acme", row.trace_id])
        in admin.get(reverse("trajectories:detail", args=["acme", row.trace_id])).content.decode()
    )


def test_a_rollout_says_which_task_and_run_it_was(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory(source=Source.ROLLOUT, version=candidate.version)
    result = Result.objects.filter(run=candidate.version_eval)[0]
    Result.objects.filter(pk=result.pk).update(trajectory=row)
    Dataset.objects.create(
        project=cast.project,
        name="demos",
        version=1,
        kind="sft",
        task_set=candidate.version_eval.task_set,
        digest="e" * 64,
        rows=2,
        recipe={"eval_run": candidate.version_eval_id},
        file="x",
        created_by=cast.trainer,
    )
    found = lineage_of(row)
    assert [each.kind for each in found.came_from] == ["version", "task", "eval run"]
    assert [(each.kind, each.label) for each in found.made_of_it] == [("dataset", "demos@1")]


def test_of_what_nothing_was_made_little_is_asked(cast: Cast, build: Build) -> None:
    row = build.trajectory()
    with CaptureQueriesContext(connection) as captured:
        found = lineage_of(row)
    assert found.made_of_it == []
    assert len(captured) <= 5


def test_a_held_out_task_is_never_said_to_be_trained_on(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory()
    used(cast, build, candidate, row)
    row.tasks.filter(split="train").update(source=None)
    kinds = {origin.kind for origin in lineage_of(row).made_of_it}
    assert "task set" in kinds
    assert kinds.isdisjoint({"dataset", "training run", "version", "candidate"})
