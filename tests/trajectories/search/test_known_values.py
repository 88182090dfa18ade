"""The names that a project knows are those of its trajectories: none is missing, and what is deleted removed."""

import threading

import pytest
from django.db import connection, transaction

from flywheel.accounts.actors import Actor
from flywheel.trajectories.models import Item, Trajectory
from flywheel.trajectories.operations.deletion import delete
from flywheel.trajectories.search import known_values
from tests.conftest import Build, Cast
from tests.waiting import PATIENCE_S


def known(project: int, field: str = "tool_names") -> list[str]:
    return sorted(known_values.like(project, field, "%") or [])


def test_a_project_knows_the_names_that_its_trajectories_have(cast: Cast, build: Build) -> None:
    row = build.trajectory(tool_names=["mail.send", "mail.read"], tags=["vip"])
    build.trajectory(tool_names=["mail.send"])
    Trajectory.objects.filter(pk=row.pk).update(tags=["vip", "late"])
    project = cast.project.pk
    assert known(project) == ["mail.read", "mail.send"]
    assert known(project, "tags") == ["late", "vip"]
    assert known_values.like(project, "tool_names", "mail.r%") == ["mail.read"]
    assert known(project + 1) == []
    assert Item.objects.count() == 4


def test_what_no_trajectory_has_any_more_is_forgotten(cast: Cast, build: Build) -> None:
    row, other = build.trajectory(tool_names=["secret.tool", "mail.send"]), build.trajectory(tool_names=["mail.send"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "on_commit", lambda work: work())
        delete(trajectory=row, actor=Actor(cast.admin))
    assert list(Item.objects.values_list("name", "is_doubted")) == [("mail.send", False)]
    other.delete()
    assert known_values.forget() == 1
    assert not Item.objects.exists()


def test_too_many_names_are_not_listed(cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_values, "MOST", 2)
    build.trajectory(tool_names=["a.1", "a.2", "a.3"])
    assert known_values.like(cast.project.pk, "tool_names", "a.%") is None
    assert known_values.like(cast.project.pk, "tool_names", "%.2") == ["a.2"]


@pytest.mark.django_db(transaction=True)
def test_a_name_that_somebody_is_storing_is_not_forgotten(cast: Cast, build: Build) -> None:
    row = build.trajectory(tool_names=["mail.send"])
    begun, done = threading.Event(), threading.Event()

    def send() -> None:
        try:
            with transaction.atomic():
                build.trajectory(tool_names=["mail.send"])  # which is known, so it is not appended
                begun.set()
                done.wait(PATIENCE_S)
        finally:
            connection.close()

    thread = threading.Thread(target=send)
    thread.start()
    assert begun.wait(PATIENCE_S)
    Trajectory.objects.filter(pk=row.pk).delete()
    assert known_values.forget() == 0
    done.set()
    thread.join()
    assert known_values.forget() == 0
    assert known(cast.project.pk) == ["mail.send"]
    assert not Item.objects.filter(is_doubted=True).exists()
