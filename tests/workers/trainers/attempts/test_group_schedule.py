"""When groups begin and are learnt from, whatever takes how long and whenever it is killed."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.trainers.attempts.group_schedule import GroupSchedule


@settings(max_examples=1000, deadline=None)
@given(st.integers(1, 4), st.integers(0, 4), st.integers(1, 6), st.randoms(use_true_random=False))
def test_no_bound_is_exceeded_and_each_group_is_learnt_from_once(
    size: int, bound: int, steps: int, chance: random.Random
) -> None:
    carried_out(size, bound, steps, chance)


def carried_out(size: int, bound: int, steps: int, chance: random.Random) -> int:
    """Carry a schedule out under the worst delays: any group ends before any other, in an update or when it is waited
    for; kills in between. The age of the oldest group that was learnt from."""
    draw, oldest = chance.random, 0
    schedule = GroupSchedule(size, bound, size * steps)
    under_way: list[int] = []
    begun: dict[int, int] = {}
    ended: dict[int, int] = {}
    """Groups, each with the newest version that wrote a token of it."""
    learnt: dict[int, int] = {}
    """Groups, each with the version that learnt from it."""

    def end_one() -> None:
        group = under_way.pop(int(draw() * len(under_way)))
        ended[group] = chance.randint(begun[group], version)
        schedule.end(group)

    while schedule.version < steps:
        new = schedule.begin()
        under_way += new
        begun |= dict.fromkeys(new, schedule.version)
        version = schedule.version
        assert schedule.begin() == [], "all that may begin has begun"
        while not (taken := schedule.take()):
            assert under_way, "it waits for something"
            end_one()
        assert len(taken) == size
        assert all(version - begun[group] <= bound for group in taken)
        oldest = max(oldest, *[version - begun[group] for group in taken])
        assert not learnt.keys() & set(taken)
        learnt |= dict.fromkeys(taken, version)
        while under_way and draw() < 0.5:
            end_one()
        if draw() > 0.9:  # killed, and resumed from a checkpoint some updates back
            back = chance.randint(max(0, schedule.version - 3), schedule.version)
            learnt = {group: at for group, at in learnt.items() if at < back}
            schedule = GroupSchedule(size, bound, size * steps, back, set(learnt))
            ended = {group: newest for group, newest in ended.items() if newest <= back}
            waiting = {group: begun[group] for group in ended if group not in learnt}
            assert sorted(schedule.take_up(waiting)) == sorted(waiting), "nothing that can be learnt from is lost"
            begun = {group: begun[group] for group in ended}
            under_way = []
    assert sorted(learnt) == list(range(size * steps))
    assert not under_way, "nothing was sampled for nothing"
    return oldest


def test_a_slow_group_is_overtaken_until_it_is_due() -> None:
    schedule = GroupSchedule(size=1, bound=2, total=6)
    assert schedule.begin() == [0, 1, 2]
    for quick in (1, 2):
        schedule.end(quick)
        assert schedule.take() == [quick]
        schedule.begin()
    schedule.end(3)
    assert schedule.take() == [], "group 0 is two updates old"
    schedule.end(0)
    assert schedule.take() == [0]


def test_without_staleness_sampling_and_learning_take_turns() -> None:
    schedule = GroupSchedule(size=2, bound=0, total=4)
    assert schedule.begin() == [0, 1]
    schedule.end(1)
    assert schedule.take() == []
    schedule.end(0)
    assert schedule.take() == [0, 1]
    assert schedule.begin() == [2, 3]
