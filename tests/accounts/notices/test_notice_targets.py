"""Where notices are sent outside: what an admin may enter, by page and by API, and what is shown again of it."""

from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, NoticeDelivery, NoticeTarget, User
from flywheel.accounts.notices import notice_targets, notify
from flywheel.edge.refusals import Refused
from tests.conftest import Cast

pytestmark = pytest.mark.django_db
SLACK = "https://hooks.slack.com/services/T0/B0/very-secret"
SignIn = Callable[[User], Client]


def put(cast: Cast, **more: Any) -> notice_targets.Put:
    given = {"name": "ops", "kind": "webhook", "url": "https://ops.example/hook", "events": ["run.failed"], **more}
    return notice_targets.put(project=cast.project, actor=Actor(cast.admin), **given)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": " "}, "name: expected 1 to 60"),
        ({"name": "a/b"}, "name: expected 1 to 60"),
        ({"name": "x" * 61}, "name: expected 1 to 60"),
        ({"kind": "pager"}, "kind: 'pager' is unknown; use one of slack, webhook"),
        ({"events": []}, "events: expected at least one of candidate.waits"),
        ({"events": ["run.failed", "nothing"]}, "events: 'nothing' is unknown"),
        ({"url": ""}, "url: expected the address"),
        ({"url": "hooks.slack.com/x"}, "url: expected an address such as"),
        ({"url": "ftp://ops.example/"}, "url: expected an address such as"),
        ({"url": "https://ops.example:99999/"}, "url: expected an address such as"),
        ({"url": "https://ops.example/a b"}, "url: expected an address such as"),
        ({"url": "https://ops.example/\0"}, "url: expected an address such as"),
        ({"url": "https://ada:pw@ops.example/"}, "url: leave out logins"),
        ({"url": "https://ops.example/#a"}, "url: leave out logins"),
        ({"url": "http://169.254.169.254/latest"}, "is no public address"),
        ({"url": "http://127.0.0.1:9/"}, "FLYWHEEL_NOTICE_NETWORKS"),
        ({"url": "http://[::1]/"}, "is no public address"),
    ],
)
def test_what_cannot_be_a_target_is_refused(cast: Cast, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused) as refused:
        put(cast, **wrong)
    assert told in str(refused.value)
    assert not NoticeTarget.objects.exists()


def test_a_network_that_the_operator_allowed_is_taken(cast: Cast, settings: Any) -> None:
    settings.NOTICE_NETWORKS = [ip_network("127.0.0.0/8")]
    assert put(cast, url="http://127.0.0.1:9/").target.host == "127.0.0.1:9"


def test_a_secret_is_made_once_and_kept_with_its_address(cast: Cast) -> None:
    made = put(cast)
    assert made.secret.startswith("whsec_")
    assert made.target.unseal() == ("https://ops.example/hook", made.secret)
    assert made.secret not in made.target.sealed_secret
    changed = put(cast, url="", events=["run.ended", "run.failed"])
    assert (changed.target.pk, changed.secret) == (made.target.pk, "")
    assert changed.target.unseal() == ("https://ops.example/hook", made.secret)
    moved = put(cast, url="https://other.example/")
    assert moved.secret not in ("", made.secret)
    assert put(cast, name="chat", kind="slack", url=SLACK).secret == ""


def test_a_target_stays_of_its_kind(cast: Cast) -> None:
    put(cast)
    with pytest.raises(Refused, match="ops is already a Webhook target"):
        put(cast, kind="slack")


def test_a_project_has_so_many_and_no_more(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_targets, "AT_MOST", 2)
    put(cast, name="a")
    put(cast, name="b")
    put(cast, name="b", url="")
    with pytest.raises(Refused, match="at most 2 targets"):
        put(cast, name="c")


def test_the_page_shows_the_secret_once_and_an_address_never(cast: Cast, sign_in: SignIn) -> None:
    client, page = sign_in(cast.admin), reverse("settings:notices", args=["acme"])
    form = {"name": "ops", "kind": "webhook", "url": "https://ops.example/very-secret", "events": ["run.failed"]}
    shown = client.post(page, form, follow=True).content.decode()
    assert "whsec_" in shown
    form = {"name": "#chat", "kind": "slack", "url": SLACK, "events": ["run.failed", "candidate.waits"]}
    shown = client.post(page, form, follow=True).content.decode()
    assert "whsec_" not in shown
    assert "hooks.slack.com" in shown
    assert "very-secret" not in shown
    assert "very-secret" not in str(list(AuditEntry.objects.values_list("subject", "data")))
    edit = client.get(page, {"edit": NoticeTarget.objects.get(name="#chat").pk}).content.decode()
    assert "Change #chat" in edit
    assert edit.count("checked") == 2


def test_the_page_says_beside_its_field_what_is_wrong(cast: Cast, sign_in: SignIn) -> None:
    client, page = sign_in(cast.admin), reverse("settings:notices", args=["acme"])
    form = {"name": "ops", "kind": "webhook", "url": "http://10.0.0.1/", "events": ["run.failed"]}
    answer = client.post(page, form)
    assert answer.status_code == 422
    assert "10.0.0.1 is no public address" in answer.content.decode()
    assert client.post(page, {"name": "ops"}).status_code == 422


def test_dead_letters_are_listed_and_sent_again(cast: Cast, sign_in: SignIn) -> None:
    target = put(cast).target
    for title in ("first", "second"):
        notify(project=cast.project, event="run.failed", subject="run 1", title=title)
    NoticeDelivery.objects.update(state="dead", attempts=9, error="the server answered 500")
    client, page = sign_in(cast.admin), reverse("settings:notices", args=["acme"])
    shown = client.get(page).content.decode()
    assert shown.count("the server answered 500") == 2
    again = reverse("settings:send_notices_again", args=["acme"])
    first = NoticeDelivery.objects.order_by("pk").first()
    assert first is not None
    client.post(again, {"delivery": first.pk})
    assert NoticeDelivery.objects.filter(target=target, state="waiting").count() == 1
    client.post(again)
    assert "Could not be sent" not in client.get(page).content.decode()
    assert NoticeDelivery.objects.filter(state="waiting", attempts=0).count() == 2
    client.post(reverse("settings:remove_notice_target", args=["acme", target.pk]))
    assert not NoticeDelivery.objects.exists()


def test_nobody_sends_the_letters_of_another_project(cast: Cast, sign_in: SignIn) -> None:
    put(cast)
    notify(project=cast.project, event="run.failed", subject="run 1", title="t")
    NoticeDelivery.objects.update(state="dead")
    again = reverse("settings:send_notices_again", args=[cast.elsewhere.slug])
    sign_in(cast.stranger).post(again, {"delivery": NoticeDelivery.objects.get().pk})
    assert NoticeDelivery.objects.get().state == "dead"


def test_programs_set_targets_and_send_again(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key("admin")

    def call(method: str, path: str, body: Any = None) -> Any:
        given = {} if body is None else {"data": body, "content_type": "application/json"}
        return getattr(client, method)(f"/api/v1/{path}", headers=headers, **given)

    wanted = {"kind": "webhook", "url": "https://ops.example/hook", "events": ["run.failed"]}
    made = call("put", "notice-targets/ops", wanted).json()
    assert (made["name"], made["host"], made["secret"][:6]) == ("ops", "ops.example", "whsec_")
    assert call("put", "notice-targets/ops", {**wanted, "url": ""}).json()["secret"] == ""
    assert call("put", "notice-targets/x", {**wanted, "url": "http://10.0.0.1"}).json()["detail"].startswith("url: ")
    assert call("put", "notice-targets/x", {**wanted, "events": ["x"]}).status_code == 422
    (listed,) = call("get", "notice-targets").json()["items"]
    expected = {"name": "ops", "kind": "webhook", "host": "ops.example", "events": ["run.failed"]}
    assert listed == {**expected, "waiting": 0, "dead": 0}
    notify(project=cast.project, event="run.failed", subject="run 1", title="t")
    NoticeDelivery.objects.update(state="dead", error="e")
    (dead,) = call("get", "undelivered-notices").json()["items"]
    assert (dead["title"], dead["target"], dead["user"], dead["error"]) == ("t", "ops", None, "e")
    assert call("post", "undelivered-notices/again", {"ids": [dead["id"]]}).json() == {"again": 1}
    assert call("delete", "notice-targets/ops").status_code == 204
    assert call("delete", "notice-targets/ops").status_code == 404


# One's own account


def test_a_person_has_their_notices_mailed_or_not(cast: Cast, sign_in: SignIn, settings: Any) -> None:
    client, page = sign_in(cast.viewer), reverse("accounts:mailed_notices")
    assert "FLYWHEEL_SMTP_URL" in client.get(reverse("accounts:profile")).content.decode()
    settings.EMAIL_HOST = "mail.example"
    assert client.post(page, {"is_mailed_notices": "on", "email": ""}).status_code == 422
    assert client.post(page, {"is_mailed_notices": "on", "email": "no address"}).status_code == 422
    client.post(page, {"is_mailed_notices": "on", "email": "viewer@example.org"})
    cast.viewer.refresh_from_db()
    assert (cast.viewer.email, cast.viewer.is_mailed_notices) == ("viewer@example.org", True)
    client.post(page, {"email": "viewer@example.org"})
    cast.viewer.refresh_from_db()
    assert not cast.viewer.is_mailed_notices


def test_who_must_change_the_password_first_does_that(cast: Cast, sign_in: SignIn) -> None:
    User.objects.filter(pk=cast.viewer.pk).update(must_change_password=True)
    sign_in(cast.viewer).post(
        reverse("accounts:mailed_notices"), {"is_mailed_notices": "on", "email": "viewer@example.org"}
    )
    cast.viewer.refresh_from_db()
    assert not cast.viewer.is_mailed_notices
