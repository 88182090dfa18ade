import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models import F
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Notice, User
from flywheel.agents.models import Agent, Split
from flywheel.agents.splits.assignment import Arm, Unit
from flywheel.agents.splits.assignment_tokens import assignment_token
from flywheel.core.digests import digest
from flywheel.core.evidence.gate import decision
from flywheel.core.evidence.statistics.sequential.claim_watch import ClaimWatch, bound
from flywheel.edge.refusals import Refused, Stale
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.detectors.detector_settings import point, switch
from flywheel.failures.models import DetectorSetting, Recurrence
from flywheel.promotions.live_version import promote, roll_back
from flywheel.promotions.models import Candidate, Policy, Promotion, Ramp, Watch
from flywheel.promotions.ramps import claim_watching, ramp_moves
from flywheel.trajectories.models import Step, Trajectory
from tests.conftest import Build, Cast, proposed
from tests.pages import page_of

KEY = "wrong_tool"
Answered = Callable[..., None]
Later = Callable[[float], datetime]
Keys = Callable[..., dict[str, str]]
SignIn = Callable[[User], Client]


@pytest.fixture
def live(candidate: Candidate, cast: Cast) -> Promotion:
    """A promotion whose comparison calls a bucket better."""
    claims_better(candidate)
    made = promote_anyway(candidate, cast)
    claim_watching.look()
    return made


def claims_better(candidate: Candidate) -> None:
    """Have its comparison call a bucket better."""
    candidate.report["comparison"]["slices"] = [
        {"name": KEY, "verdict": "better", "difference": {"mean": 0.4, "low": 0.2, "high": 0.6, "n": 30}}
    ]
    written(candidate)


def written(candidate: Candidate) -> None:
    report = candidate.report
    Candidate.objects.filter(pk=candidate.pk).update(report=report, report_digest=digest(report))


def promote_anyway(candidate: Candidate, cast: Cast) -> Promotion:
    written(candidate)
    return promote(
        candidate=candidate,
        actor=Actor(cast.approver),
        reason="x",
        generation=candidate.agent.generation,
        override=True,
    )


@pytest.fixture
def answered(build: Build, live: Promotion) -> Answered:
    """`answered(9, found=3)`: so many sessions that the live version answered, in the last of which the bucket is.

    Through the gateway, unless they are `reported`: then nothing but their own traces says who answered.
    """
    names = itertools.count()

    def make(count: int, found: int = 0, bucket: str = KEY, *, reported: bool = False, **fields: Any) -> None:
        at = timezone.now() - timedelta(seconds=200)
        for place in range(count):
            given: dict[str, Any] = {
                "version": live.after,
                "agent": live.agent,
                "started_at": timezone.now(),
                "changed_at": at,
            }
            row = build.trajectory(session_id=f"s{next(names)}", **given | {"detected_at": at} | fields)
            if not reported:
                called(row)
            if place >= count - found:
                proposed(row, bucket, detector="other_tool")

    return make


def called(row: Trajectory, **fields: Any) -> None:
    """A call that its version answered through the gateway."""
    at, version = timezone.now(), row.version
    assert version is not None
    place = row.steps.count()
    given = {"kind": "assistant", "started_at": at, "ended_at": at, "answered_by": f"{version}:{version.digest}"}
    Step.objects.create(trajectory=row, span_id=f"c{place}", position=place, **given | fields)


def watch() -> Watch:
    return Watch.objects.get()


def test_a_promotion_claims_what_it_mended_and_the_claim_comes_from_what_was_before(live: Promotion) -> None:
    assert watch().promotion == live
    assert watch().claims == {"unsafe": 0.01, "errors": 0.02, f"bucket:{KEY}": 0.02}


def test_the_claims_that_were_approved_are_watched_whatever_is_found_of_the_version_before_later(
    build: Build, candidate: Candidate, cast: Cast
) -> None:
    claims_better(candidate)
    made = promote_anyway(candidate, cast)
    for _ in range(4):
        row = build.trajectory(version=made.before, started_at=made.created_at - timedelta(days=1))
        proposed(row, KEY, 0.6, own_score=0.9)
    claim_watching.look()
    assert watch().claims == made.claims == {"unsafe": 0.01, "errors": 0.02, f"bucket:{KEY}": 0.02}


def test_sessions_are_read_once_when_they_are_over_and_read(answered: Answered, live: Promotion) -> None:
    answered(3)
    answered(1, changed_at=timezone.now())
    answered(1, detected_at=None)
    answered(1, version=live.before)
    for _ in range(2):
        claim_watching.look()
        assert watch().sessions == 3
    expected = ClaimWatch(0.02).follow([0.0] * 3)[1]
    assert watch().sums[f"bucket:{KEY}"] == list(expected.sums)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """`later(2)`: look two hours from now; returns when that is."""
    began, now = timezone.now(), timezone.now

    def look(hours: float) -> datetime:
        with monkeypatch.context() as patched:
            patched.setattr(claim_watching, "timezone", SimpleNamespace(now=lambda: now() + timedelta(hours=hours)))
            claim_watching.look()
        return began + timedelta(hours=hours)

    return look


def test_a_session_of_hours_is_watched_once_when_it_is_over(answered: Answered, later: Later) -> None:
    over = later(2) + timedelta(minutes=50)
    answered(1, changed_at=over, detected_at=over)
    later(2.5)
    assert watch().sessions == 0
    for _ in range(2):
        later(3)
        assert watch().sessions == 1


def test_a_session_of_hours_is_judged_by_all_its_trajectories(
    answered: Answered, build: Build, live: Promotion, later: Later
) -> None:
    over = later(3) - timedelta(minutes=5)
    answered(1, changed_at=over, detected_at=over)
    before, row = over - timedelta(hours=2), Trajectory.objects.get(version=live.after)
    fields: dict[str, Any] = {"version": live.after, "agent": live.agent, "started_at": row.started_at}
    first = build.trajectory(session_id=row.session_id, changed_at=before, detected_at=before, **fields)
    proposed(first, KEY, detector="other_tool")
    later(3)
    assert watch().rows.get().parts[f"bucket:{KEY}"] == 0.5


def test_what_detectors_read_hours_later_is_watched_once_they_have(answered: Answered, later: Later) -> None:
    answered(1, detected_at=None)
    answered(1)
    later(3)
    later(30)
    assert watch().sessions == 1
    Trajectory.objects.filter(detected_at=None).update(detected_at=F("changed_at"))
    for _ in range(2):
        later(30)
        assert watch().sessions == 2
    began = watch().read_to
    later(31)
    assert watch().read_to > began


def test_a_session_that_comes_again_after_its_row_was_forgotten_is_not_counted_again(
    answered: Answered, build: Build, live: Promotion, later: Later
) -> None:
    answered(1)
    claim_watching.look()
    row, over = Trajectory.objects.get(version=live.after), later(50) - timedelta(minutes=5)
    watch().rows.all().delete()
    fields: dict[str, Any] = {"version": live.after, "agent": live.agent, "started_at": over, "received_at": over}
    build.trajectory(session_id=row.session_id, changed_at=over, detected_at=over, **fields)
    later(50)
    assert watch().sessions == 1
    build.trajectory(session_id="another", changed_at=over, detected_at=over, **fields)
    later(50)
    assert watch().sessions == 2


def test_a_session_of_days_that_was_never_silent_is_watched(
    answered: Answered, build: Build, live: Promotion, later: Later
) -> None:
    over = later(50) - timedelta(minutes=5)
    before = over - timedelta(hours=30)
    answered(1, changed_at=before, detected_at=before)
    row = Trajectory.objects.get(version=live.after)
    fields: dict[str, Any] = {"version": live.after, "agent": live.agent, "started_at": before}
    fields |= {"received_at": before + timedelta(seconds=60), "changed_at": over, "detected_at": over}
    build.trajectory(session_id=row.session_id, **fields)
    for _ in range(2):
        later(50)
        assert watch().sessions == 1


def test_after_a_ramp_a_session_is_over_when_its_plan_says_so(ramp: Ramp, cast: Cast, build: Build) -> None:
    actor = Actor(cast.approver)
    promotion = ramp_moves.finish(ramp=ramp, actor=actor, reason="x", generation=ramp.generation)
    at = timezone.now() - timedelta(seconds=(ramp.rules.quiet_s + claim_watching.QUIET.total_seconds()) / 2)
    row: dict[str, Any] = {"version": promotion.after, "agent": ramp.agent, "changed_at": at, "detected_at": at}
    build.trajectory(session_id="s", started_at=timezone.now() + timedelta(seconds=1), **row)
    claim_watching.look()
    assert watch().sessions == 1


def test_a_bucket_that_comes_back_is_opened_again_with_what_showed_it(answered: Answered, cast: Cast) -> None:
    answered(20)
    answered(12, found=12)
    claim_watching.look()
    found = Recurrence.objects.get()
    assert (found.bucket, found.claim, found.sessions, len(found.trajectories)) == (KEY, 0.02, 32, 12)
    assert found.failed > 0.5
    assert found.path[-1] == ["bound", bound(3)]
    life = bucket_lifecycle.of(cast.project, KEY)
    assert life.state == "reopened"
    assert watch().broken[f"bucket:{KEY}"]["did"] == "reopened"
    told = Notice.objects.get(event="bucket.recurred")
    assert told.title.endswith(f"is back with {found.version}")
    assert told.text.startswith("Claimed in at most 2% of the sessions, found in ")
    assert told.url == "/p/acme/failures/buckets/wrong_tool/"
    answered(5, found=5)
    claim_watching.look()
    assert Recurrence.objects.count() == 1
    assert Agent.objects.get().live == found.version


def test_a_person_says_that_it_is_not_the_same_and_the_bucket_is_as_before(answered: Answered, cast: Cast) -> None:
    before = bucket_lifecycle.of(cast.project, KEY).state
    assert before == "fixed"
    answered(12, found=12)
    claim_watching.look()
    found = Recurrence.objects.get()
    with pytest.raises(Refused, match="reason"):
        bucket_lifecycle.answer(recurrence=found, actor=Actor(cast.reviewer), is_same=False)
    bucket_lifecycle.answer(recurrence=found, actor=Actor(cast.reviewer), is_same=False, reason="another tool")
    assert bucket_lifecycle.of(cast.project, KEY).state == before
    with pytest.raises(Stale):
        bucket_lifecycle.answer(recurrence=found, actor=Actor(cast.reviewer), is_same=True)


def test_a_closed_bucket_that_was_opened_by_a_person_stays_open_when_the_watch_was_wrong(
    answered: Answered, cast: Cast
) -> None:
    actor = Actor(cast.reviewer)
    bucket_lifecycle.close(project=cast.project, key=KEY, actor=actor, reason="done")
    bucket_lifecycle.reopen(project=cast.project, key=KEY, actor=actor, reason="not done")
    answered(12, found=12)
    claim_watching.look()
    bucket_lifecycle.answer(recurrence=Recurrence.objects.get(), actor=actor, is_same=False, reason="another")
    assert bucket_lifecycle.of(cast.project, KEY).state == "reopened"


def let_the_watch_roll_back(cast: Cast, may: bool) -> None:
    newest = Policy.objects.filter(project=cast.project).order_by("-version")[0]
    rules = decision.Policy.from_dict({**newest.rules, "watch_rolls_back": may}).to_dict()
    Policy.objects.create(project=cast.project, version=newest.version + 1, rules=rules, created_by=cast.admin)


@pytest.mark.parametrize("may", [True, False])
def test_unsafe_actions_bring_the_version_before_back_where_the_policy_says_so(
    answered: Answered, live: Promotion, cast: Cast, may: bool
) -> None:
    let_the_watch_roll_back(cast, may)
    answered(12, found=12, bucket="unsafe_action")
    claim_watching.look()
    agent = Agent.objects.get()
    assert agent.live == (live.before if may else live.after)
    assert watch().broken["unsafe"]["did"] == ("rolled back" if may else "proposed")
    claim_watching.look()
    assert watch().state == ("over" if may else "running")
    assert agent.promotions.count() == (3 if may else 2)


@pytest.mark.parametrize("may", [True, False])
def test_server_errors_beyond_the_claim_bring_the_version_before_back_or_ask_for_it(
    answered: Answered, live: Promotion, cast: Cast, may: bool
) -> None:
    let_the_watch_roll_back(cast, may)
    answered(12)
    for row in Trajectory.objects.filter(version=live.after):
        called(row, status="error", error="502: bad gateway")
    claim_watching.look()
    assert watch().broken["errors"]["did"] == ("rolled back" if may else "proposed")
    assert Agent.objects.get().live == (live.before if may else live.after)
    told = Notice.objects.get(event="promotion.claim_broken")
    assert told.title == f"{live.after} shows more server errors and timeouts than it claimed"
    assert told.text.endswith(f"{live.before} is live again." if may else "Nothing was rolled back: decide.")


def test_sessions_that_only_report_the_version_roll_nothing_back_by_themselves(
    answered: Answered, live: Promotion, key: Keys, client: Client
) -> None:
    answered(30, found=30, bucket="unsafe_action", reported=True)
    claim_watching.look()
    assert Agent.objects.get().live == live.after
    words = "proposed: sessions that only report the version broke it"
    assert watch().broken["unsafe"]["did"] == words
    said = client.get("/api/v1/promotions", headers=key("read")).json()["items"][0]["watch"]
    assert [(each["signal"], each["did"]) for each in said["broken"]] == [("unsafe", words)]
    told = Notice.objects.get(event="promotion.claim_broken")
    assert told.text.endswith(
        "Nothing was rolled back, since sessions that only report the version broke it, which does not show that it "
        "answered them: decide."
    )


def test_a_claim_that_reported_sessions_broke_still_brings_the_version_before_back_once_known_ones_break_it(
    answered: Answered, live: Promotion
) -> None:
    answered(30, found=30, bucket="unsafe_action", reported=True)
    answered(2, found=2, bucket="unsafe_action")
    claim_watching.look()
    assert Agent.objects.get().live == live.after
    answered(12, found=12, bucket="unsafe_action")
    claim_watching.look()
    assert watch().broken["unsafe"]["did"] == "rolled back"
    assert Agent.objects.get().live == live.before


def test_reported_sessions_without_a_fault_do_not_hide_what_known_ones_show(
    answered: Answered, live: Promotion
) -> None:
    for _ in range(12):
        answered(40, reported=True)
        answered(1, found=1, bucket="unsafe_action")
    claim_watching.look()
    assert Agent.objects.get().live == live.before


def test_of_a_session_only_the_traces_count_as_known_that_its_version_answered(
    answered: Answered, build: Build, live: Promotion
) -> None:
    answered(30)
    for row in list(Trajectory.objects.filter(version=live.after)):
        fields: dict[str, Any] = {
            "started_at": row.started_at,
            "changed_at": row.changed_at,
            "detected_at": row.detected_at,
        }
        added = build.trajectory(session_id=row.session_id, version=row.version, agent=row.agent, **fields)
        proposed(added, "unsafe_action", detector="other_tool")
    claim_watching.look()
    assert watch().broken["unsafe"]["did"].startswith("proposed")
    assert Agent.objects.get().live == live.after


def test_what_another_version_answered_is_not_known_as_the_live_ones(answered: Answered, live: Promotion) -> None:
    answered(12, found=12, bucket="unsafe_action", reported=True)
    for row in Trajectory.objects.filter(version=live.after):
        assert live.before is not None
        called(row, answered_by=f"{live.before}:{live.before.digest}")
    claim_watching.look()
    assert Agent.objects.get().live == live.after


@pytest.mark.parametrize("arm", ["candidate", "live"])
def test_the_token_of_an_assignment_shows_that_the_version_answered(
    answered: Answered, live: Promotion, arm: Arm
) -> None:
    assert live.before is not None
    split = Split.objects.create(
        agent=live.agent, live=live.before, candidate=live.after, salt="x", lease_until=timezone.now()
    )
    answered(12, found=12, bucket="unsafe_action", reported=True)
    for row in Trajectory.objects.filter(version=live.after):
        token = assignment_token(split, Unit("session", row.session_id), arm)
        Trajectory.objects.filter(pk=row.pk).update(attributes=[f"flywheel.assignment={token}"])
    claim_watching.look()
    assert Agent.objects.get().live == (live.before if arm == "candidate" else live.after)


def test_killed_before_it_brought_the_version_back_the_next_look_does(
    answered: Answered, live: Promotion, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(12, found=12, bucket="unsafe_action")
    with monkeypatch.context() as patched:
        patched.setattr(claim_watching, "_bring_back", lambda *_: 1 / 0)
        claim_watching.look()
    assert watch().broken["unsafe"]["did"] == ""
    claim_watching.look()
    assert Agent.objects.get().live == live.before
    assert Notice.objects.filter(event="promotion.claim_broken").exists()


def test_a_changed_detector_begins_it_anew(answered: Answered, cast: Cast) -> None:
    answered(5, found=3)
    claim_watching.look()
    assert watch().sessions == 5
    DetectorSetting.objects.create(project=cast.project, detector="other_tool", is_on=False, by=cast.builder)
    answered(2)
    claim_watching.look()
    assert watch().sessions == 2
    assert watch().sums[f"bucket:{KEY}"] == list(ClaimWatch(0.02).follow([0.0] * 2)[1].sums)
    assert watch().changed_detectors == ["other_tool"]
    told = AuditEntry.objects.get(action="promotions.watch_anew")
    assert (told.reason, told.data, told.through) == ("changed: other_tool", {"sessions": 5}, f"the {watch()}")


def test_that_it_began_anew_is_on_the_page_and_in_the_api(
    answered: Answered, cast: Cast, sign_in: SignIn, key: Keys, client: Client
) -> None:
    answered(5)
    claim_watching.look()
    url = reverse("promotions:index", args=["acme"])
    assert "restarted" not in page_of(sign_in(cast.viewer).get(url))
    point(project=cast.project, actor=Actor(cast.builder), name="other_tool", bucket="unsafe_action")
    claim_watching.look()
    assert "other_tool changed" in page_of(sign_in(cast.viewer).get(url))
    said = client.get("/api/v1/promotions", headers=key("read")).json()["items"][0]["watch"]
    assert (said["state"], said["sessions"], said["changed_detectors"]) == ("running", 0, ["other_tool"])
    first = watch().began_at
    point(project=cast.project, actor=Actor(cast.builder), name="other_tool", bucket="")
    claim_watching.look()
    assert watch().began_at > first, "back to its own is a change as well"


def test_a_setting_that_says_what_was_so_anyway_changes_nothing(answered: Answered, cast: Cast) -> None:
    answered(5)
    claim_watching.look()
    switch(project=cast.project, actor=Actor(cast.builder), name="other_tool", is_on=True)
    claim_watching.look()
    assert (watch().sessions, watch().changed_detectors) == (5, [])


def test_a_watch_that_kept_no_detectors_goes_on_with_the_present_ones(answered: Answered) -> None:
    answered(5)
    claim_watching.look()
    Watch.objects.update(detector_settings={})
    claim_watching.look()
    assert (watch().sessions, watch().detector_settings["other_tool"]) == (5, [True, KEY])


def test_old_sessions_are_forgotten_and_those_that_could_be_read_again_are_not(
    answered: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_watching, "SESSIONS", 4)
    monkeypatch.setattr(claim_watching, "KEPT", 2)
    answered(3)
    claim_watching.look()
    watch().rows.update(at=timezone.now() - timedelta(hours=27))
    answered(2)
    claim_watching.look()
    assert sorted(watch().rows.values_list("number", flat=True)) == [4, 5]
    assert watch().sessions == 5


def test_it_ends_when_another_version_goes_live(live: Promotion, cast: Cast) -> None:
    assert live.before is not None
    roll_back(agent=live.agent, to=live.before, actor=Actor(cast.approver), generation=live.generation, reason="x")
    claim_watching.look()
    assert watch().state == "over"
