"""How right detectors are: the measures against ones counted by hand, their switch, and the pages and calls of both."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.core.evidence.statistics.estimates import proportion
from flywheel.edge.refusals import Refused
from flywheel.failures.buckets.bucket_definitions import Wanted, archive, define
from flywheel.failures.buckets.bucket_lifecycle import close
from flywheel.failures.detectors import detector_quality, detector_settings
from flywheel.failures.detectors.detector_quality import Judged
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import DetectorSetting, ProjectBucket, Proposal, Queue, QueueItem, Rule
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted as QueueWanted
from flywheel.failures.queues.queue_definitions import archive as archive_queue
from flywheel.failures.queues.queue_definitions import make
from flywheel.failures.queues.reviews import decline, give
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of
from workers.jobs.detection import detect_waiting

SignIn = Callable[[User], Client]
BROKEN = '{"tool": "email.send", "arguments": {"to": '
LOOP, OUTPUT = DETECTORS["repeated_loop"], DETECTORS["broken_output"]
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def one(key: int, family: str, *proposed: str, bucket: str | None = None, drawn: bool = False, day: int = 2) -> Judged:
    began = date(2026, 11, day)
    filed = family if bucket is None else bucket
    buckets = frozenset(DETECTORS[name].bucket for name in proposed)
    return Judged(key, began, NOW - timedelta(hours=key), filed, family, frozenset(proposed), buckets, drawn)


SEVEN = [
    one(1, "bad_planning", "repeated_loop", drawn=True),
    one(2, "bad_planning", "repeated_loop", "broken_output", bucket="endless_poll", day=9),
    one(3, "", "repeated_loop"),
    one(4, "format_error", "repeated_loop", "broken_output", day=9),
    one(5, "bad_planning", drawn=True),
    one(6, "bad_planning", "broken_output"),
    one(7, "format_error", "broken_output"),
]


def test_precision_and_recall_are_those_counted_by_hand() -> None:
    """It proposed for 1, 2, 3 and 4, of which 1 and 2 are in its bucket; 1, 2, 5 and 6 are."""
    found = detector_quality.of_detector(SEVEN, LOOP)
    assert found.all.precision == proportion(2, 4)
    assert found.all.is_failure == proportion(3, 4)
    assert found.all.recall == proportion(2, 4)
    assert (found.drawn.precision, found.drawn.recall) == (proportion(1, 1), proportion(1, 2))
    assert found.filed == {"bad_planning": 1, "endless_poll": 1, "": 1, "format_error": 1}
    assert [each.trajectory for each in found.wrong] == [3, 4]
    assert [each.trajectory for each in found.missed] == [5, 6]
    assert found.all.precision.low == pytest.approx(0.150, abs=1e-3)
    assert found.all.precision.high == pytest.approx(0.850, abs=1e-3)


def test_the_list_says_the_same_as_the_page() -> None:
    for detector in (LOOP, OUTPUT):
        brief = detector_quality.briefly(detector_quality.decisions(SEVEN), detector, None)
        whole = detector_quality.of_detector(SEVEN, detector)
        assert (brief.all, brief.drawn) == (whole.all, whole.drawn)


def test_weeks_hold_what_concerns_the_detector_by_when_it_began() -> None:
    found = detector_quality.of_detector(SEVEN, LOOP)
    assert list(found.weeks) == [date(2026, 11, 2), date(2026, 11, 9)]
    first, second = found.weeks.values()
    assert (first.precision, first.recall) == (proportion(1, 2), proportion(1, 3))
    assert (second.precision, second.recall) == (proportion(1, 2), proportion(1, 1))


def test_a_bucket_is_measured_by_all_its_detectors_together() -> None:
    found = detector_quality.of_bucket(detector_quality.decisions(SEVEN), "format_error", [OUTPUT])
    assert (found.all.precision, found.all.recall) == (proportion(2, 4), proportion(2, 2))
    assert detector_quality.of_bucket(detector_quality.decisions(SEVEN), "wrong_tool", []).all.recall.mean is None


def test_what_was_decided_while_it_was_off_says_nothing_of_it() -> None:
    switched = DetectorSetting(detector="repeated_loop", is_on=False, at=NOW - timedelta(hours=2))
    found = detector_quality.of_detector(SEVEN, LOOP, switched)
    assert (found.all.precision, found.all.recall) == (proportion(0, 2), proportion(0, 2))
    switched.is_on = True
    assert detector_quality.of_detector(SEVEN, LOOP, switched).all.recall.n == 4


def test_where_it_proposes_another_bucket_that_one_is_measured_from_then_on() -> None:
    """Of those for which it proposed, 1 and 2 were decided since: 2 is in it, 1 in what that is a kind of."""
    said = DetectorSetting(detector="repeated_loop", bucket="endless_poll", bucket_since=NOW - timedelta(hours=2))
    found = detector_quality.of_detector(SEVEN, LOOP, said)
    assert found.bucket == "endless_poll"
    assert (found.all.precision, found.all.recall) == (proportion(1, 2), proportion(1, 1))
    assert [each.trajectory for each in found.wrong] == [1]


def test_where_nothing_was_decided_there_is_no_number() -> None:
    found = detector_quality.of_detector([], LOOP)
    assert (found.all.precision.mean, found.all.recall.mean, found.weeks) == (None, None, {})


def test_every_detector_says_what_it_looks_for() -> None:
    assert [name for name, detector in DETECTORS.items() if not detector.about.endswith(".")] == []


# Stored


@pytest.mark.django_db
def test_what_people_decided_is_read_with_what_was_proposed_and_drawn(cast: Cast, build: Build) -> None:
    cast.project.buckets.create(key="cut_off", label="Cut off", parent="format_error", created_by=cast.admin)
    broken, passed, missed, drawn = [build.trajectory(answer=BROKEN) for _ in range(2)] + [
        build.trajectory() for _ in range(2)
    ]
    rollout = build.trajectory(answer=BROKEN, source=Source.ROLLOUT)
    detect_waiting()
    for row, bucket in (
        (broken, "cut_off"),
        (passed, ""),
        (missed, "format_error"),
        (drawn, "wrong_tool"),
        (rollout, "format_error"),
    ):
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket=bucket)
    sample = Queue.objects.create(
        project=cast.project, name="sample", rule=Rule.SAMPLE, percent=100, created_by=cast.builder
    )
    QueueItem.objects.create(queue=sample, trajectory=drawn, state=QueueItem.State.DONE)
    intake.add(queue=sample, keys=[missed.pk], actor=Actor(cast.builder))
    found = {each.trajectory: each for each in detector_quality.judged(cast.project)}
    assert set(found) == {broken.pk, passed.pk, missed.pk, drawn.pk}
    assert (found[broken.pk].bucket, found[broken.pk].family) == ("cut_off", "format_error")
    assert found[broken.pk].proposed == {"broken_output"}
    assert [row.pk for row in (broken, passed, missed, drawn) if found[row.pk].is_drawn] == [drawn.pk]
    measured = detector_quality.of_detector(list(found.values()), OUTPUT)
    assert (measured.all.precision, measured.all.recall) == (proportion(1, 2), proportion(1, 2))
    assert detector_quality.judged(cast.elsewhere) == []


@pytest.mark.django_db
def test_a_sample_counts_as_far_as_all_of_it_is_decided(
    cast: Cast, build: Build, sign_in: SignIn, key: Callable[..., dict[str, str]]
) -> None:
    """What is decided elsewhere, because something was proposed, must not stand for what nobody looked at yet."""
    sample = make(
        project=cast.project, actor=Actor(cast.builder), wanted=QueueWanted("s", rule=Rule.SAMPLE, percent=100)
    )
    rows = [build.trajectory(answer=BROKEN if at in (0, 3) else None) for at in range(4)]
    detect_waiting()

    def drawn() -> list[int]:
        return sorted(each.trajectory for each in detector_quality.judged(cast.project) if each.is_drawn)

    for row in (rows[0], rows[3]):
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error")
    assert (drawn(), detector_quality.undecided(cast.project)) == ([rows[0].pk], 2)
    archive_queue(queue=sample, actor=Actor(cast.builder))
    assert (drawn(), detector_quality.undecided(cast.project)) == ([rows[0].pk], 0)
    archive_queue(queue=sample, actor=Actor(cast.builder), is_archived=False)
    listed = page_of(sign_in(cast.viewer).get(reverse("failures:detectors", args=["acme"])))
    assert "2 sampled are not decided." in listed
    told = Client().get("/api/v1/detectors/broken_output", headers=key("read")).json()
    assert (told["undecided"], told["random_sample"]["recall"]["n"]) == (2, 1)
    give(item=sample.items.get(trajectory=rows[2]), actor=Actor(cast.reviewer))
    assert drawn() == [rows[0].pk]
    decline(item=sample.items.get(trajectory=rows[1]), actor=Actor(cast.reviewer), reason="a test")
    assert (drawn(), detector_quality.undecided(cast.project)) == ([rows[0].pk, rows[2].pk, rows[3].pk], 0)


@pytest.mark.django_db
def test_off_withdraws_what_waits_and_keeps_what_was_decided(cast: Cast, build: Build) -> None:
    waiting, decided, other = [build.trajectory(answer=BROKEN) for _ in range(3)]
    Trajectory.objects.filter(pk=other.pk).update(project=cast.elsewhere)
    detect_waiting()
    decide(trajectory=decided, actor=Actor(cast.reviewer), bucket="format_error")
    assert detector_settings.switch(project=cast.project, actor=Actor(cast.admin), name="broken_output", is_on=False)
    assert detect_waiting() == 1
    waiting.refresh_from_db()
    assert (waiting.proposed_bucket, waiting.proposed_score) == ("", None)
    assert set(Proposal.objects.values_list("trajectory", flat=True)) == {decided.pk, other.pk}
    assert decided.failures.get().bucket == "format_error"
    assert DetectorSetting.objects.get().caught_up_at is not None
    new = build.trajectory(answer=BROKEN)
    assert detect_waiting() == 1
    assert not new.proposals.exists()


@pytest.mark.django_db
def test_on_again_reads_every_trajectory_of_the_project_again(cast: Cast, build: Build) -> None:
    detector_settings.switch(project=cast.project, actor=Actor(cast.admin), name="broken_output", is_on=False)
    rows = [build.trajectory(answer=BROKEN) for _ in range(3)]
    build.trajectory(answer=BROKEN, source=Source.ROLLOUT)
    decide(trajectory=rows[0], actor=Actor(cast.reviewer), bucket="format_error")
    assert detect_waiting() == 3
    assert not Proposal.objects.filter(detector="broken_output").exists()
    detector_settings.switch(project=cast.project, actor=Actor(cast.admin), name="broken_output", is_on=True)
    assert detect_waiting() == 3
    assert set(Proposal.objects.filter(detector="broken_output").values_list("trajectory", flat=True)) == {
        row.pk for row in rows
    }
    assert detect_waiting() == 0


@pytest.mark.django_db
def test_a_switch_goes_on_where_it_was_cut_off(cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [build.trajectory(answer=BROKEN) for _ in range(5)]
    detect_waiting()
    detector_settings.switch(project=cast.project, actor=Actor(cast.admin), name="broken_output", is_on=False)
    DetectorSetting.objects.update(marked_to=rows[2].pk)
    monkeypatch.setattr(detector_settings, "AT_ONCE", 1)
    assert detector_settings.catch_up() == 2
    assert detector_settings.catch_up() == 0


@pytest.mark.django_db
def test_switching_twice_is_switching_once_and_is_in_the_audit_log(cast: Cast) -> None:
    def go(is_on: bool) -> bool:
        return detector_settings.switch(project=cast.project, actor=Actor(cast.admin), name="unfinished", is_on=is_on)

    assert [go(True), go(False), go(False), go(True)] == [False, True, False, True]
    entries = AuditEntry.objects.filter(project=cast.project).order_by("pk")
    assert [(entry.action, entry.subject) for entry in entries] == [
        ("failures.detector_off", "detector unfinished"),
        ("failures.detector_on", "detector unfinished"),
    ]
    with pytest.raises(Refused):
        detector_settings.switch(project=cast.project, actor=Actor(cast.admin), name="moon", is_on=False)


@pytest.mark.django_db
def test_what_is_off_by_default_is_off_until_the_project_says_otherwise(
    cast: Cast, build: Build, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DETECTORS, OUTPUT.name, replace(OUTPUT, is_on=False))
    row = build.trajectory(answer=BROKEN)
    detect_waiting()
    assert not row.proposals.exists()
    assert not detector_quality.measure_one(cast.project, OUTPUT.name).is_on
    assert OUTPUT.name not in [each.name for each in detector_settings.proposing(cast.project, OUTPUT.bucket)]
    page = sign_in(cast.admin).get(reverse("failures:detector", args=["acme", OUTPUT.name])).content.decode()
    assert "Off by default." in page

    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin), "name": OUTPUT.name}
    assert not detector_settings.switch(**common, is_on=False)
    assert detector_settings.switch(**common, is_on=True)
    detect_waiting()
    assert row.proposals.get(detector=OUTPUT.name)


@pytest.fixture
def cut_off(cast: Cast) -> ProjectBucket:
    wanted = Wanted("Cut off", "format_error", shortcut="h")
    return define(project=cast.project, actor=Actor(cast.admin), wanted=wanted)


@pytest.mark.django_db
def test_a_detector_proposes_a_bucket_of_the_project_where_it_says_so(
    cast: Cast, build: Build, cut_off: ProjectBucket, sign_in: SignIn
) -> None:
    waiting, decided, other = [build.trajectory(answer=BROKEN) for _ in range(3)]
    Trajectory.objects.filter(pk=other.pk).update(project=cast.elsewhere)
    detect_waiting()
    decide(trajectory=decided, actor=Actor(cast.reviewer), bucket="format_error")
    queue = make(
        project=cast.project, actor=Actor(cast.builder), wanted=QueueWanted("cut", rule="detected", bucket="cut_off")
    )
    close(project=cast.project, key="cut_off", actor=Actor(cast.builder), reason="the limit is higher now")
    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin), "name": "broken_output"}
    assert detector_settings.point(**common, bucket="cut_off")
    assert not detector_settings.point(**common, bucket="cut_off")
    assert detect_waiting() == 1
    # What waits follows; what was decided stays, and what is another project's.
    proposed = dict(Proposal.objects.values_list("trajectory", "bucket"))
    assert proposed == {waiting.pk: "cut_off", decided.pk: "format_error", other.pk: "format_error"}
    waiting.refresh_from_db()
    assert waiting.proposed_bucket == "cut_off"
    assert [item.trajectory_id for item in queue.items.all()] == [waiting.pk]
    # The desk has it filled in, its filter finds it, and one key confirms it.
    client, where = sign_in(cast.reviewer), reverse("failures:queue", args=["acme"])
    page = page_of(client.get(where, {"bucket": "cut_off"}))
    assert 'value="cut_off" checked' in page
    assert "Filter ignored" not in page
    label = reverse("failures:label", args=["acme", waiting.trace_id])
    client.post(label, {"quick": "confirm", "seen": "0"})
    said = waiting.failures.get(current=True)
    assert (said.decision, said.bucket) == ("confirmed", "cut_off")
    # Measured against that bucket, by what was decided since, and counted in what it is a kind of too.
    found = {each.detector.name: each for each in detector_quality.measure(cast.project)[0]}["broken_output"]
    assert (found.bucket, found.all.precision, found.all.recall) == ("cut_off", proportion(1, 1), proportion(1, 1))
    together = {each.key: each for each in detector_quality.measure(cast.project)[1]}
    assert together["cut_off"].all.precision == proportion(1, 1)
    assert together["format_error"].all.precision == proportion(2, 2)
    assert OUTPUT in together["cut_off"].detectors
    assert OUTPUT in together["format_error"].detectors
    # A failure of it that began after it was closed opens it again, as of any other.
    late = build.trajectory(answer=BROKEN, started_at=timezone.now() + timedelta(seconds=1))
    detect_waiting()
    assert late.proposals.get().bucket == "cut_off"
    decide(trajectory=late, actor=Actor(cast.reviewer), bucket="cut_off")
    assert not cast.project.bucket_lives.get(bucket="cut_off").is_closed
    # It cannot be archived under the detector, and comes back to its own.
    with pytest.raises(Refused, match="broken_output proposes it"):
        archive(bucket=cut_off, actor=Actor(cast.builder))
    assert detector_settings.point(**common, bucket="")
    archive(bucket=cut_off, actor=Actor(cast.builder))
    with pytest.raises(Refused, match="archived"):
        detector_settings.point(**common, bucket="cut_off")
    assert build.trajectory(answer=BROKEN).proposals.exists() is False
    detect_waiting()
    assert Proposal.objects.latest("pk").bucket == "format_error"


@pytest.mark.django_db
def test_only_what_would_be_proposed_otherwise_is_read_again(
    cast: Cast, build: Build, cut_off: ProjectBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is cut off; and what was switched on and not read yet is still read whole."""
    for answer in (BROKEN, BROKEN, BROKEN, "fine"):
        build.trajectory(answer=answer)
    detect_waiting()
    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin), "name": "broken_output"}
    monkeypatch.setattr(detector_settings, "AT_ONCE", 1)
    detector_settings.point(**common, bucket="cut_off")
    assert detector_settings.catch_up() == 3
    assert detector_settings.catch_up() == 0
    detector_settings.switch(**common, is_on=False)
    detector_settings.switch(**common, is_on=True)
    detector_settings.point(**common, bucket="")
    Trajectory.objects.update(detected_at=timezone.now() + timedelta(hours=1))
    assert detector_settings.catch_up() == 4


@pytest.mark.django_db
def test_the_page_and_programs_let_it_propose_another_bucket(
    cast: Cast, cut_off: ProjectBucket, sign_in: SignIn, key: Callable[..., dict[str, str]]
) -> None:
    address = reverse("failures:detector", args=["acme", "broken_output"])
    where = reverse("failures:point_detector", args=["acme", "broken_output"])
    assert sign_in(cast.builder).post(where, {"bucket": "cut_off"}).status_code == 403
    assert 'id="proposes"' not in page_of(sign_in(cast.builder).get(address))
    admin = sign_in(cast.admin)
    said = page_of(admin.post(where, {"bucket": "cut_off"}, follow=True))
    assert "broken_output proposes cut off from now on." in said
    assert "changed its category from broken format to cut off" in said
    assert "Nothing was changed: bucket" in page_of(admin.post(where, {"bucket": "moon"}, follow=True))
    assert "broken_output" in page_of(admin.get(reverse("failures:bucket", args=["acme", "cut_off"])))
    refused = admin.post(reverse("failures:archive_bucket", args=["acme", "cut_off"]), follow=True)
    assert "choose another one for it first" in page_of(refused)
    client, api = Client(), "/api/v1/detectors/broken_output"
    found = client.get(api, headers=key("read")).json()
    assert (found["bucket"], found["own_bucket"], found["is_on"]) == ("cut_off", "format_error", True)
    assert found["bucket_since"]
    body = {"bucket": "", "is_on": False}
    assert client.put(api, body, content_type="application/json", headers=key("build")).status_code == 403
    found = client.put(api, body, content_type="application/json", headers=key("admin")).json()
    assert (found["bucket"], found["bucket_since"], found["is_on"]) == ("format_error", None, False)
    answer = client.put(api, {"bucket": "moon"}, content_type="application/json", headers=key("admin"))
    assert answer.status_code == 422


@pytest.mark.django_db
def test_the_pages_show_what_was_measured_and_only_admins_switch(cast: Cast, build: Build, sign_in: SignIn) -> None:
    right, wrong = build.trajectory(answer=BROKEN), build.trajectory(prompt="<b>Meet</b>", answer=BROKEN)
    missed = build.trajectory(prompt="Nobody saw it")
    detect_waiting()
    decide(trajectory=right, actor=Actor(cast.reviewer), bucket="format_error")
    decide(trajectory=wrong, actor=Actor(cast.reviewer))
    decide(trajectory=missed, actor=Actor(cast.reviewer), bucket="format_error")
    listed = page_of(sign_in(cast.viewer).get(reverse("failures:detectors", args=["acme"])))
    assert "50.0" in listed
    assert "No unbiased recall yet." in listed
    address = reverse("failures:detector", args=["acme", "broken_output"])
    page = page_of(sign_in(cast.viewer).get(address))
    assert "&lt;b&gt;Meet&lt;/b&gt;" in page
    assert "Nobody saw it" in page
    assert "Switch off" not in page
    switch = reverse("failures:switch_detector", args=["acme", "broken_output"])
    assert sign_in(cast.builder).post(switch, {"on": "0"}).status_code == 403
    assert sign_in(cast.stranger).post(switch, {"on": "0"}).status_code == 404
    admin = sign_in(cast.admin)
    assert "proposals are withdrawn" in page_of(admin.post(switch, {"on": "0"}, follow=True))
    assert not DetectorSetting.objects.get().is_on
    assert admin.get(reverse("failures:detector", args=["acme", "moon"])).status_code == 404
    assert admin.post(reverse("failures:switch_detector", args=["acme", "moon"])).status_code == 404


@pytest.mark.django_db
def test_programs_read_and_switch(cast: Cast, build: Build, key: Callable[..., dict[str, str]]) -> None:
    row, missed = build.trajectory(answer=BROKEN), build.trajectory()
    detect_waiting()
    decide(trajectory=row, actor=Actor(cast.reviewer))
    decide(trajectory=missed, actor=Actor(cast.reviewer), bucket="format_error")
    client, reading = Client(), key("read")
    every = client.get("/api/v1/detectors", headers=reading).json()
    assert [each["name"] for each in every] == list(DETECTORS)
    found = client.get("/api/v1/detectors/broken_output", headers=reading).json()
    assert (found["is_on"], found["switched_at"], found["filed"]) == (True, None, {"": 1})
    assert (found["all_decisions"]["precision"]["mean"], found["random_sample"]["recall"]["mean"]) == (0.0, None)
    assert [each["trace_id"] for each in found["wrong"]] == [row.trace_id]
    assert [each["trace_id"] for each in found["missed"]] == [missed.trace_id]
    assert [week["recall"]["n"] for week in found["weeks"]] == [1]
    where, body = "/api/v1/detectors/broken_output", {"is_on": False}
    assert client.put(where, body, content_type="application/json", headers=key("build")).status_code == 403
    answer = client.put(where, body, content_type="application/json", headers=key("admin"))
    assert answer.json()["is_on"] is False
    assert client.get("/api/v1/detectors/moon", headers=reading).status_code == 404
    gone = client.put("/api/v1/detectors/moon", body, content_type="application/json", headers=key("admin"))
    assert gone.status_code == 404
