"""What is odd about how a trajectory arrived is kept and said; what is too large is shown by its beginning."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.system.sql import bound
from flywheel.trajectories.detail import anomalies
from flywheel.trajectories.detail.anomalies import of_steps, of_whole
from flywheel.trajectories.models import Blob, Source, Step, Trajectory
from flywheel.trajectories.store.merge import store
from tests.conftest import Build, Cast
from tests.trajectories.talking import START_NS, TRACE, body_of, episode, span, text

PROTOBUF = "application/x-protobuf"


@pytest.fixture
def send(client: Client, key: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    headers = key("ingest")

    def go(*spans: Any) -> Any:
        return client.post("/v1/traces", body_of(list(spans)), content_type=PROTOBUF, headers=headers)

    return go


def at(moment: datetime, *spans: Any) -> list[Any]:
    """The spans as if they had begun at this time."""
    ns = int(moment.timestamp() * 1e9)
    for each in spans:
        each.end_time_unix_nano += ns - START_NS
        each.start_time_unix_nano += ns - START_NS
    return list(spans)


def words(row: Trajectory) -> dict[str, list[str]]:
    return {key: [odd.word for odd in odd] for key, odd in of_steps(row, list(row.steps.all())).items()}


def test_nothing_is_odd_about_what_comes_as_it_happens(send: Callable[..., Any]) -> None:
    send(*at(timezone.now() - timedelta(seconds=30), *episode()))
    row = Trajectory.objects.get()
    assert (words(row), of_whole(row)) == ({}, [])


def test_a_parent_that_has_not_arrived_is_said_until_it_arrives(send: Callable[..., Any]) -> None:
    spans = at(timezone.now() - timedelta(seconds=30), *episode())
    root = next(each for each in spans if not each.parent_span_id)
    others = [each for each in spans if each is not root]
    send(*others)
    row = Trajectory.objects.get()
    assert set(map(tuple, words(row).values())) == {("no parent",)}
    assert of_whole(row) == ["5 steps name a parent that has not arrived."]
    send(root)
    assert of_whole(Trajectory.objects.get()) == []


@pytest.mark.parametrize(
    ("moment", "word", "sentence"),
    [
        (datetime(2094, 5, 1), "The sender's clock says 2094-05-01 00:00:00 UTC, which is", "in the future"),
        (datetime(1987, 5, 1), "The sender's clock says 1987-05-01 00:00:00 UTC.", "is from before 2000"),
        (datetime(2021, 5, 1), "The sender's clock says 2021-05-01 00:00:00 UTC; it arrived", "after its end by the"),
    ],
)
def test_a_clock_that_is_off_is_quoted(
    cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client], moment: datetime, word: str, sentence: str
) -> None:
    send(*at(moment.replace(tzinfo=timezone.get_default_timezone()), span(7)))
    step = Step.objects.get()
    address = reverse("trajectories:detail", args=[cast.project.slug, TRACE])
    body = sign_in(cast.viewer).get(f"{address}?step={step.span_id}").content.decode().replace("&#x27;", "'")
    assert word in body
    assert sentence in body
    assert "&quot;odd&quot;:{&quot;0&quot;:&quot;clock&quot;}" in body


def test_what_arrives_long_after_the_end_is_late(send: Callable[..., Any]) -> None:
    began = timezone.now() - timedelta(hours=3)
    send(*at(began, *episode()))
    Trajectory.objects.update(received_at=began)
    Step.objects.update(received_at=began + timedelta(seconds=2))
    send(*at(began, span(99, parent=1)))
    row = Trajectory.objects.get()
    assert words(row) == {f"{99:016x}": ["late"]}
    assert of_whole(row) == ["1 step arrived more than an hour after its end."]


def test_an_old_file_is_not_late(cast: Cast, send: Callable[..., Any]) -> None:
    send(*at(timezone.now() - timedelta(days=300), *episode()))
    Trajectory.objects.update(source=Source.IMPORT)
    row = Trajectory.objects.get()
    assert (words(row), of_whole(row)) == ({}, [])


def test_a_message_of_five_megabytes_is_shown_by_its_beginning_and_kept_whole(
    cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]
) -> None:
    whole = "Where is order 17? " + "x" * 5_000_000 + " the end"
    asked = [text("user", whole)]
    send(
        span(1, gen_ai__operation__name="chat", gen_ai__input__messages=asked, notes="y" * 70_000),
    )
    step = Step.objects.get()
    client = sign_in(cast.viewer)
    address = reverse("trajectories:detail", args=[cast.project.slug, TRACE])
    answer = client.get(f"{address}?step={step.span_id}&side=raw")
    body = answer.content.decode()
    assert "Where is order 17? xxx" in body
    assert "gen_ai.input.messages" in body
    assert len(body) < 200_000
    files = reverse("trajectories:download", args=[cast.project.slug, TRACE])
    values = {blob.sha256: blob.content for blob in Blob.objects.all()}
    assert len(values) == 2
    for digest, content in values.items():
        file = client.get(files, {"step": step.span_id, "value": digest})
        assert file.content.decode() == content
        assert (file["X-Content-Type-Options"], file["Content-Type"]) == ("nosniff", "text/plain; charset=utf-8")
        assert file["Content-Disposition"].startswith("attachment; ")
    assert whole.encode() in client.get(files, {"step": step.span_id}).content
    assert client.get(files, {"step": step.span_id, "value": "0" * 64}).status_code == 404


def test_a_value_of_another_step_is_no_file_of_this_one(
    cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]
) -> None:
    send(span(1, notes="y" * 70_000), span(2))
    digest = Blob.objects.get().sha256
    files = reverse("trajectories:download", args=[cast.project.slug, TRACE])
    assert sign_in(cast.viewer).get(files, {"step": f"{2:016x}", "value": digest}).status_code == 404
    assert sign_in(cast.viewer).get(files, {"step": f"{1:016x}", "value": digest}).status_code == 200


def test_a_body_that_only_looks_like_a_reference_stays_text(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    from flywheel.trajectories.formats.otlp.spans import Span

    mark = {"$blob": "a" * 64, "bytes": 7, "preview": "p"}
    store(
        cast.project,
        [Span(TRACE, f"{1:016x}", attributes={"x": mark}, start_ns=START_NS)],
        source=Source.PRODUCTION,
        format="otlp",
    )
    address = reverse("trajectories:step", args=[cast.project.slug, TRACE])
    body = sign_in(cast.viewer).get(address, {"step": f"{1:016x}", "side": "raw"}).content.decode()
    assert "$blob" in body
    assert "Download" not in body


def test_parents_are_looked_up_in_a_hash_whatever_is_known_of_the_table(build: Build) -> None:
    row = build.trajectory()
    moment, pause = timezone.now(), timedelta(hours=1)
    plan = bound(f"EXPLAIN VERBOSE {anomalies._WHOLE}", [pause, moment, moment, row.pk, row.pk]).fetchall()
    assert any("hashed SubPlan" in line for (line,) in plan)
