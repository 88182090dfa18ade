"""The judge killed before each of its writes: the next look ends where one that nobody killed would have ended."""

import os
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Notice
from flywheel.agents.models import Agent, Split, SplitUnit
from flywheel.agents.splits import open_splits
from flywheel.promotions.models import Candidate, Promotion, Ramp, RampChange
from flywheel.promotions.ramps import ramp_judging, ramp_moves
from tests.conftest import Build, Cast
from tests.promotions.ramps.conftest import Met, met_in
from tests.promotions.ramps.test_ramp_judging import sessions

POINTS = int(os.environ.get("FLYWHEEL_TEST_KILLS", "12"))
"""Writes of a look before which it is killed, spread over all of them."""
WRITES = ("INSERT", "UPDATE", "DELETE")


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


class Undone(Exception):
    """Gives everything back to how it stood before."""


def writes(work: Callable[[], None], kill_at: int | None = None) -> int:
    """How many writes the work makes; killed before the one of this number, from 0."""
    count = 0

    def counted(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        nonlocal count
        if str(sql).lstrip().startswith(WRITES):
            if count == kill_at:
                raise Killed
            count += 1
        return execute(sql, params, many, context)

    with connection.execute_wrapper(counted):
        try:
            work()
        except Killed:
            assert kill_at is not None
    return count


def state(ramp: Ramp) -> dict[str, Any]:
    """All that a way back, a stage or a promotion leaves behind."""
    found = Ramp.objects.select_related("split", "candidate").get(pk=ramp.pk)
    return {
        "ramp": (found.state, found.stage, found.generation, found.judgement),
        "split": (found.split.share, found.split.closed_at is None),
        "live": Agent.objects.get(pk=ramp.agent_id).live_id,
        "candidate": found.candidate.state,
        "units": list(SplitUnit.objects.order_by("pk").values_list("number", "wealth", "mixed")),
        "changes": list(
            RampChange.objects.order_by("pk").values_list("generation", "state", "stage", "share", "reason")
        ),
        "promotions": list(Promotion.objects.order_by("pk").values_list("agent", "before", "after")),
        "notices": Notice.objects.count(),
        "audit": list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)),
    }


def check_meanwhile(ramp: Ramp, allowed: set[int]) -> None:
    """After a kill: nobody meets a candidate that was taken back, and nothing went further than was approved."""
    split, now = Split.objects.get(), Ramp.objects.get(pk=ramp.pk)
    if now.state == "taken_back" or now.finding.get("signals"):
        assert split.share == 0
    assert split.share in allowed
    live = Agent.objects.get(pk=ramp.agent_id).live_id
    assert (
        (live == ramp.candidate.version_id)
        == (now.state == "finished")
        == Promotion.objects.filter(after=ramp.candidate.version_id).exists()
    )


def check_holdback(ramp: Ramp, allowed: set[int]) -> None:
    """After a kill: whatever is live, nobody meets a version whose harm was found."""
    split, now = Split.objects.get(), Ramp.objects.get(pk=ramp.pk)
    agent = Agent.objects.get(pk=ramp.agent_id)
    back = open_splits.taken_back(agent)
    answers = back.live if back else agent.live
    is_harmful = now.state == "taken_back" or bool(now.finding.get("signals"))
    assert answers == (ramp.candidate.baseline if is_harmful else ramp.candidate.version)
    assert split.share in allowed
    assert (split.share == 0) == is_harmful


def killed_everywhere(
    ramp: Ramp, look: Callable[[], None], allowed: set[int], check: Callable[[Ramp, set[int]], None] = check_meanwhile
) -> dict[str, Any]:
    wanted: dict[str, Any] = {}

    def undone(kill_at: int | None) -> int:
        count = 0
        ramp_judging._went_on.clear()  # as in a new process
        try:
            with transaction.atomic():
                count = writes(look, kill_at)
                if kill_at is None:
                    wanted.update(state(ramp))
                else:
                    check(ramp, allowed)
                    ramp_judging._went_on.clear()
                    look()
                    assert state(ramp) == wanted, f"killed before write {kill_at}"
                raise Undone
        except Undone:
            return count

    total = undone(None)
    step = max(1, total // POINTS)
    assert total >= 3
    for kill_at in range(0, total, step):
        undone(kill_at)
    return wanted


def test_killed_anywhere_on_the_way_back(ramp: Ramp, met: Met) -> None:
    sessions(met, 60, live=0.0, candidate=1.0, share=0.25)
    ended = killed_everywhere(ramp, ramp_judging.look, {0, 2500})
    assert ended["ramp"][0] == "taken_back"
    assert ended["split"] == (0, False)


def test_killed_anywhere_between_two_stages(ramp: Ramp, met: Met) -> None:
    sessions(met, 10, live=0.0, candidate=0.0, share=0.25)
    ended = killed_everywhere(ramp, ramp_judging.look, {2500, 5000})
    assert (ended["ramp"][1], ended["split"]) == (1, (5000, True))


def test_killed_anywhere_while_it_goes_live(ramp: Ramp, met: Met) -> None:
    sessions(met, 10, live=0.0, candidate=0.0, share=0.25)
    ramp_judging.look()
    sessions(met, 120, live=0.95, candidate=0.0)
    ended = killed_everywhere(ramp, ramp_judging.look, {0, 5000})
    assert (ended["ramp"][0], ended["live"]) == ("finished", ramp.candidate.version_id)
    assert len(ended["promotions"]) == 2, "the first, and this one"


def test_killed_anywhere_on_the_way_back_from_a_holdback(held: Ramp, build: Build) -> None:
    sessions(met_in(build, held), 120, live=0.0, candidate=1.0, share=0.8)
    ended = killed_everywhere(held, ramp_judging.look, {0, 9500}, check_holdback)
    assert (ended["ramp"][0], ended["split"]) == ("taken_back", (0, False))
    assert ended["live"] == held.candidate.baseline_id
    assert [after for *_, after in ended["promotions"]][-1] == held.candidate.baseline_id


def test_killed_anywhere_while_a_person_takes_it_back(ramp: Ramp, cast: Cast) -> None:
    def take_back() -> None:
        now = Ramp.objects.select_related("split__agent", "candidate").get(pk=ramp.pk)
        if now.is_open:  # a person whose click was lost clicks again
            ramp_moves.take_back(ramp=now, actor=Actor(cast.approver), reason="enough", generation=now.generation)

    ended = killed_everywhere(ramp, take_back, {0, 2500})
    assert (ended["ramp"][0], ended["split"]) == ("taken_back", (0, False))
    assert Candidate.objects.get(pk=ramp.candidate_id).state != "taken_back", "all of it was undone"
