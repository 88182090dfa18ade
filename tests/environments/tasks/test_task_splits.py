"""The split is drawn by source cluster: siblings never straddle, shares come out, reserved slices never train."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import Environment, Opening, Split, Task, TaskSet
from flywheel.environments.task_sets import task_selection
from flywheel.environments.task_sets.frozen_sets import SEALED_SOURCES, freeze, refuse_overlap
from flywheel.environments.tasks.task_splits import split_of
from tests.conftest import Build, Cast

names = st.text(max_size=40)


@given(
    cluster=names,
    slices=st.lists(names, min_size=2, max_size=6),
    reserved=st.lists(names, max_size=3),
    share=st.floats(0.05, 0.95),
)
def test_no_cluster_is_both_trained_on_and_held_out(
    cluster: str, slices: list[str], reserved: list[str], share: float
) -> None:
    splits = {
        split_of(cluster=cluster, slice=one, salt="acme/mail", held_out_share=share, reserved_slices=reserved)
        for one in slices
    }
    assert splits == {Split.HELD_OUT} or splits <= {Split.TRAIN, Split.SET_ASIDE}


@given(cluster=names, salt=names, share=st.floats(0.05, 0.95))
def test_a_larger_share_holds_out_what_a_smaller_one_did(cluster: str, salt: str, share: float) -> None:
    small, large = (
        split_of(cluster=cluster, slice="", salt=salt, held_out_share=s, reserved_slices=[])
        for s in (share, min(0.95, share + 0.1))
    )
    assert small == Split.TRAIN or large == Split.HELD_OUT


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_the_share_comes_out(share: float) -> None:
    drawn = [
        split_of(cluster=f"session-{n}", slice="", salt="acme/mail", held_out_share=share, reserved_slices=[])
        for n in range(20_000)
    ]
    assert abs(drawn.count(Split.HELD_OUT) / len(drawn) - share) < 0.015


def test_environments_draw_independently() -> None:
    def drawn(salt: str) -> list[Split]:
        return [
            split_of(cluster=f"c{n}", slice="", salt=salt, held_out_share=0.5, reserved_slices=[]) for n in range(4000)
        ]

    same = sum(a == b for a, b in zip(drawn("acme/mail"), drawn("acme/calendar"), strict=True))
    assert 0.45 < same / 4000 < 0.55


def test_a_reserved_slice_is_measured_or_set_aside_and_never_trained_on() -> None:
    drawn = {
        split_of(cluster=f"c{n}", slice="nudge", salt="s", held_out_share=0.4, reserved_slices=["nudge"])
        for n in range(200)
    }
    assert drawn == {Split.HELD_OUT, Split.SET_ASIDE}


@pytest.mark.django_db
def test_what_is_set_aside_is_in_no_task_set(cast: Cast, build: Build) -> None:
    for split in (Split.TRAIN, Split.HELD_OUT, Split.SET_ASIDE):
        build.task(split)
    made = freeze(environment=build.environment(), name="mail", actor=Actor(cast.builder))
    assert set(made.members.values_list("split", flat=True)) == {Split.TRAIN, Split.HELD_OUT}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("train", "held_out", "what"),
    [
        ({"cluster": "c"}, {"cluster": "c"}, "cluster"),
        ({"prompt": "Meet   BAKO on friday"}, {"prompt": "meet bako on\u200b friday."}, "prompt"),
    ],
)
def test_an_overlap_of_the_splits_is_refused(
    cast: Cast, build: Build, train: dict[str, Any], held_out: dict[str, Any], what: str
) -> None:
    build.task(Split.TRAIN, **train)
    build.task(Split.HELD_OUT, **held_out)
    with pytest.raises(Refused, match=f"have the same {what}"):
        freeze(environment=build.environment(), name="mail", actor=Actor(cast.builder))
    with pytest.raises(Refused):
        refuse_overlap(list(Task.objects.all()))


# The sealed part


@given(cluster=names, share=st.floats(0.05, 0.95), part=st.floats(0, 0.99))
def test_what_is_sealed_is_taken_from_what_is_held_out(cluster: str, share: float, part: float) -> None:
    with_it, without = (
        split_of(cluster=cluster, slice="", salt="s", held_out_share=share, reserved_slices=[], sealed_share=sealed)
        for sealed in (share * part, 0)
    )
    assert with_it == without or (without, with_it) == (Split.HELD_OUT, Split.SEALED)


def test_the_sealed_share_comes_out() -> None:
    drawn = [
        split_of(cluster=f"c{n}", slice="", salt="s", held_out_share=0.4, reserved_slices=[], sealed_share=0.1)
        for n in range(20_000)
    ]
    assert abs(drawn.count(Split.SEALED) / len(drawn) - 0.1) < 0.01
    assert abs(drawn.count(Split.HELD_OUT) / len(drawn) - 0.3) < 0.015


def begun(build: Build) -> Environment:
    """An environment with a task to train on and one that is held out."""
    for split in (Split.TRAIN, Split.HELD_OUT):
        build.task(split, prompt=f"One {split}", cluster=str(split))
    return build.environment()


def sealed_tasks(build: Build, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        build.task(Split.SEALED, prompt=f"Sealed {number}", cluster=f"sealed-{number}", digest=f"s{number}")


def members(task_set: TaskSet, split: str) -> int:
    return task_set.members.filter(split=split).count()


def test_fewer_sealed_sources_than_show_anything_wait_for_a_later_set(
    build: Build, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    environment = begun(build)
    sealed_tasks(build, SEALED_SOURCES - 1)
    first = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert [members(first, split) for split in (Split.TRAIN, Split.HELD_OUT, Split.SEALED)] == [1, 1, 0]
    Environment.objects.filter(pk=environment.pk).update(sealed_share=0.1)
    page = sign_in(cast.viewer).get(reverse("environments:environment", args=["acme", environment.name]))
    assert f"{SEALED_SOURCES - 1} of the {SEALED_SOURCES} that a set needs" in page.content.decode()
    assert cast.project.audit.get(action="environments.freeze").data["waiting"] == SEALED_SOURCES - 1
    sealed_tasks(build, 1, SEALED_SOURCES - 1)
    second = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert members(second, Split.SEALED) == SEALED_SOURCES


def test_what_was_opened_is_held_out_in_every_later_set_with_its_siblings(build: Build, cast: Cast) -> None:
    environment = begun(build)
    sealed_tasks(build, SEALED_SOURCES)
    first = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    ledger.opened(task_set=first, kind=Opening.Kind.SEALED, subject="eval 5", actor=Actor(cast.approver))
    build.task(Split.SEALED, prompt="A sibling", cluster="sealed-0", digest="sibling")
    second = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert [members(second, split) for split in (Split.HELD_OUT, Split.SEALED)] == [1 + SEALED_SOURCES + 1, 0]
    sealed_tasks(build, SEALED_SOURCES, SEALED_SOURCES)
    third = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert Task.objects.filter(split=Split.SEALED).count() == SEALED_SOURCES, "what was opened is sealed no more"
    assert [members(third, split) for split in (Split.HELD_OUT, Split.SEALED)] == [2 + SEALED_SOURCES, SEALED_SOURCES]
    assert members(first, Split.SEALED) == SEALED_SOURCES


def test_a_request_that_is_trained_on_and_sealed_is_refused(build: Build, cast: Cast) -> None:
    build.task(Split.TRAIN, prompt="Meet Bako", cluster="a", digest="a")
    build.task(Split.SEALED, prompt="Meet Bako", cluster="b", digest="b")
    with pytest.raises(Refused, match=r"\(sealed\) and t-\d+ \(train\) have the same prompt"):
        refuse_overlap(list(Task.objects.all()))


def test_what_waits_is_guarded_as_what_is_in_the_set(build: Build, cast: Cast) -> None:
    environment = build.environment()
    build.task(Split.TRAIN, prompt="Meet Bako", cluster="a", digest="a")
    build.task(Split.HELD_OUT, prompt="Another", cluster="b", digest="b")
    build.task(Split.SEALED, prompt="Meet Bako", cluster="c", digest="c")
    with pytest.raises(Refused, match="have the same prompt"):
        freeze(environment=environment, name="mail", actor=Actor(cast.builder))


def test_a_held_out_task_stays_where_a_waiting_one_asks_the_same(build: Build, cast: Cast) -> None:
    environment = build.environment()
    build.task(Split.SEALED, prompt="Meet Bako", cluster="c", digest="c")
    build.task(Split.HELD_OUT, prompt="Meet Bako", cluster="b", digest="b")
    build.task(Split.TRAIN, prompt="Another", cluster="a", digest="a")
    frozen = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    assert members(frozen, Split.HELD_OUT) == 1


def test_chosen_tasks_that_would_wait_are_refused(build: Build, cast: Cast) -> None:
    chosen = [build.task(Split.HELD_OUT, prompt="One", cluster="a", digest="a")]
    chosen.append(build.task(Split.SEALED, prompt="Two", cluster="b", digest="b"))
    with pytest.raises(Refused, match="is sealed, and fewer than 10 sealed sources show nothing: leave it out"):
        freeze(environment=build.environment(), name="golden", actor=Actor(cast.builder), tasks=chosen)


def test_what_was_opened_can_be_frozen_while_the_others_wait(build: Build, cast: Cast) -> None:
    environment = begun(build)
    sealed_tasks(build, SEALED_SOURCES)
    first = freeze(environment=environment, name="mail", actor=Actor(cast.builder))
    ledger.opened(task_set=first, kind=Opening.Kind.SEALED, subject="candidate 5", actor=Actor(cast.approver))
    sealed_tasks(build, 3, SEALED_SOURCES)
    chosen = list(task_selection.to_freeze(environment, environment.tasks.all()))
    assert len(chosen) == 2 + SEALED_SOURCES
    second = freeze(environment=environment, name="mail", actor=Actor(cast.builder), tasks=chosen)
    assert [members(second, split) for split in (Split.HELD_OUT, Split.SEALED)] == [1 + SEALED_SOURCES, 0]
