"""Signing in: generic refusals, tries that are counted, a password that must be changed first."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from flywheel.accounts.models import AuditEntry, LoginAttempt, Membership, Project, Role, User
from flywheel.accounts.pages import login
from tests.conftest import Cast

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
LOGIN = "/account/login/"
PASSWORD = "correct horse battery"


@pytest.fixture
def ada() -> User:
    return User.objects.create_user(username="ada", password=PASSWORD)


def attempt(client: Client, password: str, username: str = "ada", **more: Any) -> Any:
    return client.post(LOGIN, {"username": username, "password": password}, **more)


def test_a_right_password_signs_in_and_goes_where_it_was_going(ada: User, client: Client) -> None:
    answer = client.post(f"{LOGIN}?next=/account/", {"username": "ada", "password": PASSWORD, "next": "/account/"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/account/")
    away = Client().post(LOGIN, {"username": "ada", "password": PASSWORD, "next": "https://evil.example/"})
    assert away.headers["Location"] == "/"


def test_a_wrong_name_and_a_wrong_password_look_the_same(ada: User, client: Client) -> None:
    answers = [attempt(client, "wrong"), attempt(client, PASSWORD, username="nobody")]
    assert [answer.status_code for answer in answers] == [422, 422]
    for answer in answers:
        assert b"Username and password do not match." in answer.content
        assert PASSWORD.encode() not in answer.content


def test_after_five_tries_even_the_right_password_waits(ada: User, client: Client) -> None:
    for _ in range(login.TRIES_PER_NAME):
        assert attempt(client, "wrong").status_code == 422
    refused = attempt(client, PASSWORD)
    assert refused.status_code == 429
    assert b"Too many tries from here" in refused.content
    assert attempt(client, PASSWORD, REMOTE_ADDR="192.0.2.7").status_code == 302, "from elsewhere it is not locked"


def test_the_tries_are_forgotten_with_time(ada: User, client: Client) -> None:
    for _ in range(login.TRIES_PER_NAME + 1):
        attempt(client, "wrong")
    LoginAttempt.objects.update(at=timezone.now() - login.WINDOW - timedelta(seconds=1))
    assert attempt(client, PASSWORD).status_code == 302
    assert LoginAttempt.objects.count() == 0


def test_another_spelling_of_the_name_is_the_same_name(ada: User, client: Client) -> None:
    for username in ("ada", "ADA", "Ada", "aDa", "adA"):
        attempt(client, "wrong", username=username)
    assert attempt(client, PASSWORD).status_code == 429


def test_many_names_from_one_address_are_counted_together(ada: User, client: Client) -> None:
    LoginAttempt.objects.bulk_create(
        LoginAttempt(username=f"name{number}", address="127.0.0.1") for number in range(login.TRIES_PER_ADDRESS)
    )
    assert attempt(client, PASSWORD).status_code == 429


@pytest.mark.django_db(transaction=True)
def test_tries_at_the_same_moment_are_all_counted(ada: User) -> None:
    def one(_: int) -> int:
        try:
            return int(attempt(Client(), "wrong").status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(one, range(12)))
    assert statuses.count(422) <= login.TRIES_PER_NAME
    assert set(statuses) == {422, 429}


def test_a_forwarded_address_counts_only_behind_a_proxy(rf: Any, settings: Any) -> None:
    request = rf.get("/", headers={"X-Forwarded-For": "10.0.0.1, 203.0.113.9"}, REMOTE_ADDR="127.0.0.1")
    assert login.address_of(request) == "127.0.0.1"
    settings.SESSION_COOKIE_SECURE = True
    assert login.address_of(request) == "203.0.113.9"


def test_home_leads_to_the_only_project_or_lets_choose(cast: Cast, sign_in: SignIn) -> None:
    assert sign_in(cast.viewer).get("/").headers["Location"] == "/p/acme/"
    second = Project.objects.create(slug="second", name="Second")
    Membership.objects.create(user=cast.viewer, project=second, role=Role.BUILDER)
    page = sign_in(cast.viewer).get("/").content.decode()
    assert "Acme" in page
    assert "Second" in page
    assert "Elsewhere" not in page


def test_who_belongs_to_no_project_is_told_what_to_do(ada: User, sign_in: SignIn) -> None:
    page = sign_in(ada).get("/").content.decode()
    assert "You have no projects yet" in page
    assert "manage.py create_project my-project --admin ada" in page


def test_a_password_is_changed_and_other_sessions_end(ada: User, sign_in: SignIn) -> None:
    here, elsewhere = sign_in(ada), sign_in(ada)
    wrong = here.post("/account/", {"old_password": "no", "new_password1": "n" * 12, "new_password2": "n" * 12})
    assert wrong.status_code == 422
    new = "another horse battery"
    answer = here.post("/account/", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})
    assert answer.status_code == 302
    ada.refresh_from_db()
    assert ada.check_password(new)
    assert here.get("/account/").status_code == 200
    assert elsewhere.get("/account/").status_code == 302
    assert AuditEntry.objects.get().action == "accounts.change_password"


def test_nothing_is_open_before_a_password_of_ones_own(cast: Cast, sign_in: SignIn) -> None:
    cast.viewer.set_password(PASSWORD)
    cast.viewer.must_change_password = True
    cast.viewer.save()
    client = sign_in(cast.viewer)
    for url in ("/", "/p/acme/", "/p/acme/agents/"):
        assert client.get(url).headers["Location"] == "/account/"
    new = "another horse battery"
    answer = client.post("/account/", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})
    assert answer.headers["Location"] == "/"
    assert client.get("/p/acme/").status_code == 200


def test_a_stale_form_is_told_so_in_our_own_page(ada: User) -> None:
    answer = Client(enforce_csrf_checks=True).post(LOGIN, {"username": "ada", "password": PASSWORD})
    assert answer.status_code == 403
    assert b"Reload the page" in answer.content


def test_logout_wants_a_post(ada: User, sign_in: SignIn) -> None:
    client = sign_in(ada)
    assert client.get("/account/logout/").status_code == 405
    assert client.post("/account/logout/").status_code == 302
    assert client.get("/account/").status_code == 302
