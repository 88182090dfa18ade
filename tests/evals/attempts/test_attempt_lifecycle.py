"""Attempts from hand to hand: who gets one, what shows that its program lives, what becomes of a silent one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from flywheel.agents.models import AttemptKey, AttemptSpan
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing, Stale
from flywheel.evals.attempts import attempt_lifecycle
from flywheel.evals.attempts.attempt_lifecycle import Claim, Over, answer, claim_some, expire, find, give_again, renew
from flywheel.evals.models import EvalRun, ProgramAttempt
from flywheel.evals.models.runs import BUDGET_CHUNK
from tests.conftest import Build
from tests.evals.fake import submit
from tests.evals.programs import CODE, program_version

pytestmark = pytest.mark.django_db


def waiting(build: Build, count: int = 1, **endpoint: Any) -> Any:
    """The agent whose attempts wait to be pulled."""
    run = submit(build, build.task_set(held_out=count), program_version(build, way="pull", **endpoint), samples=1)
    type(run).objects.filter(pk=run.pk).update(state=State.RUNNING)
    for member in run.task_set.members.filter(split="held_out"):
        ProgramAttempt.objects.create(run=run, task=member.task, sample=0, seed=1, messages=[])
    return run.version.agent


def later(made: Claim, seconds: float) -> ProgramAttempt:
    """The attempt as it is when so much time has passed."""
    row = ProgramAttempt.objects.select_related("key", "run__version").get(pk=made.attempt.pk)
    gone = timedelta(seconds=seconds)
    assert row.key is not None
    assert row.claimed_at is not None
    assert row.lease_until is not None
    AttemptKey.objects.filter(pk=row.key.pk).update(deadline=row.key.deadline - gone)
    changes = {"claimed_at": row.claimed_at - gone, "lease_until": row.lease_until - gone}
    ProgramAttempt.objects.filter(pk=row.pk).update(**changes)
    return ProgramAttempt.objects.select_related("key", "run__version").get(pk=row.pk)


def test_no_more_is_given_out_at_once_than_the_version_says(build: Build) -> None:
    agent = waiting(build, 5, concurrency=2)
    first = claim_some(agent, CODE, 5)
    assert len(first) == 2
    assert claim_some(agent, CODE, 5) == []
    answer(first[0].attempt, "Done.")
    assert len(claim_some(agent, CODE, 5)) == 1
    assert claim_some(agent, "another", 5) == []


def test_a_key_finds_its_own_attempt_and_answers_once(build: Build) -> None:
    one, other = claim_some(waiting(build, 2), CODE, 2)
    assert one.attempt.key is not None
    assert other.attempt.key is not None
    found = find(one.attempt.key.public, one.secret)
    assert found == one.attempt
    for public, secret in ((one.attempt.key.public, other.secret), ("", "fwa__"), (one.attempt.key.public, "fwa_x")):
        with pytest.raises(Missing):
            find(public, secret)
    answer(found, "Done.")
    for again in (lambda: answer(found, "Again."), lambda: renew(find(found.key.public, one.secret))):  # type: ignore[union-attr]
        with pytest.raises(Stale):
            again()
    assert ProgramAttempt.objects.get(pk=found.pk).output == "Done."


def test_one_that_is_silent_is_given_to_another_three_times_at_most(build: Build) -> None:
    agent = waiting(build)
    keys = []
    for _ in range(attempt_lifecycle.MOST_GOES):
        [made] = claim_some(agent, CODE, 1, lease_s=5)
        assert made.attempt.key is not None
        keys.append(made.attempt.key.public)
        expire([later(made, 6)])
    row = ProgramAttempt.objects.get()
    assert (row.state, row.error) == ("answered", "given to a program 3 times, and each time it fell silent")
    assert len(set(keys)) == 3
    assert AttemptKey.objects.filter(public__in=keys).count() == 1


def test_a_model_call_is_a_sign_of_life(build: Build) -> None:
    [made] = claim_some(waiting(build), CODE, 1, lease_s=5)
    row = later(made, 6)
    assert row.key is not None
    AttemptSpan.objects.create(key=row.key, span_id="a", started_at=timezone.now(), content={})
    expire([row])
    row.refresh_from_db()
    assert row.state == "claimed"
    assert row.lease_until is not None
    assert row.lease_until > timezone.now()


def test_a_tool_that_has_not_answered_yet_is_a_sign_of_life(build: Build) -> None:
    [made] = claim_some(waiting(build), CODE, 1, lease_s=5)
    row = later(made, 6)
    row.open_call = {"number": 0, "name": "cancel", "arguments": {}}
    row.save(update_fields=["open_call"])
    expire([row])
    row.refresh_from_db()
    assert row.state == "claimed"
    assert row.lease_until is not None
    assert row.lease_until > timezone.now()


def test_one_that_lives_until_its_time_is_up_has_timed_out(build: Build) -> None:
    [made] = claim_some(waiting(build, timeout_s=10.0), CODE, 1, lease_s=5)
    row = later(made, 4)
    renew(row)
    row = later(made, 4)
    renew(row)
    row = later(made, 4)
    with pytest.raises(Over):
        renew(row)
    expire([row])
    row.refresh_from_db()
    assert (row.state, row.error) == ("answered", "timed out: no answer within 10 s")


def test_a_version_at_its_limit_leaves_the_others_of_its_code_theirs(build: Build) -> None:
    waiting(build, 12, concurrency=1)
    agent = waiting(build, 1, concurrency=2, timeout_s=30.0)
    busy, other = claim_some(agent, CODE, 2)
    assert busy.attempt.run != other.attempt.run
    assert claim_some(agent, CODE, 2) == []


def test_no_more_is_pulled_than_a_budget_allows_ahead(build: Build) -> None:
    agent = waiting(build, 20)
    EvalRun.objects.update(budget={"tokens": 1000})
    claims = claim_some(agent, CODE, 64)
    assert len(claims) == BUDGET_CHUNK
    for made in claims[:3]:
        answer(made.attempt, "Done.")
    assert claim_some(agent, CODE, 64) == [], "what is answered is not stored yet"
    rows = ProgramAttempt.objects.filter(pk__in=[made.attempt.pk for made in claims[:3]])
    rows.update(state="waiting", taken=[{}])
    assert len(claim_some(agent, CODE, 64)) == 3, "those that are begun go on"


def test_one_that_is_renewed_meanwhile_stays_with_its_program(build: Build) -> None:
    [made] = claim_some(waiting(build), CODE, 1, lease_s=5)
    row = later(made, 6)
    seen = later(made, 0)
    renew(row)
    assert give_again([seen]) == []
    expire([seen])
    row.refresh_from_db()
    assert (row.state, row.key) == ("claimed", made.attempt.key)
    ProgramAttempt.objects.update(goes=attempt_lifecycle.MOST_GOES)
    seen.goes = attempt_lifecycle.MOST_GOES
    expire([seen])
    row.refresh_from_db()
    assert row.state == "claimed"


@pytest.mark.parametrize("changes", [{"state": State.FAILED}, {"cancel_requested_at": timezone.now()}])
def test_an_attempt_ends_with_its_eval(build: Build, changes: dict[str, Any]) -> None:
    [made] = claim_some(waiting(build), CODE, 1)
    assert made.attempt.key is not None
    EvalRun.objects.update(**changes)
    with pytest.raises(Over, match="its eval was stopped or has ended"):
        renew(find(made.attempt.key.public, made.secret))


def test_an_attempt_goes_on_while_its_eval_changes_hands(build: Build) -> None:
    [made] = claim_some(waiting(build), CODE, 1)
    assert made.attempt.key is not None
    EvalRun.objects.update(state=State.QUEUED)
    renew(find(made.attempt.key.public, made.secret))


@pytest.mark.django_db(transaction=True)
def test_claims_that_come_together_keep_to_the_limit(build: Build) -> None:
    agent, together = waiting(build, 8, concurrency=2), threading.Barrier(6)

    def pull(_: int) -> int:
        together.wait()
        try:
            return len(claim_some(agent, CODE, 2))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pullers:
        assert sum(pullers.map(pull, range(6))) == 2
