"""Train tasks that are kept to validate on: whole sources, never all of them, and none that a trainer cannot ask."""

import pytest

from flywheel.environments.models import Split
from flywheel.training.launch.validation_split import choose_tasks, named_tasks, validation_tasks
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


def test_whole_sources_are_kept_and_the_same_for_a_seed(room: Room) -> None:
    task_set = room.build.task_set(name="many", train=24, held_out=4)
    train = list(task_set.tasks.filter(split=Split.TRAIN).order_by("pk"))
    for place, task in enumerate(train):
        task.cluster = f"source {place // 2}"
        task.save(update_fields=["cluster"])
    kept = choose_tasks(task_set, 0.25, seed=1)
    clusters = {task.cluster for task in train if task.pk in kept}
    assert len(clusters) == 3
    assert {task.pk for task in train if task.cluster in clusters} == set(kept)
    assert choose_tasks(task_set, 0.25, seed=1) == kept
    assert any(choose_tasks(task_set, 0.25, seed=seed) != kept for seed in range(2, 6))


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.5, 3)])
def test_at_least_one_source_and_never_all(room: Room, share: float, count: int) -> None:
    assert len(choose_tasks(room.task_set, share, seed=1)) == count
    alone = room.build.task_set(name="alone", train=1, held_out=2)
    assert choose_tasks(alone, share, seed=1) == []


def test_a_run_keeps_train_tasks_and_no_held_out_one(room: Room) -> None:
    plain, run = room.launch(), room.launch(settings={"validation_share": 0.5})
    assert validation_tasks(plain) == []
    kept = {task.id for task in validation_tasks(run)}
    assert len(kept) == 3
    assert kept < {task.id for task in named_tasks(run, Split.TRAIN)}
    assert not kept & {task.id for task in named_tasks(run, Split.HELD_OUT)}
