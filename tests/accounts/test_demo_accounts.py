"""The demo's door opens by its link, on its own machine, and leads nowhere but into the demo."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts import demo_accounts
from flywheel.accounts.models import Membership, Project, Role, User

pytestmark = pytest.mark.django_db
SWITCH = "/account/demo/"


@pytest.fixture
def demo() -> Project:
    project = Project.objects.create(slug="demo", name="Demo", is_demo=True)
    for username, roles in demo_accounts.ROLES.items():
        user = User.objects.create_user(username=username)
        for role in roles:
            Membership.objects.create(user=user, project=project, role=role)
    return project


def entered(client: Client | None = None) -> Client:
    client = client or Client()
    client.get(reverse("accounts:demo", args=[demo_accounts.link_token()]))
    return client


def who(client: Client) -> str:
    key = client.session.get("_auth_user_id")
    return User.objects.get(pk=key).username if key else ""


@pytest.mark.usefixtures("demo")
def test_the_link_signs_the_visitor_in_as_reviewer_and_the_role_is_switched_without_a_password() -> None:
    client = entered()
    assert who(client) == "reviewer"
    page = client.get("/p/demo/").content.decode()
    assert "You are the" in page
    assert "Approver" in page
    answer = client.post(SWITCH, {"username": "approver", "next": "/p/demo/promotions/"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/p/demo/promotions/")
    assert who(client) == "approver"
    assert who(entered(client)) == "approver", "the link leaves alone whom it let in before"


@pytest.mark.usefixtures("demo")
def test_another_token_opens_nothing() -> None:
    client = Client()
    for token in ("x", demo_accounts.link_token()[:-1], "demo"):
        assert client.get(reverse("accounts:demo", args=[token])).status_code == 404
    assert who(client) == ""


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize(
    "outside",
    [{"REMOTE_ADDR": "192.0.2.7"}, {"HTTP_X_FORWARDED_FOR": "192.0.2.7"}, {"HTTP_FORWARDED": "for=192.0.2.7"}],
)
def test_a_browser_elsewhere_gets_404_with_the_right_token_too(outside: dict[str, Any]) -> None:
    client = Client()
    assert client.get(reverse("accounts:demo", args=[demo_accounts.link_token()]), **outside).status_code == 404
    assert entered(client).post(SWITCH, {"username": "trainer"}, **outside).status_code == 404
    assert who(client) == "reviewer"


@pytest.mark.usefixtures("demo")
def test_a_server_that_others_can_reach_has_no_such_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_BIND", "0.0.0.0")
    assert who(entered()) == ""


def test_who_is_a_member_elsewhere_too_can_be_no_one_else_and_nobody_can_be_them(demo: Project) -> None:
    team = Project.objects.create(slug="team", name="Team")
    Membership.objects.create(user=User.objects.get(username="trainer"), project=team, role=Role.ADMIN)
    client = entered()
    assert client.post(SWITCH, {"username": "trainer"}).status_code == 404
    assert who(client) == "reviewer"
    client.force_login(User.objects.get(username="trainer"))
    assert client.post(SWITCH, {"username": "approver"}).status_code == 404
    assert "You are the" not in client.get("/p/demo/").content.decode()


def test_a_stranger_and_an_account_of_another_name_switch_nothing(demo: Project) -> None:
    assert Client().post(SWITCH, {"username": "approver"}).status_code == 302, "to the login"
    other = User.objects.create_user(username="ana")
    Membership.objects.create(user=other, project=demo, role=Role.ADMIN)
    client = Client()
    client.force_login(other)
    assert client.post(SWITCH, {"username": "approver"}).status_code == 404
    assert who(client) == "ana"


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize("place", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)", ""])
def test_the_switch_leads_to_no_other_site(place: str) -> None:
    answer = entered().post(SWITCH, {"username": "trainer", "next": place})
    assert answer.headers["Location"] == "/p/demo/"


@pytest.mark.usefixtures("demo")
def test_the_tour_is_hidden_and_shown_again_in_every_role() -> None:
    client = entered()
    assert "Guided tour" in client.get("/p/demo/").content.decode()
    client.post(SWITCH, {"tour": "hide"})
    client.post(SWITCH, {"username": "trainer"})
    page = client.get("/p/demo/").content.decode()
    assert 'aria-label="Guided tour"' not in page
    assert "Show the guided tour" in page
    client.post(SWITCH, {"tour": "show"})
    assert 'aria-label="Guided tour"' in client.get("/p/demo/").content.decode()
