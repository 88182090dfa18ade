import threading
from typing import Any

import pytest
from django.db import IntegrityError, InternalError, connection, transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.agents.models import Agent, Version
from flywheel.edge.refusals import Refused, Stale
from flywheel.evals.serving import loaded_adapters
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import give_reason, promote, reject, roll_back
from flywheel.promotions.models import Candidate, LateReason, Promotion
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated


def test_an_approver_promotes_what_somebody_else_launched(candidate: Candidate, cast: Cast) -> None:
    before = candidate.agent.generation
    promotion = promote(candidate=candidate, actor=Actor(cast.approver), reason="clearly better", generation=before)
    agent = Agent.objects.get(pk=candidate.agent_id)
    assert agent.live == candidate.version
    assert agent.generation == before + 1
    assert (promotion.before, promotion.after, promotion.against_the_gate) == (candidate.baseline, agent.live, False)
    assert Candidate.objects.get(pk=candidate.pk).state == "promoted"
    entry = AuditEntry.objects.get(action="promotions.promote")
    assert (entry.actor, entry.reason) == (cast.approver, "clearly better")


def test_nobody_approves_what_they_launched(candidate: Candidate, cast: Cast) -> None:
    with pytest.raises(Refused, match="you launched"):
        promote(candidate=candidate, actor=Actor(cast.trainer), reason="mine", generation=candidate.agent.generation)
    assert Agent.objects.get(pk=candidate.agent_id).live == candidate.baseline


def test_the_database_itself_wants_four_eyes(candidate: Candidate, cast: Cast) -> None:
    with pytest.raises(IntegrityError, match="four_eyes"), transaction.atomic():
        Promotion.objects.create(
            agent=candidate.agent,
            kind="promote",
            generation=9,
            after=candidate.version,
            candidate=candidate,
            proposed_by=cast.trainer,
            approved_by=cast.trainer,
            reason="x",
        )


def test_a_page_that_is_out_of_date_moves_nothing(candidate: Candidate, cast: Cast) -> None:
    with pytest.raises(Stale):
        promote(
            candidate=candidate, actor=Actor(cast.approver), reason="late", generation=candidate.agent.generation - 1
        )
    assert Promotion.objects.filter(kind="promote").count() == 0
    assert Candidate.objects.get(pk=candidate.pk).state == "waiting"


def test_a_reason_is_wanted(candidate: Candidate, cast: Cast) -> None:
    for act in (
        lambda: promote(
            candidate=candidate, actor=Actor(cast.approver), reason=" ", generation=candidate.agent.generation
        ),
        lambda: reject(candidate=candidate, actor=Actor(cast.approver), reason=""),
    ):
        with pytest.raises(Refused, match="reason"):
            act()


def test_what_the_gate_does_not_call_eligible_needs_an_override_and_is_marked(
    build: Build, agent: Agent, evaluated: Evaluated, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_set = build.task_set(train=2, held_out=12)
    assert agent.live is not None
    same = build.version(agent, system_prompt="Another prompt.")
    row = propose(
        version_eval=evaluated(same, task_set, passing=4),
        baseline_eval=evaluated(agent.live, task_set, passing=4),
        actor=Actor(cast.trainer),
    )
    assert row.verdict == "not_shown"
    generation = agent.generation
    asked = []

    def hand_over(version: Version, **_: Any) -> tuple[str, str]:
        asked.append(version)
        return "", ""

    monkeypatch.setattr(loaded_adapters, "hand_over", hand_over)
    with pytest.raises(Refused, match="not shown"):
        promote(candidate=row, actor=Actor(cast.approver), reason="anyway", generation=generation)
    with pytest.raises(Stale):
        promote(candidate=row, actor=Actor(cast.approver), reason="anyway", generation=generation - 1, override=True)
    assert not asked, "what is refused anyway asks no server"
    promotion = promote(
        candidate=row, actor=Actor(cast.approver), reason="anyway", generation=generation, override=True
    )
    assert promotion.against_the_gate
    assert asked == [same]


def test_changed_evidence_is_refused(candidate: Candidate, cast: Cast) -> None:
    candidate.report["decision"]["words"] = "Eligible: trust me"
    candidate.save()
    with pytest.raises(Refused, match="changed since the eval"):
        promote(candidate=candidate, actor=Actor(cast.approver), reason="x", generation=candidate.agent.generation)


def test_a_rollback_is_a_new_move_to_a_version_that_was_live(candidate: Candidate, cast: Cast) -> None:
    promote(candidate=candidate, actor=Actor(cast.approver), reason="better", generation=candidate.agent.generation)
    agent = Agent.objects.get(pk=candidate.agent_id)
    move = roll_back(
        agent=agent, to=candidate.baseline, actor=Actor(cast.approver), reason="complaints", generation=agent.generation
    )
    agent.refresh_from_db()
    assert agent.live == candidate.baseline
    assert (move.kind, move.before) == ("rollback", candidate.version)
    assert Promotion.objects.filter(agent=agent).count() == 3


def test_the_reason_of_a_rollback_follows_once_and_never_changes(candidate: Candidate, cast: Cast) -> None:
    approver = Actor(cast.approver)
    first = promote(candidate=candidate, actor=approver, reason="better", generation=candidate.agent.generation)
    agent = Agent.objects.get(pk=candidate.agent_id)
    move = roll_back(agent=agent, to=candidate.baseline, actor=approver, generation=agent.generation)
    assert move.why == ""
    with pytest.raises(Refused, match="say why"):
        give_reason(promotion=move, actor=approver, reason=" ")
    give_reason(promotion=move, actor=approver, reason=" complaints ")
    assert Promotion.objects.get(pk=move.pk).why == "complaints"
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.reason) == ("promotions.give_reason", "complaints")
    for told in (first, move):
        with pytest.raises(Stale, match="given already"):
            give_reason(promotion=told, actor=approver, reason="another")
    with pytest.raises(IntegrityError, match="its rows never change"), transaction.atomic():
        LateReason.objects.update(text="another")


def test_a_version_that_was_never_live_is_no_way_back(build: Build, agent: Agent, cast: Cast) -> None:
    never = build.version(agent, system_prompt="never live")
    with pytest.raises(Refused, match="never live"):
        roll_back(agent=agent, to=never, actor=Actor(cast.approver), reason="x", generation=agent.generation)


def test_a_promotion_voids_the_other_waiting_candidates(
    build: Build, candidate: Candidate, evaluated: Evaluated, cast: Cast
) -> None:
    other = propose(
        version_eval=evaluated(
            build.version(candidate.agent, system_prompt="third"), candidate.version_eval.task_set, passing=18
        ),
        baseline_eval=candidate.baseline_eval,
        actor=Actor(cast.trainer),
    )
    promote(candidate=candidate, actor=Actor(cast.approver), reason="better", generation=candidate.agent.generation)
    other.refresh_from_db()
    assert other.state == "void"
    with pytest.raises(Refused, match="void"):
        promote(candidate=other, actor=Actor(cast.approver), reason="x", generation=candidate.agent.generation + 1)


def test_the_log_refuses_every_change(agent: Agent) -> None:
    for change in ("UPDATE promotions_promotion SET reason = 'other'", "DELETE FROM promotions_promotion"):
        with pytest.raises((IntegrityError, InternalError), match="never change"), transaction.atomic():
            connection.cursor().execute(change)


@pytest.mark.django_db(transaction=True)
def test_of_many_simultaneous_approvals_one_wins(candidate: Candidate, cast: Cast) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def approve() -> None:
        barrier.wait()
        try:
            promote(candidate=candidate, actor=Actor(cast.approver), reason="go", generation=candidate.agent.generation)
            outcomes.append("won")
        except Refused:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=approve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["won"]
    assert Promotion.objects.filter(agent=candidate.agent, kind="promote").count() == 1
