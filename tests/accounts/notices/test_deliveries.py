"""Notices on their way: signed, in order, at least once, tried for a day, and then kept for a person."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.core import mail
from django.urls import reverse
from django.utils import timezone
from standardwebhooks import Webhook, WebhookVerificationError

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Notice, NoticeDelivery, NoticeEvent
from flywheel.accounts.notices import deliveries, notice_targets, notify
from tests.accounts.notices.listener import Listener, answer, hang, kill_caller, listening
from tests.conftest import Cast
from tests.worker import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)
State = NoticeDelivery.State


@pytest.fixture(autouse=True)
def _loopback_is_allowed(settings: Any) -> None:
    settings.NOTICE_NETWORKS = [ip_network("127.0.0.0/8")]


@pytest.fixture
def server() -> Iterator[Listener]:
    with listening() as found:
        yield found


@pytest.fixture
def put(cast: Cast) -> Callable[..., notice_targets.Put]:
    def go(url: str, name: str = "ops", kind: str = "webhook") -> notice_targets.Put:
        return notice_targets.put(
            project=cast.project, actor=Actor(cast.admin), name=name, kind=kind, url=url, events=NoticeEvent.values
        )

    return go


def tell(cast: Cast, title: str, subject: str = "run 1", **more: Any) -> Notice:
    return notify(project=cast.project, event="run.failed", subject=subject, title=title, **more)


def due_now() -> None:
    """Let the pauses be over."""
    NoticeDelivery.objects.filter(state=State.WAITING).update(due_at=timezone.now())


def deliver(rounds: int = 1) -> None:
    for _ in range(rounds):
        due_now()
        deliveries.deliver()


def test_a_webhook_gets_a_signed_message_once(cast: Cast, server: Listener, put: Any, settings: Any) -> None:
    settings.PUBLIC_URL = "https://flywheel.example"
    secret = put(server.url).secret
    notice = tell(cast, "Run 1 failed", text="of agent@3", url="/p/acme/training/runs/1/")
    deliver(3)
    (got,) = server.received
    assert Webhook(secret).verify(got.body, got.headers) == {
        "type": "run.failed",
        "timestamp": notice.at.isoformat(),
        "data": {
            "project": "acme",
            "subject": "run 1",
            "title": "Run 1 failed",
            "text": "of agent@3",
            "url": "https://flywheel.example/p/acme/training/runs/1/",
        },
    }
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(got.body.replace(b"failed", b"passed"), got.headers)
    row = NoticeDelivery.objects.get()
    assert (row.state, row.attempts, row.error) == (State.SENT, 1, "")


def test_slack_gets_a_text_in_which_nothing_calls_or_links(cast: Cast, server: Listener, put: Any) -> None:
    put(server.url, kind="slack")
    tell(cast, "<!channel> & <https://evil.example|Approve>\nRun\u202e 1", text="*a* <@U1>", url="/p/acme/")
    deliver()
    (got,) = server.received
    assert got.json["text"].split("\n") == [
        "&lt;!channel&gt; &amp; &lt;https://evil.example|Approve&gt; Run 1",
        "*a* &lt;@U1&gt;",
        "http://127.0.0.1:8000/p/acme/",
    ]
    assert (got.json["mrkdwn"], got.json["link_names"], "webhook-id" in got.headers) == (False, False, False)


def test_notices_of_a_subject_come_in_order_and_do_not_hold_up_others(cast: Cast, server: Listener, put: Any) -> None:
    put(server.url)
    for title in ("one", "two", "three"):
        tell(cast, title)
    tell(cast, "other", subject="run 2")

    def fail_one(handler: Any) -> None:
        answer(handler, 503 if server.titles[-1] == "one" and len(server.received) < 6 else 200)

    server.behave = fail_one
    deliver(8)
    assert [title for title in server.titles if title == "other"] == ["other"]
    rest = [title for title in server.titles if title != "other"]
    assert rest[-3:] == ["one", "two", "three"]
    assert set(rest[:-3]) == {"one"}


def test_it_is_tried_again_after_growing_pauses(cast: Cast, server: Listener, put: Any) -> None:
    put(server.url)
    tell(cast, "one")
    server.behave = lambda handler: answer(handler, 500 if len(server.received) < 4 else 204)
    pauses = []
    for _ in range(3):
        deliver()
        row = NoticeDelivery.objects.get()
        assert (row.state, row.error) == (State.WAITING, "the server answered 500")
        pauses.append(round((row.due_at - timezone.now()).total_seconds()))
        deliveries.deliver()
    assert pauses == [5, 30, 300]
    assert len(server.received) == 3, "nothing is sent before its time"
    deliver()
    assert NoticeDelivery.objects.get().state == State.SENT
    assert len({each.headers["webhook-id"] for each in server.received}) == 1


def test_after_a_day_it_waits_for_a_person_and_the_next_one_is_tried(cast: Cast, server: Listener, put: Any) -> None:
    put(server.url)
    tell(cast, "one")
    tell(cast, "two")
    server.behave = lambda handler: answer(handler, 500 if len(server.received) < 2 else 200)
    NoticeDelivery.objects.filter(notice__title="one").update(give_up_at=timezone.now())
    deliver(2)
    assert server.titles == ["one", "two"]
    (dead,) = notice_targets.dead_letters(cast.project)
    assert (dead.notice.title, dead.error) == ("one", "the server answered 500")
    assert notice_targets.send_again(project=cast.project, actor=Actor(cast.admin), letters=[dead.pk]) == 1
    assert notice_targets.send_again(project=cast.project, actor=Actor(cast.admin)) == 0
    deliver()
    assert server.titles == ["one", "two", "one"]
    assert not notice_targets.dead_letters(cast.project).exists()


def test_the_last_try_is_at_the_end_of_the_day(cast: Cast, server: Listener, put: Any) -> None:
    put(server.url)
    tell(cast, "one")
    server.behave = lambda handler: answer(handler, 500)
    NoticeDelivery.objects.update(attempts=20, give_up_at=timezone.now() + timedelta(hours=1))
    deliver()
    row = NoticeDelivery.objects.get()
    assert (row.state, row.due_at) == (State.WAITING, row.give_up_at)


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (lambda handler: answer(handler, 302, Location="http://127.0.0.1/"), "redirects to another address"),
        (hang, "no answer within"),
        (lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"), "nonsense"),
        (lambda _: None, "closed connection"),
    ],
)
def test_what_does_not_take_it_is_named(
    cast: Cast, server: Listener, put: Any, behave: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "TIMEOUT_S", 0.5)
    put(server.url)
    tell(cast, "one")
    server.behave = behave
    deliver()
    row = NoticeDelivery.objects.get()
    assert row.state == State.WAITING
    assert why in row.error


def test_a_target_that_hangs_does_not_hold_up_the_others(
    cast: Cast, server: Listener, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "TIMEOUT_S", 0.5)
    with listening() as hanging:
        hanging.behave = hang
        put(hanging.url, "hanging")
        put(server.url, "well")
        for number in range(5):
            tell(cast, f"{number}", subject=f"run {number}")
        deliveries.deliver()
    assert server.titles == ["0", "1", "2", "3", "4"]
    assert len(hanging.received) == 1


def test_an_address_that_is_allowed_no_longer_gets_nothing(
    cast: Cast, server: Listener, put: Any, settings: Any
) -> None:
    put(server.url)
    tell(cast, "one")
    settings.NOTICE_NETWORKS = []
    deliver()
    assert "no public address" in NoticeDelivery.objects.get().error
    assert server.received == []


def test_a_target_of_another_secret_key_says_what_to_do(cast: Cast, server: Listener, put: Any, settings: Any) -> None:
    put(server.url)
    tell(cast, "one")
    settings.SECRET_KEY = "another"
    deliver()
    assert "must enter it again under Settings › Notices" in NoticeDelivery.objects.get().error


def test_who_is_killed_after_sending_sends_again_with_the_same_id(cast: Cast, server: Listener, put: Any) -> None:
    put(server.url)
    tell(cast, "one")
    tell(cast, "two")
    code = "import django; django.setup()\nfrom flywheel.accounts.notices.deliveries import deliver\ninput()\ndeliver()"
    environment = {**os.environ, "DATABASE_URL": database_url(), "FLYWHEEL_NOTICE_NETWORKS": "127.0.0.0/8"}
    sender = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, stdin=subprocess.PIPE)
    server.behave = kill_caller(sender.pid)
    sender.communicate(b"\n", timeout=60)
    assert sender.returncode == -9
    assert server.titles == ["one"]
    server.behave = lambda handler: answer(handler, 200)
    deliveries.deliver()
    assert server.titles == ["one"], "it may be under way still"
    deliver(2)
    assert server.titles == ["one", "one", "two"]
    first, repeated, _ = (each.headers["webhook-id"] for each in server.received)
    assert first == repeated
    assert set(NoticeDelivery.objects.values_list("state", flat=True)) == {State.SENT}


def test_a_sender_that_was_replaced_marks_nothing(cast: Cast, server: Listener, put: Any) -> None:
    target = put(server.url).target
    tell(cast, "one")
    slow = deliveries._claim(target.pk)
    assert slow is not None
    due_now()
    again = deliveries._claim(target.pk)
    assert again is not None
    deliveries._try(slow, time.monotonic() + 30)
    assert NoticeDelivery.objects.get().state == State.WAITING
    assert deliveries._claim(target.pk) is None
    deliveries._try(again, time.monotonic() + 30)
    assert NoticeDelivery.objects.get().state == State.SENT


def test_a_sender_that_wakes_up_after_its_time_sends_nothing(cast: Cast, server: Listener, put: Any) -> None:
    target = put(server.url).target
    tell(cast, "one")
    row = deliveries._claim(target.pk)
    assert row is not None
    assert not deliveries._try(row, time.monotonic() - 1)
    assert server.received == []


def test_a_target_is_tried_at_once_and_says_what_is_wrong(
    cast: Cast, server: Listener, put: Any, client: Any, key: Any, sign_in: Any
) -> None:
    done = put(server.url)

    def click() -> str:
        page = reverse("settings:try_notice_target", args=["acme", done.target.pk])
        return str(sign_in(cast.admin).post(page, follow=True).content.decode())

    assert "ops took the test message." in click()
    assert Webhook(done.secret).verify(server.received[0].body, server.received[0].headers)["type"] == "test"
    server.behave = lambda handler: answer(handler, 404)
    assert "ops did not take the test message: the server answered 404" in click()
    tried = client.post("/api/v1/notice-targets/ops/try", headers=key("admin")).json()
    assert tried == {"works": False, "words": "the server answered 404"}
    assert not Notice.objects.exists()


# E-mail


@pytest.fixture
def reader(cast: Cast, settings: Any) -> Cast:
    settings.EMAIL_HOST = "mail.example"
    settings.DEFAULT_FROM_EMAIL = "flywheel@example.org"
    cast.trainer.email, cast.trainer.is_mailed_notices = "trainer@example.org", True
    cast.trainer.save()
    return cast


def test_who_wants_it_gets_an_e_mail(reader: Cast) -> None:
    reader.admin.email = "admin@example.org"
    reader.admin.save()
    tell(reader, "Run 1\r\nBcc: all@example.org", text="of agent@3", url="/p/acme/training/runs/1/")
    deliver(2)
    (sent,) = mail.outbox
    assert (sent.to, sent.from_email) == (["trainer@example.org"], "flywheel@example.org")
    assert sent.subject == f"[{reader.project.name}] Run 1 Bcc: all@example.org"
    assert "http://127.0.0.1:8000/p/acme/training/runs/1/" in sent.body
    assert "Bcc" not in sent.message()


def test_who_left_meanwhile_gets_none(reader: Cast) -> None:
    tell(reader, "one")
    reader.trainer.memberships.all().delete()
    deliver()
    assert mail.outbox == []
    assert NoticeDelivery.objects.get().state == State.SENT


def test_without_a_mail_server_no_mail_waits(reader: Cast, settings: Any) -> None:
    settings.EMAIL_HOST = ""
    tell(reader, "one")
    assert not NoticeDelivery.objects.exists()


def test_a_mail_server_that_fails_is_tried_again(reader: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(reader, "one")

    def refuse(**_: Any) -> Any:
        raise ConnectionRefusedError("nobody is there")

    with monkeypatch.context() as broken:
        broken.setattr(deliveries, "get_connection", refuse)
        deliver()
    assert NoticeDelivery.objects.get().error == "the mail server: nobody is there"
    deliver()
    assert len(mail.outbox) == 1


def test_old_notices_are_forgotten(cast: Cast, server: Listener, put: Any) -> None:
    put(server.url)
    tell(cast, "old")
    tell(cast, "new")
    Notice.objects.filter(title="old").update(at=timezone.now() - deliveries.KEPT)
    deliveries.forget()
    assert [row.notice.title for row in NoticeDelivery.objects.all()] == ["new"]
