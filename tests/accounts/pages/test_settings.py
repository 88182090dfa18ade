"""Members, keys and the audit log, by click and by program."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, AuditEntry, Membership, Role, User
from flywheel.accounts.project_settings import api_keys, members
from flywheel.edge.refusals import Refused
from tests.conftest import Build, Cast
from tests.pages import page_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
SETTINGS = "/p/acme/settings/"


@pytest.fixture
def admin(cast: Cast, sign_in: SignIn) -> Client:
    cast.admin.set_password("correct horse battery")
    cast.admin.save()
    return sign_in(cast.admin)


def roles(user: User) -> list[str]:
    return sorted(user.memberships.filter(project__slug="acme").values_list("role", flat=True))


def test_a_new_person_gets_an_account_and_a_password_that_is_shown_once(admin: Client, client: Client) -> None:
    answer = admin.post(f"{SETTINGS}members/", {"username": "carla", "roles": ["reviewer", "approver"]})
    assert answer.status_code == 302
    page = admin.get(SETTINGS).content.decode()
    shown = re.search(r'<code[^>]* id="once">([^<]+)</code>', page)
    assert shown is not None
    assert shown[1] not in admin.get(SETTINGS).content.decode(), "only once"
    carla = User.objects.get(username="carla")
    assert carla.check_password(shown[1])
    assert carla.must_change_password
    assert roles(carla) == ["approver", "reviewer"]
    entry = AuditEntry.objects.get(action="accounts.add_member")
    assert (entry.subject, entry.data["new_account"]) == ("carla", True)
    assert shown[1] not in str(entry.data)


def test_a_double_click_makes_one_member_and_keeps_the_password(admin: Client) -> None:
    for _ in range(2):
        assert admin.post(f"{SETTINGS}members/", {"username": "carla", "roles": ["viewer"]}).status_code == 302
    assert 'id="once"' in admin.get(SETTINGS).content.decode()
    assert AuditEntry.objects.count() == 1


def test_a_person_with_an_account_keeps_their_password(cast: Cast, admin: Client) -> None:
    before = cast.stranger.password
    admin.post(f"{SETTINGS}members/", {"username": "stranger", "roles": ["viewer"]})
    cast.stranger.refresh_from_db()
    assert (roles(cast.stranger), cast.stranger.password) == (["viewer"], before)
    assert 'id="once"' not in admin.get(SETTINGS).content.decode()


@pytest.mark.parametrize(
    ("username", "chosen", "told"),
    [
        ("viewer", ["reviewer"], "is already a member"),
        ("<b>x</b>", ["viewer"], "cannot be a username"),
        ("carla", [], "choose at least one role"),
        ("carla", ["owner"], "is not one of the available choices"),
    ],
)
def test_what_does_not_fit_is_told_at_the_form(admin: Client, username: str, chosen: list[str], told: str) -> None:
    before = Membership.objects.count()
    answer = admin.post(f"{SETTINGS}members/", {"username": username, "roles": chosen})
    assert answer.status_code == 422
    assert told in answer.content.decode()
    assert Membership.objects.count() == before
    assert not AuditEntry.objects.exists()


def test_roles_are_changed_and_the_change_is_written_down(cast: Cast, admin: Client) -> None:
    admin.post(f"{SETTINGS}members/{cast.viewer.pk}/", {"roles": ["builder"]})
    assert roles(cast.viewer) == ["builder"]
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.data) == ("accounts.set_roles", {"before": ["viewer"], "after": ["builder"]})
    admin.post(f"{SETTINGS}members/{cast.viewer.pk}/", {"roles": ["builder"]})
    assert AuditEntry.objects.count() == 1, "the same again changes nothing"
    admin.post(f"{SETTINGS}members/{cast.viewer.pk}/", {"remove": "1"})
    assert roles(cast.viewer) == []


def test_the_last_admin_stays(cast: Cast, admin: Client) -> None:
    answer = admin.post(f"{SETTINGS}members/{cast.admin.pk}/", {"roles": ["viewer"]}, follow=True)
    assert "is the last admin of Acme" in answer.content.decode()
    assert roles(cast.admin) == ["admin"]
    machine = User.objects.create_user(username="system")
    Membership.objects.create(user=machine, project=cast.project, role=Role.ADMIN)
    with pytest.raises(Refused):
        members.set_roles(project=cast.project, actor=Actor(cast.admin), user=cast.admin, roles=[])
    cast.viewer.set_password("correct horse battery")
    cast.viewer.save()
    members.set_roles(project=cast.project, actor=Actor(cast.admin), user=cast.viewer, roles=["admin"])
    members.set_roles(project=cast.project, actor=Actor(cast.admin), user=cast.admin, roles=[])
    assert roles(cast.admin) == []


def test_a_key_is_shown_once_and_works(cast: Cast, admin: Client, client: Client) -> None:
    form = {"name": "exporter", "scopes": ["ingest", "read"], "days": "30", "form": str(uuid.uuid4())}
    for _ in range(2):
        assert admin.post(f"{SETTINGS}keys/make/", form).status_code == 302
    page = admin.get(f"{SETTINGS}keys/").content.decode()
    shown = re.search(r"fw_[0-9a-f]{12}_[\w-]{40,}", page)
    assert shown is not None
    assert shown[0] not in admin.get(f"{SETTINGS}keys/").content.decode()
    key = ApiKey.objects.get()
    assert shown[0].rpartition("_")[2] not in str(AuditEntry.objects.get().__dict__)
    assert client.get("/api/v1/agents", headers={"authorization": f"Bearer {shown[0]}"}).status_code == 200
    assert admin.post(f"{SETTINGS}keys/{key.pk}/revoke/").status_code == 302
    assert client.get("/api/v1/agents", headers={"authorization": f"Bearer {shown[0]}"}).status_code == 401
    assert list(AuditEntry.objects.values_list("action", flat=True)) == ["accounts.revoke_key", "accounts.make_key"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": ""}, "This field is required"),
        ({"scopes": []}, "This field is required"),
        ({"scopes": ["approve"]}, "is not one of the available choices"),
        ({"days": "4"}, "is not one of the available choices"),
        ({"form": "x"}, "Reload the page"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_at_the_form(admin: Client, change: dict[str, Any], told: str) -> None:
    form = {"name": "exporter", "scopes": ["ingest"], "days": "", "form": str(uuid.uuid4()), **change}
    answer = admin.post(f"{SETTINGS}keys/make/", form)
    assert answer.status_code == 422
    assert told in answer.content.decode()
    assert not ApiKey.objects.exists()


def test_nobody_makes_a_key_that_may_more_than_they(cast: Cast) -> None:
    with pytest.raises(Refused, match="can't approve and roll back promotions here"):
        api_keys.make(project=cast.project, actor=Actor(cast.admin), name="x", scopes=["approve"])


def test_the_audit_log_is_paged_and_filtered(cast: Cast, admin: Client) -> None:
    for number in range(60):
        Actor(cast.reviewer if number % 2 else cast.trainer).record(
            project=cast.project,
            action="failures.confirm" if number % 2 else "training.launch",
            subject=f"thing {number:02}",
        )
    Actor(cast.stranger).record(project=cast.elsewhere, action="failures.confirm", subject="secret elsewhere")

    def seen(url: str) -> list[str]:
        return re.findall(r">(thing \d\d|secret elsewhere)<", admin.get(url).content.decode())

    first = admin.get(f"{SETTINGS}audit/").content.decode()
    assert seen(f"{SETTINGS}audit/") == [f"thing {number:02}" for number in range(59, 9, -1)]
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older is not None
    assert seen(f"{SETTINGS}audit/{older[1]}") == [f"thing {number:02}" for number in range(9, -1, -1)]
    assert len(seen(f"{SETTINGS}audit/?action=failures")) == 30
    assert len(seen(f"{SETTINGS}audit/?action=failures.confirm&actor=reviewer")) == 30
    assert seen(f"{SETTINGS}audit/?action=failures.confirm&actor=trainer") == []
    assert seen(f"{SETTINGS}audit/?q=thing+07") == ["thing 07"]
    assert admin.get(f"{SETTINGS}audit/?cursor=x").status_code == 302
    for nonsense in ("q=%00", "actor=%00", "action=%00.", "cursor=%00"):
        assert admin.get(f"{SETTINGS}audit/?{nonsense}").status_code == 400


def test_a_program_does_what_the_pages_do(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key("admin")
    everybody = client.get("/api/v1/members", headers=headers).json()["items"]
    assert {"username": "viewer", "roles": ["viewer"]} in everybody
    changed = client.put("/api/v1/members/viewer", {"roles": ["builder"]}, "application/json", headers=headers)
    assert changed.json() == {"username": "viewer", "roles": ["builder"]}
    cannot = client.put("/api/v1/members/admin", {"roles": []}, "application/json", headers=headers)
    assert cannot.status_code == 409
    made = client.post("/api/v1/keys", {"name": "ci", "scopes": ["read"]}, "application/json", headers=headers)
    assert made.status_code == 201
    public = made.json()["key"]["public"]
    assert client.get("/api/v1/agents", headers={"authorization": f"Bearer {made.json()['text']}"}).status_code == 200
    listed = client.get("/api/v1/keys?limit=1", headers=headers).json()
    assert listed["items"][0]["public"] == public
    assert listed["next"]
    assert client.post(f"/api/v1/keys/{public}/revoke", headers=headers).json()["revoked_at"]
    unknown = client.post("/api/v1/keys/none/revoke", headers=headers)
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "there is no api key none"})
    entries = client.get("/api/v1/audit?action=accounts", headers=headers).json()["items"]
    assert [entry["action"] for entry in entries] == ["accounts.revoke_key", "accounts.make_key", "accounts.set_roles"]
    assert all(entry["through"].startswith("key ") for entry in entries)
    assert client.get("/api/v1/audit?q=%00", headers=headers).status_code == 400
    nul = client.post("/api/v1/keys", {"name": "a\0b", "scopes": ["read"]}, "application/json", headers=headers)
    assert (nul.status_code, "cannot be stored" in nul.json()["detail"]) == (422, True)
    cast.admin.is_active = False
    cast.admin.save()
    assert client.get("/api/v1/keys", headers=headers).status_code == 403, "an account that is closed"


BECOME = f"{SETTINGS}members/become-approver/"


def leave_only(user: User) -> None:
    Membership.objects.filter(project__slug="acme").exclude(user=user).delete()


def test_a_lone_admin_becomes_an_approver_where_it_is_missing(cast: Cast, admin: Client, build: Build) -> None:
    leave_only(cast.admin)
    version = build.version()
    page = f"/p/acme/agents/{version.agent.name}/"
    for address in (page, f"{page}versions/1/"):
        shown = page_of(admin.get(address))
        assert "You are the only member.</b> Give yourself the approver role?" in shown, address
    answer = admin.post(BECOME, {"next": page})
    assert (answer.status_code, answer["Location"]) == (302, page)
    assert roles(cast.admin) == ["admin", "approver"]
    entry = AuditEntry.objects.get(action="accounts.set_roles")
    assert (entry.actor, entry.data) == (cast.admin, {"before": ["admin"], "after": ["admin", "approver"]})
    shown = page_of(admin.get(page))
    assert "Give yourself" not in shown
    assert "You are now an approver" in shown


def test_whoever_is_refused_an_approval_is_told_how_to_give_it(cast: Cast, admin: Client, build: Build) -> None:
    leave_only(cast.admin)
    build.version()
    answer = admin.post("/p/acme/promotions/agents/assistant/first/1/")
    assert answer.status_code == 403
    assert "Give yourself the approver role?" in page_of(answer)
    elsewhere = admin.post(BECOME, {"next": "//evil.example/p/acme/"})
    assert elsewhere["Location"] == SETTINGS


def test_nobody_becomes_an_approver_beside_another_or_without_being_an_admin(
    cast: Cast, admin: Client, sign_in: SignIn, build: Build
) -> None:
    build.version()
    assert "Give yourself" not in page_of(admin.get("/p/acme/agents/assistant/"))
    admin.post(BECOME, follow=True)
    assert roles(cast.admin) == ["admin"]
    Membership.objects.filter(role=Role.APPROVER).delete()
    assert "No member is an approver yet." in page_of(admin.get("/p/acme/agents/assistant/"))
    assert sign_in(cast.trainer).post(BECOME).status_code == 403
    assert "Give yourself" not in page_of(sign_in(cast.trainer).get("/p/acme/agents/assistant/"))


def test_a_form_from_elsewhere_makes_no_approver(cast: Cast) -> None:
    leave_only(cast.admin)
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast.admin)
    assert client.post(BECOME).status_code == 403
    assert roles(cast.admin) == ["admin"]
