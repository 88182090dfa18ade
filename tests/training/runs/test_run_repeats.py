"""Runs that are repeated: the same to the letter, under other seeds, refused where something is gone."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Artifact
from flywheel.core import recipes
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused, Stale
from flywheel.training.launch.run_control import MAX_SEED
from flywheel.training.models import TrainingRun
from flywheel.training.runs.run_repeats import repeat, repeat_with_other_seeds, repeats_of
from tests.training.conftest import Room
from tests.training.pages.test_runs import HERE, SignIn, text

pytestmark = pytest.mark.django_db


def finished(room: Room, state: str = State.SUCCEEDED, **fields: Any) -> TrainingRun:
    run = room.launch(**fields)
    TrainingRun.objects.filter(pk=run.pk).update(state=state)
    run.refresh_from_db()
    return run


def again(room: Room, run: TrainingRun, **fields: Any) -> TrainingRun:
    return repeat(run, key=uuid.uuid4(), actor=Actor(room.cast.trainer), **fields)[0]


def made(room: Room, run: TrainingRun, weights: str, config: str = "c") -> None:
    """The version that the run made, of files of these digests."""
    manifest = {"model.safetensors": {"sha256": weights, "size": 1}, "config.json": {"sha256": config, "size": 1}}
    artifact = Artifact.objects.create(digest=uuid.uuid4().hex * 2, manifest=manifest, kind="model", size=2)
    run.produced = room.build.version(weights=artifact)
    run.save()


def test_a_repeat_is_the_same_to_the_letter(room: Room) -> None:
    run = finished(room, algorithm="grpo", seed=7, settings={"steps": 9}, tuning={"mode": "lora", "rank": 4})
    other = again(room, run)
    same = ("base", "dataset", "task_set", "algorithm", "tuning", "settings", "seed", "spec_digest", "total")
    assert {name: getattr(other, name) for name in same} == {name: getattr(run, name) for name in same}
    assert (other.state, other.override_reason) == (State.QUEUED, "a test")


def test_a_repeat_has_the_same_teacher_or_is_refused(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Artifact.objects.create(digest="b" * 64, manifest={}, kind="model", size=2_800_000)
    run = finished(room, algorithm="distillation", teacher=room.build.version(weights=weights))
    assert (again(room, run).teacher, again(room, run).spec_digest) == (run.teacher, run.spec_digest)
    monkeypatch.setattr("flywheel.agents.artifacts.missing", lambda it: ["config.json"] if it == weights else [])
    with pytest.raises(Refused, match="assistant@2 is missing from the storage") as refused:
        again(room, run)
    assert refused.value.field == "teacher"


def test_a_setting_that_came_later_stays_away(room: Room) -> None:
    run = finished(room, algorithm="grpo")
    run.settings.pop("unsafe_penalty")
    run.save()
    assert "unsafe_penalty" in recipes.defaults("grpo")
    assert again(room, run).settings == run.settings


def test_a_setting_that_went_is_named(room: Room) -> None:
    run = finished(room)
    run.settings["verbosity"] = 3
    run.save()
    with pytest.raises(Refused, match="is no setting of SFT") as refused:
        again(room, run)
    assert refused.value.field == "settings.verbosity"


def test_a_key_repeats_once(room: Room) -> None:
    run, key = finished(room), uuid.uuid4()
    first, is_new = repeat(run, key=key, actor=Actor(room.cast.trainer))
    second, is_newer = repeat(run, key=key, actor=Actor(room.cast.trainer))
    assert (first.pk, is_new, is_newer) == (second.pk, True, False)


def test_a_run_that_is_not_over_is_not_repeated(room: Room) -> None:
    with pytest.raises(Stale, match="is queued; repeat it when it has finished"):
        again(room, room.launch())


def test_lost_weights_and_lost_rows_are_named(room: Room, settings: Any) -> None:
    run = finished(room)
    assert run.base.weights is not None
    run.base.weights.manifest = {"model.safetensors": {"sha256": "f" * 64, "size": 1}}
    with pytest.raises(Refused, match=r"model.safetensors of .* is missing from the storage") as refused:
        again(room, run)
    assert refused.value.field == "base"
    run.base.weights.manifest = {}
    home: Path = settings.HOME
    (home / "artifacts" / run.dataset.file).unlink()
    with pytest.raises(Refused, match=r"the rows of .* are missing from the storage") as refused:
        again(room, run)
    assert refused.value.field == "dataset"
    assert TrainingRun.objects.count() == 1


def test_repeats_know_each_other_and_whether_their_weights_are_the_same(room: Room) -> None:
    run = finished(room)
    other, seeded = again(room, run), again(room, run, seed=5)
    assert [(each.run, each.is_earlier, each.has_same_weights) for each in repeats_of(other)] == [(run, True, None)]
    assert repeats_of(seeded) == []
    made(room, run, "a", config="one path")
    made(room, other, "a", config="another path")
    assert [(each.run, each.has_same_weights) for each in repeats_of(run)] == [(other, True)]
    made(room, other, "b")
    assert [(each.is_earlier, each.has_same_weights) for each in repeats_of(run)] == [(False, False)]


def test_other_seeds_are_those_that_no_run_like_it_has(room: Room) -> None:
    run = finished(room)
    again(room, run, seed=2)
    finished(room, seed=3, settings={"steps": 9})
    key, actor = uuid.uuid4(), Actor(room.cast.trainer)
    runs = repeat_with_other_seeds(run, number=3, key=key, actor=actor)
    assert [each.seed for each in runs] == [3, 4, 5]
    assert repeat_with_other_seeds(run, number=3, key=key, actor=actor) == runs


def test_after_the_largest_seed_comes_zero(room: Room) -> None:
    run = finished(room, seed=MAX_SEED - 1)
    runs = repeat_with_other_seeds(run, number=3, key=uuid.uuid4(), actor=Actor(room.cast.trainer))
    assert [each.seed for each in runs] == [MAX_SEED, 0, 1]


def test_every_repeat_is_listed(room: Room) -> None:
    run = finished(room)
    others = [again(room, run) for _ in range(7)]
    assert [each.run for each in repeats_of(run)] == others


def test_a_click_repeats_a_finished_run_and_a_second_changes_nothing(room: Room, sign_in: SignIn) -> None:
    run, client = finished(room), sign_in(room.cast.trainer)
    address, sent = f"{HERE}runs/{run.pk}/repeat/", {"key": str(uuid.uuid4())}
    first, second = client.post(address, sent), client.post(address, sent)
    other = TrainingRun.objects.exclude(pk=run.pk).get()
    assert first.headers["Location"] == second.headers["Location"] == f"{HERE}runs/{other.pk}/"
    assert f'Repeats <a href="{HERE}runs/{run.pk}/">r-{run.pk}</a>' in " ".join(
        text(client.get(first.headers["Location"])).split()
    )


def test_a_click_repeats_it_with_other_seeds_and_compares_them(room: Room, sign_in: SignIn) -> None:
    run, client = finished(room), sign_in(room.cast.trainer)
    address = f"{HERE}runs/{run.pk}/repeat/"
    response = client.post(address, {"key": str(uuid.uuid4()), "seeds": "2"})
    runs = TrainingRun.objects.order_by("pk")
    assert [each.seed for each in runs] == [1, 2, 3]
    assert response.headers["Location"] == f"{HERE}compare/?" + "&".join(f"run={each.pk}" for each in runs)
    for number in ("1", "6", "many", ""):
        page = text(client.post(address, {"seeds": number}, follow=True))
        assert "Not repeated: choose 2 to 5 other seeds." in page
    assert TrainingRun.objects.count() == 3


def test_what_is_refused_is_said_on_the_page(room: Room, sign_in: SignIn) -> None:
    run, client = room.launch(), sign_in(room.cast.trainer)
    page = text(client.post(f"{HERE}runs/{run.pk}/repeat/", follow=True))
    assert f"Not repeated: {run} is queued; repeat it when it has finished." in page
    assert sign_in(room.cast.builder).post(f"{HERE}runs/{run.pk}/repeat/").status_code == 403
    assert sign_in(room.cast.stranger).post(f"{HERE}runs/{run.pk}/repeat/").status_code == 404
