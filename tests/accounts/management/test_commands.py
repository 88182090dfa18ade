"""`manage.py prepare`, `create_key`, `create_project`."""

import json
import re
import stat
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from flywheel.accounts.models import ApiKey, AuditEntry, Project, User
from tests.conftest import Cast

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def home(tmp_path: Path, settings: Any) -> Path:
    settings.HOME = tmp_path
    return tmp_path


def test_a_key_is_all_that_is_printed(cast: Cast) -> None:
    text = run("create_key", "--project", "acme", "--scope", "ingest", "--scope", "build")
    assert text.count("\n") == 1
    key = ApiKey.find(text.strip())
    assert key is not None
    assert key.scopes == ["build", "ingest"]
    assert (key.created_by.username, key.created_by.has_usable_password()) == ("system", False)
    assert sorted(key.created_by.memberships.values_list("role", flat=True)) == ["builder", "viewer"]
    assert AuditEntry.objects.get().through == "manage.py create_key"


def test_every_scope_can_be_had_by_command(cast: Cast) -> None:
    every = ["ingest", "read", "review", "build", "train", "approve", "admin"]
    key = ApiKey.find(run("create_key", "--project", "acme", *[f"--scope={scope}" for scope in every]).strip())
    assert key is not None
    assert set(key.scopes) == set(every)


def test_a_key_of_a_person_may_not_more_than_they(cast: Cast) -> None:
    assert run("create_key", "--project", "acme", "--scope", "review", "--user", "reviewer")
    with pytest.raises(CommandError, match="reviewer can't launch and stop training here"):
        run("create_key", "--project", "acme", "--scope", "train", "--user", "reviewer")
    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--project", "nope", "--scope", "ingest"], "no project 'nope'; there is acme, elsewhere"),
        (["--project", "acme", "--scope", "ingest", "--user", "nobody"], "no user 'nobody'"),
        (["--project", "acme", "--scope", "ingest", "--days", "0"], "1 to 3650 days"),
        (["--project", "acme", "--scope", "all"], "invalid choice: 'all'"),
        (["--project", "acme"], "required: --scope"),
    ],
)
def test_what_is_wrong_is_said(cast: Cast, arguments: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        run("create_key", *arguments)
    assert not ApiKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_prepare_makes_a_project_and_an_admin_whose_password_is_printed_once(home: Path) -> None:
    first = run("prepare")
    assert "Admin of project default: username admin, password " in first
    password = first.split("password ")[1].split(" ")[0]
    assert User.objects.get(username="admin").check_password(password)
    assert run("prepare") == ""
    assert run("prepare", "--logins") == ""
    assert Project.objects.get().slug == "default"


@pytest.mark.django_db(transaction=True)
def test_prepare_makes_the_demos_logins_and_prints_them_at_every_start(home: Path) -> None:
    run("prepare", "--demo")
    project = Project.objects.get(slug="demo")
    assert project.is_demo
    file = home / "demo_logins.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    logins = json.loads(file.read_text())
    assert sorted(logins) == ["approver", "reviewer", "trainer"]
    for username, password in logins.items():
        user = User.objects.get(username=username)
        assert user.check_password(password)
        assert set(user.memberships.values_list("project__slug", flat=True)) == {"demo", "agent", "releases"}
        assert username in user.memberships.values_list("role", flat=True)
    printed = run("prepare", "--logins")
    assert all(password in printed for password in logins.values())
    link = re.search(r"http://127\.0\.0\.1:[0-9]+(/account/demo/\S+/)", printed)
    assert link
    assert Client().get(link[1]).headers["Location"] == "/p/demo/"
    run("prepare", "--demo")
    assert run("prepare", "--logins") == printed
    changed = User.objects.get(username="trainer")
    changed.set_password("a password of my own")
    changed.save()
    assert logins["trainer"] not in run("prepare", "--logins")


def test_create_project_makes_its_admin_when_there_is_none(cast: Cast) -> None:
    made = run("create_project", "mail", "--name", "Mail agent", "--admin", "ada")
    password = made.strip().rpartition(" ")[2]
    ada = User.objects.get(username="ada")
    assert ada.check_password(password)
    assert ada.must_change_password
    assert run("create_project", "second", "--admin", "viewer").strip() == "project second, admin viewer"
    with pytest.raises(CommandError, match="a project 'mail' already exists"):
        run("create_project", "mail", "--admin", "ada")
    with pytest.raises(CommandError, match="cannot be used in a URL"):
        run("create_project", "a b", "--admin", "ada")
