"""The upstream of a project's gateway: chosen by an admin, checked, audited, and shown with where its key goes."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Project, User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.accounts.project_settings.server_addresses import check_address
from flywheel.core.network.link_local import is_metadata
from flywheel.edge.refusals import Refused
from tests.conftest import Cast

pytestmark = pytest.mark.django_db
PAGE = "/p/acme/settings/gateway/"
UPSTREAM = {"base_url": "https://api.example.com/v1", "api_key_env": "EXAMPLE_API_KEY"}


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's word on where the key goes."""
    monkeypatch.setenv("EXAMPLE_API_KEY_HOSTS", "api.example.com")


@pytest.fixture
def admin(cast: Cast, sign_in: Callable[[User], Client]) -> Client:
    return sign_in(cast.admin)


def test_an_admin_chooses_the_upstream(admin: Client, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = admin.post(PAGE, {"base_url": " https://api.example.com/v1/ ", "api_key_env": "EXAMPLE_API_KEY"})
    assert (answer.status_code, answer.headers["Location"]) == (302, PAGE)
    assert Project.objects.get(slug="acme").upstream == UPSTREAM
    entry = AuditEntry.objects.get(action="accounts.set_upstream")
    assert (entry.actor, entry.subject, entry.data["before"]) == (cast.admin, UPSTREAM["base_url"], {})
    page = admin.get(PAGE).content.decode()
    assert "there is no key EXAMPLE_API_KEY" in page
    monkeypatch.setenv("EXAMPLE_API_KEY", "sk-very-secret")
    page = admin.get(PAGE).content.decode()
    assert "api.example.com</b> and to no other host" in page
    assert "sk-very-secret" not in page
    admin.post(PAGE, UPSTREAM)
    assert AuditEntry.objects.filter(action="accounts.set_upstream").count() == 1, "nothing changed"
    admin.post(PAGE, {"base_url": "", "api_key_env": "EXAMPLE_API_KEY"})
    assert Project.objects.get(slug="acme").upstream == {}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"base_url": "api.example.com"}, "expected the address of a server"),
        ({"base_url": "ftp://api.example.com"}, "expected the address of a server"),
        ({"base_url": "https://"}, "expected the address of a server"),
        ({"base_url": "https://h:99999/v1"}, "expected the address of a server"),
        ({"base_url": "https://[::1"}, "expected the address of a server"),
        ({"base_url": "https://exämple.com/v1"}, "expected the address of a server"),
        ({"base_url": "http://a..b:80/v1"}, "expected the address of a server"),
        ({"base_url": f"http://{'a' * 64}.com/v1"}, "expected the address of a server"),
        ({"base_url": "https://key:secret@h/v1"}, "leave out logins"),
        ({"base_url": "https://h/v1?key=1"}, "leave out logins"),
        ({"base_url": "http://169.254.169.254/v1"}, "credentials"),
        ({"base_url": "http://[fe80::1]/v1"}, "credentials"),
        ({"base_url": "http://[::ffff:169.254.169.254]/v1"}, "credentials"),
        ({"api_key_env": "sk-very-secret"}, "name the key or its environment variable"),
        ({"api_key_env": "DATABASE_URL"}, "name the key or its environment variable"),
        ({"api_key_env": "example_API_KEY"}, "name the key or its environment variable"),
        ({"api_key_env": "OTHER_API_KEY"}, "sets OTHER_API_KEY_HOSTS=api.example.com for web and worker"),
        ({"base_url": "https://evil.example/v1"}, "may be sent to api.example.com only"),
    ],
)
def test_what_cannot_be_an_upstream_is_told(changes: dict[str, str], told: str, admin: Client, cast: Cast) -> None:
    answer = admin.post(PAGE, {**UPSTREAM, **changes})
    assert answer.status_code == 422
    assert told in answer.content.decode()
    assert Project.objects.get(slug="acme").upstream == {}
    with pytest.raises(Refused):
        set_upstream(project=cast.project, actor=Actor(cast.admin), **{**UPSTREAM, **changes})


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://gpu-1:8000", "https://[fd12::1]:8443/a/b"])
def test_private_addresses_are_where_models_run(url: str) -> None:
    assert check_address(url) == url


def test_every_metadata_address_is_known() -> None:
    addresses = ["169.254.169.254", "169.254.0.1", "fe80::1%eth0", "::ffff:169.254.1.1", "fd00:ec2::254"]
    assert [address for address in addresses if not is_metadata(address)] == []
    assert [address for address in ("127.0.0.1", "10.0.0.1", "example.com", "") if is_metadata(address)] == []


def test_what_waits_to_be_recorded_is_told(admin: Client, settings: Any, tmp_path: Any) -> None:
    settings.GATEWAY_DIR = tmp_path
    (tmp_path / "under way.exchange").write_bytes(b"x")
    (tmp_path / "a.exchange").write_bytes(b"x")
    os.utime(tmp_path / "a.exchange", (0, 0))
    assert "1 exchange of this installation waits to be recorded" in " ".join(admin.get(PAGE).content.decode().split())
