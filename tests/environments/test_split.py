"""The split is drawn by source cluster: siblings never straddle, shares come out, reserved slices never train."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.environments.make import CannotMake, freeze, refuse_overlap
from flywheel.environments.models import Split, Task
from flywheel.environments.split import split_of
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
    made = freeze(environment=build.environment(), name="mail", actor=cast.builder)
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
    with pytest.raises(CannotMake, match=f"have the same {what}"):
        freeze(environment=build.environment(), name="mail", actor=cast.builder)
    with pytest.raises(CannotMake):
        refuse_overlap(list(Task.objects.all()))
