"""The connect page: what it shows, the key that it makes, and what it says of what arrives or does not."""

import re
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, connection
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from flywheel.accounts.models import ApiKey, AuditEntry, Membership, Project, Role, User
from flywheel.trajectories.ingest.onboarding import refused_requests
from flywheel.trajectories.ingest.onboarding.diagnosis import Diagnosis, diagnose
from flywheel.trajectories.ingest.onboarding.snippets import KEY, ORIGIN, SNIPPETS
from flywheel.trajectories.models import Attempt, Trajectory
from tests.conftest import Cast
from tests.pages import page_of
from tests.trajectories.talking import TRACE, body_of, episode, request_of, span

PROTOBUF = "application/x-protobuf"
HERE = "/p/acme/trajectories/connect/"
Keys = Callable[..., dict[str, str]]


@pytest.fixture
def since(db: None) -> datetime:
    return timezone.now()


def send(client: Client, body: bytes = b"", path: str = "/v1/traces", kind: str = PROTOBUF, **headers: str) -> Any:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(path, body, content_type=kind, headers={"Content-Type": kind, **given})


def said(found: Diagnosis) -> str:
    return " | ".join(finding.sentence for finding in found.findings)


def chat(number: int = 1, **attributes: Any) -> Span:
    return span(number, name="chat", gen_ai__operation__name="chat", **attributes)


# The page


def test_every_framework_is_shown_with_the_real_address(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    page = page_of(sign_in(cast.viewer).get(HERE, headers={"host": "localhost:8123"}))
    for snippet in SNIPPETS.values():
        assert f'id="text-{snippet.key}"' in page
        assert snippet.label in page
    assert "http://localhost:8123/v1/traces" in page
    assert ORIGIN not in page
    assert "--project acme" in page
    assert page.count("hidden>") >= len(SNIPPETS) - 1, "one is chosen, the others wait"


def test_the_framework_is_in_the_address(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    page = page_of(sign_in(cast.viewer).get(HERE, {"with": "vercel"}))
    assert re.search(r'id="with-vercel" aria-label="Vercel AI SDK">', page)
    assert re.search(r'id="with-curl" aria-label="curl" hidden>', page)
    assert sign_in(cast.viewer).get(HERE, {"with": "<nonsense>"}).status_code == 200


def test_behind_a_proxy_the_address_is_the_proxys(cast: Cast, sign_in: Callable[[User], Client], settings: Any) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    page = sign_in(cast.viewer).get(HERE, headers={"host": "localhost", "x-forwarded-proto": "https"})
    assert "https://localhost/v1/traces" in page_of(page)


def test_grpc_is_named_where_it_is_taken(
    cast: Cast, sign_in: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "gRPC" not in page_of(sign_in(cast.viewer).get(HERE)).partition("</header>")[2].partition("nav")[0]
    monkeypatch.setenv("FLYWHEEL_GRPC_PORT", "4317")
    page = page_of(sign_in(cast.viewer).get(HERE, headers={"host": "localhost:8000"}))
    assert "by gRPC to <code>localhost:4317</code>" in page


def make(client: Client, **more: str) -> HttpResponse:
    fields = {"with": "curl", "form": str(uuid.uuid4()), **more}
    return client.post(f"{HERE}key/", fields)  # type: ignore[return-value]


def test_a_key_is_made_shown_once_and_audited(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    client = sign_in(cast.admin)
    answer = make(client)
    assert answer.headers["Location"] == f"{HERE}?with=curl"
    key = ApiKey.objects.get()
    assert (key.project, key.scopes, key.created_by) == (cast.project, ["ingest"], cast.admin)
    assert AuditEntry.objects.get().action == "accounts.make_key"
    page = client.get(answer.headers["Location"])
    text = re.search(rf"fw_{key.public}_[\w-]+", page_of(page))
    assert text is not None
    assert ApiKey.find(text[0]) == key
    assert "no-store" in page.headers["Cache-Control"]
    filled = page.context["snippets"]
    assert all((text[0] in s.text) == (s.scope == "ingest") for s in filled), "not where its scope does not fit"
    assert key.public not in page_of(client.get(HERE))


def test_a_double_click_makes_one_key(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    client, form = sign_in(cast.admin), str(uuid.uuid4())
    assert make(client, form=form).status_code == make(client, form=form).status_code == 302
    assert ApiKey.objects.count() == 1
    assert make(client, form="nonsense").status_code == 302
    assert ApiKey.objects.count() == 1


def test_the_gateways_key_has_its_scope(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    make(sign_in(cast.admin), **{"with": "gateway"})
    assert ApiKey.objects.get().scopes == ["gateway"]


def test_a_key_is_not_shown_in_another_project(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    Membership.objects.create(user=cast.admin, project=cast.elsewhere, role=Role.VIEWER)
    client = sign_in(cast.admin)
    make(client)
    public = ApiKey.objects.get().public
    assert public not in page_of(client.get(HERE.replace("acme", "elsewhere")))
    assert public in page_of(client.get(HERE))


def test_who_may_not_make_keys_is_told_who_may(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    page = page_of(sign_in(cast.builder).get(HERE))
    assert "Make a key" not in page
    assert "Ask a project admin" in page
    assert make(sign_in(cast.builder)).status_code == 403


@pytest.mark.parametrize("path", ["", "trajectories/", "settings/keys/"])
def test_the_way_to_the_page(path: str, cast: Cast, sign_in: Callable[[User], Client]) -> None:
    assert f'href="{HERE}"' in page_of(sign_in(cast.admin).get(f"/p/acme/{path}"))


def test_the_fragment_asks_again_until_all_is_seen(
    cast: Cast, sign_in: Callable[[User], Client], client: Client, key: Keys
) -> None:
    viewer = sign_in(cast.viewer)
    page = page_of(viewer.get(HERE))
    again = re.search(r'hx-get="([^"]+)" hx-trigger="every 2s"', page)
    assert again is not None
    address = again[1].replace("&amp;", "&")
    assert f'hx-get="{again[1]}"' in page_of(viewer.get(address)), "from the same moment until the same moment"
    send(client, body_of(episode()), **key("ingest"))
    fragment = page_of(viewer.get(address))
    assert "First trajectory: <a" in fragment
    assert "hx-get" in fragment, "more spans may come"
    Trajectory.objects.update(changed_at=timezone.now() - timedelta(seconds=10))
    fragment = page_of(viewer.get(address))
    assert "it works" in fragment
    assert "hx-get" not in fragment
    assert "Review" not in fragment
    Trajectory.objects.update(proposed_bucket="wrong_tool")
    assert '<a class="btn primary" href="/p/acme/failures/queue/">Review 1 proposal</a>' in page_of(viewer.get(address))


def test_it_stops_looking_after_a_while(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    viewer = sign_in(cast.viewer)
    fragment = page_of(viewer.get(f"{HERE}live/", {"since": "1", "until": "1"}))
    assert "hx-get" not in fragment
    assert "Check again" in fragment
    for nonsense in ("", "x", "-1", "9" * 30, "٣"):
        assert viewer.get(f"{HERE}live/", {"since": nonsense, "until": nonsense}).status_code == 200


# What it says


def test_nothing_came(cast: Cast, since: datetime) -> None:
    found = diagnose(cast.project, since=since)
    assert "Waiting for the first request" in said(found)
    assert not found.findings[0].advice
    assert not found.is_done
    later = diagnose(cast.project, since=since, now=since + timedelta(minutes=1))
    assert "shutdown()" in later.findings[0].advice[0]


def test_a_whole_trajectory(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    send(client, body_of(episode()), **key("ingest"))
    found = diagnose(cast.project, since=since)
    [finding] = found.findings
    assert finding.tone == "ok"
    assert finding.sentence == "6 steps, 3 model calls."
    assert finding.trajectory == Trajectory.objects.get()
    facts = {fact.name: fact for fact in finding.facts}
    assert (facts["messages"].value, facts["tools"].value) == ("yes", "2 calls")
    assert facts["tokens"].is_there
    assert (facts["cost"].value, facts["cost"].is_there) == ("no", False)
    assert "gen_ai.usage.cost" in facts["cost"].hint
    assert finding.age == "0 s ago"
    assert not found.is_done
    assert diagnose(cast.project, since=since, now=timezone.now() + timedelta(seconds=10)).is_done


def test_what_a_thin_trajectory_lacks(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    request = request_of([chat(2, parent=1)])
    request.resource_spans[0].ClearField("resource")
    send(client, request.SerializeToString(), **key("ingest"))
    [finding] = diagnose(cast.project, since=since).findings
    missing = {fact.name: fact.value for fact in finding.facts if not fact.is_there}
    assert missing == {
        "messages": "no",
        "tokens": "no",
        "cost": "no",
        "agent": "missing",
        "version": "missing",
        "session": "missing",
        "outcome": "missing",
        "tree": "1 span names a parent that has not come",
    }


def test_spans_that_are_no_model_calls(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    request = request_of([span(1, name="GET /orders", http__request__method="GET", session__id="s")])
    request.resource_spans[0].scope_spans[0].scope.CopyFrom(InstrumentationScope(name="otel.requests"))
    send(client, request.SerializeToString(), **key("ingest"))
    [finding] = diagnose(cast.project, since=since).findings
    assert (finding.tone, finding.sentence) == ("warn", "1 span came, and none is a model call.")
    assert (finding.read, finding.unread) == (["session.id"], ["http.request.method"])
    assert "otel.requests, which watches no model" in finding.advice[0]


def test_spans_of_a_dialect_that_do_not_say_what_they_are(
    cast: Cast, since: datetime, client: Client, key: Keys
) -> None:
    send(client, body_of([span(1, gen_ai__agent__name="mail"), span(2, gen_ai__conversation__id="s")]), **key("ingest"))
    [finding] = diagnose(cast.project, since=since).findings
    assert finding.sentence == "2 spans came, and none is a model call."
    assert "gen_ai.operation.name = chat" in finding.advice[0]


def test_some_spans_were_rejected(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    bad = [span(number) for number in (7, 8)]
    for item in bad:
        item.trace_id = b"short"
    send(client, body_of([chat(), *bad]), **key("ingest"))
    first, second = diagnose(cast.project, since=since).findings
    assert first.tone == "ok"
    assert second.sentence == "200, but 2 of 3 spans were rejected."
    assert second.reasons[0].startswith("span 1: ")


def test_all_spans_were_rejected(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    bad = span(7)
    bad.span_id = b""
    send(client, body_of([bad]), **key("ingest"))
    assert said(diagnose(cast.project, since=since)) == "200, but 1 of 1 span was rejected."


def test_an_empty_request(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    send(client, b"", **key("ingest"))
    assert said(diagnose(cast.project, since=since)) == "200, but the request held no spans."


def test_everything_was_there_already(cast: Cast, client: Client, key: Keys) -> None:
    headers = key("ingest")
    send(client, body_of(episode()), **headers)
    Trajectory.objects.update(received_at=timezone.now() - timedelta(minutes=1))
    since = timezone.now()
    send(client, body_of(episode()), **headers)
    assert "was already stored" in said(diagnose(cast.project, since=since))
    send(client, body_of([chat(99, gen_ai__agent__name="x")]), **headers)
    assert "existing trajectories" in said(diagnose(cast.project, since=since))


def of(headers: dict[str, str]) -> ApiKey:
    return ApiKey.objects.get(public=headers["authorization"].split("_")[1])


def test_a_revoked_key(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    headers = key("ingest")
    ApiKey.objects.update(revoked_at=timezone.now())
    assert send(client, body_of(episode()), **headers).status_code == 401
    [finding] = diagnose(cast.project, since=since).findings
    assert (finding.tone, finding.sentence) == ("bad", "401: the key “test” is revoked.")
    assert "Nothing" in said(diagnose(cast.elsewhere, since=since)), "no other project hears of it"


def test_a_key_that_has_expired(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    headers = key("ingest")
    ApiKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
    send(client, body_of(episode()), **headers)
    assert said(diagnose(cast.project, since=since)) == "401: the key “test” has expired."


def test_a_key_that_was_not_copied_whole(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    headers = key("ingest")
    send(client, body_of(episode()), authorization=headers["authorization"][:-3])
    assert "the secret does not fit the key “test”" in said(diagnose(cast.project, since=since))


def test_a_key_of_the_wrong_scope(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    send(client, body_of(episode()), **key("read"))
    assert said(diagnose(cast.project, since=since)) == (
        "403 with the key “test”: this key has no scope 'ingest'; it has read."
    )


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "there was no header"),
        ({"x_api_key": "fw_0123456789ab_secret"}, "came in the header x-api-key"),
        ({"authorization": "Basic cGs6c2s="}, "says Basic"),
        ({"authorization": "Bearer%20fw_0123456789ab_secret"}, "wants a space"),
        ({"authorization": '"Bearer fw_0123456789ab_secret"'}, "quotes"),
        ({"authorization": "fw_0123456789ab_secret"}, "the word Bearer is missing"),
        ({"authorization": "Token x"}, "not of the form"),
        ({"authorization": "Bearer sk-proj-hush"}, "none of this server's"),
        ({"authorization": f"Bearer {KEY}"}, "placeholder"),
        ({"authorization": "Bearer fw_0123456789ab_secret"}, "no key of this server begins"),
    ],
)
def test_a_request_without_a_key_of_ours(
    headers: dict[str, str], words: str, cast: Cast, since: datetime, client: Client
) -> None:
    assert send(client, body_of(episode()), **headers).status_code == 401
    [finding] = diagnose(cast.project, since=since).findings
    assert finding.sentence.startswith("401: ")
    assert words in finding.sentence
    assert "somebody else's" in finding.advice[-1]
    row = Attempt.objects.get()
    assert row.project is None
    assert not any(secret in row.reason for secret in ("hush", "cGs6", "0123456789ab"))


def test_a_body_of_another_kind(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    assert send(client, b"hello", kind="text/plain", **key("ingest")).status_code == 415
    [finding] = diagnose(cast.project, since=since).findings
    assert "415 with the key “test”: Content-Type is 'text/plain'" in finding.sentence
    assert "OTEL_EXPORTER_OTLP_PROTOCOL" in finding.advice[0]


def test_a_body_that_cannot_be_read(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    send(client, b"\xff\xff", **key("ingest"))
    assert said(diagnose(cast.project, since=since)).startswith("400 with the key “test”: ")


def test_a_body_that_is_too_large(cast: Cast, since: datetime, client: Client, key: Keys, settings: Any) -> None:
    settings.INGEST_MAX_BYTES = 100
    send(client, body_of(episode()), **key("ingest"))
    [finding] = diagnose(cast.project, since=since).findings
    assert "413" in finding.sentence
    assert "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" in finding.advice[0]


def test_trouble_of_ours(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    headers = key("ingest")
    with mock.patch("flywheel.trajectories.ingest.otlp_http.store", side_effect=RuntimeError("hush")):
        assert send(client, body_of(episode()), **headers).status_code == 503
    [finding] = diagnose(cast.project, since=since).findings
    assert finding.sentence == "503 with the key “test”: it could not be stored: RuntimeError."


@pytest.mark.parametrize("path", ["/", "/v1/traces/v1/traces", "/v1/traces/", "/api/public/otel/v1/traces", "/p/acme/"])
def test_the_wrong_path(path: str, cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    guarded = Client(enforce_csrf_checks=True)
    answer = send(guarded, body_of(episode()), path=path, **key("ingest"))
    assert (answer.status_code, answer["Content-Type"]) == (404, PROTOBUF)
    assert b"send it to /v1/traces" in answer.content
    [finding] = diagnose(cast.project, since=since).findings
    assert f"404 with the key “test”: nothing takes telemetry at {path}: send it to /v1/traces" in finding.sentence
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in finding.advice[0]


def test_the_wrong_path_and_no_key(cast: Cast, since: datetime, client: Client) -> None:
    send(client, b"{}", path="/hush/v1/logs", kind="application/json")
    assert said(diagnose(cast.project, since=since)) == f"404: {refused_requests.WRONG_PATH}."
    assert Attempt.objects.get().project is None


def test_other_requests_that_find_nothing_are_left_alone(client: Client, db: None) -> None:
    assert client.post("/nothing", b"{}", content_type="application/json")["Content-Type"].startswith("text/html")
    assert not Attempt.objects.exists()


def test_the_key_of_another_project_of_mine(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    send(client, body_of(episode()), **key("ingest", by=cast.stranger, project=cast.elsewhere))
    assert "Waiting" in said(diagnose(cast.project, since=since, user=cast.admin)), "not theirs to know"
    Membership.objects.create(user=cast.admin, project=cast.elsewhere, role=Role.VIEWER)
    assert said(diagnose(cast.project, since=since, user=cast.admin)) == (
        "A request came with the key “test” of another project: it is stored in Elsewhere."
    )


def test_what_was_refused_before_it_worked_is_over(cast: Cast, since: datetime, client: Client, key: Keys) -> None:
    headers = key("ingest")
    send(client, b"hello", kind="text/plain", **headers)
    send(client, body_of(episode()), **headers)
    assert said(diagnose(cast.project, since=since)) == "6 steps, 3 model calls."
    send(client, b"hello", kind="text/html", **headers)
    assert "415" in said(diagnose(cast.project, since=since))


# What is remembered of refused requests


def test_a_refusal_is_one_row_however_often(cast: Cast, client: Client, key: Keys) -> None:
    headers = key("ingest")
    for _ in range(3):
        refused_requests._limits[False] = refused_requests._Limit()
        send(client, b"hello", kind="text/plain", **headers)
    assert Attempt.objects.get().count == 3


def test_the_same_refusal_is_written_once_a_second(client: Client, db: None) -> None:
    for _ in range(5):
        send(client, b"hello")
    assert Attempt.objects.get().count == 1


def test_strangers_cannot_fill_the_table_or_crowd_others_out(cast: Cast, client: Client, key: Keys) -> None:
    for number in range(40):
        send(client, b"hello", authorization=f"Bearer fw_{number:012}_x{number}")
    assert Attempt.objects.count() <= refused_requests.A_SECOND
    send(client, b"hello", kind="text/plain", **key("ingest"))
    assert Attempt.objects.filter(project=cast.project).count() == 1


def test_a_project_keeps_so_many(cast: Cast, client: Client, key: Keys) -> None:
    headers = key("ingest")
    for number in range(refused_requests.KEPT + 5):
        refused_requests._limits[False] = refused_requests._Limit()
        send(client, b"hello", kind=f"text/kind{number}", **headers)
    assert Attempt.objects.count() == refused_requests.KEPT
    assert not Attempt.objects.filter(reason__contains="kind0'").exists(), "the oldest go"


def test_nothing_of_it_fails_a_request(cast: Cast, client: Client, key: Keys) -> None:
    headers = key("ingest")
    with mock.patch(
        "flywheel.trajectories.ingest.onboarding.refused_requests.presented", side_effect=OperationalError("gone")
    ):
        assert send(client, b"hello", kind="text/plain", **headers).status_code == 415
    assert send(client, b"hello", kind="text/plain\0", **headers).status_code == 415
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_a_request_that_is_taken_writes_nothing_of_it(cast: Cast, client: Client, key: Keys) -> None:
    send(client, body_of(episode()), **key("ingest"))
    assert not Attempt.objects.exists()
    assert Project.objects.filter(trajectories__trace_id=TRACE).exists()
