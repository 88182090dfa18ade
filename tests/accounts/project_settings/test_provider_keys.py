"""Keys for model servers: sealed, bound to one server, never shown, and used wherever an endpoint names them."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, ProviderKey, User
from flywheel.accounts.models.seals import CannotUnseal
from flywheel.accounts.project_settings import provider_connection, provider_keys
from flywheel.agents.registration import make_agent, make_version
from flywheel.agents.version_content import VersionContent
from flywheel.edge.refusals import Refused
from flywheel.trajectories.ingest.gateway import routing
from flywheel.trajectories.ingest.gateway.routing import NoRoute, Route
from tests.conftest import Cast
from tests.pages import page_of
from workers.jobs.eval_runs import open_version

pytestmark = pytest.mark.django_db
PAGE = "/p/acme/settings/models/"
SECRET = "sk-very-secret-1234"
SERVER = "https://api.example.com/v1"


def enter(cast: Cast, name: str = "EXAMPLE_API_KEY", base_url: str = SERVER, secret: str = SECRET) -> ProviderKey:
    return provider_keys.enter(
        project=cast.project, actor=Actor(cast.admin), name=name, base_url=base_url, secret=secret
    )


class Models(BaseHTTPRequestHandler):
    """A server of models that knows one key."""

    answer: ClassVar[tuple[int, bytes]] = (200, json.dumps({"data": [{"id": "a"}, {"id": "b"}]}).encode())
    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(f"{self.path} {self.headers['Authorization']}")
        status, body = self.answer if self.headers["Authorization"] == f"Bearer {SECRET}" else (401, b"who?")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Models, "seen", [])
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}/v1"
    serving.shutdown()
    serving.server_close()
    thread.join()


def test_a_key_is_sealed_and_nowhere_to_be_seen(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    admin = sign_in(cast.admin)
    answer = admin.post(PAGE, {"name": "EXAMPLE_API_KEY", "base_url": f" {SERVER}/ ", "secret": SECRET})
    assert (answer.status_code, answer.headers["Location"]) == (302, PAGE)
    row = ProviderKey.objects.get()
    assert (row.base_url, row.unseal()) == (SERVER, SECRET)
    assert SECRET not in row.sealed
    assert SECRET not in json.dumps(list(AuditEntry.objects.values("action", "subject", "data")))
    assert AuditEntry.objects.get(action="accounts.enter_provider_key").data["base_url"] == SERVER
    text = page_of(admin.get(PAGE))
    assert "EXAMPLE_API_KEY" in text
    assert SECRET not in text
    refused = admin.post(PAGE, {"name": "EXAMPLE_API_KEY", "base_url": "nowhere", "secret": SECRET})
    assert refused.status_code == 422
    assert SECRET not in page_of(refused), "nor where the form is shown again"


def test_one_name_is_one_key_and_entering_it_again_changes_it(cast: Cast) -> None:
    enter(cast)
    enter(cast, secret="sk-other", base_url="https://other.example.com/v1")
    row = ProviderKey.objects.get()
    assert (row.unseal(), row.base_url) == ("sk-other", "https://other.example.com/v1")
    assert AuditEntry.objects.filter(action="accounts.enter_provider_key", data__before=SERVER).count() == 1


@pytest.mark.parametrize(
    ("changes", "field", "told"),
    [
        ({"name": "sk-1234"}, "name", "not a valid key name"),
        ({"name": "EXAMPLE_KEY"}, "name", "ending in _API_KEY"),
        ({"base_url": "api.example.com"}, "base_url", "expected the address of a server"),
        ({"base_url": "http://api.example.com/v1"}, "base_url", "anyone who can see the traffic can read the key"),
        ({"base_url": "http://169.254.169.254:80/v1"}, "base_url", "credentials"),
        ({"secret": "a b"}, "secret", "without spaces"),
        ({"secret": "ключ"}, "secret", "visible characters"),
        ({"secret": " "}, "secret", "visible characters"),
    ],
)
def test_what_is_no_key_is_refused_at_its_field(cast: Cast, changes: dict[str, str], field: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        enter(cast, **changes)
    assert refused.value.field == field
    assert told in refused.value.problem
    assert not ProviderKey.objects.exists()


def test_a_key_goes_to_its_own_server_alone(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(cast)
    for ours in (SERVER, "https://api.example.com", "https://api.example.com:443/other"):
        assert provider_keys.secret_for(cast.project.pk, "EXAMPLE_API_KEY", ours) == SECRET
    for theirs in (
        "https://api.example.com.evil.org/v1",
        "http://api.example.com/v1",
        "https://api.example.com:444/v1",
        "https://me@api.example.com/v1",
        "https://[",
    ):
        assert "is for api.example.com" in provider_keys.refusal(cast.project.pk, "EXAMPLE_API_KEY", theirs)
        with pytest.raises(provider_keys.NoKey, match="it is not sent to"):
            provider_keys.secret_for(cast.project.pk, "EXAMPLE_API_KEY", theirs)
    monkeypatch.setenv("EXAMPLE_API_KEY", "sk-operator")
    monkeypatch.setenv("EXAMPLE_API_KEY_HOSTS", "api.example.com")
    assert provider_keys.secret_for(cast.project.pk, "EXAMPLE_API_KEY", SERVER) == SECRET, "the project's own first"
    assert provider_keys.secret_for(cast.elsewhere.pk, "EXAMPLE_API_KEY", SERVER) == "sk-operator"


def test_without_a_key_it_is_said_where_one_is_entered(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_API_KEY_HOSTS", "api.example.com")
    with pytest.raises(
        provider_keys.NoKey, match=r"no key EXAMPLE_API_KEY: have an admin enter it under Settings › Models"
    ):
        provider_keys.secret_for(cast.project.pk, "EXAMPLE_API_KEY", SERVER)


def test_another_secret_key_cannot_unseal_it_and_says_what_to_do(cast: Cast, settings: Any) -> None:
    row = enter(cast)
    settings.SECRET_KEY = "another"
    with pytest.raises(CannotUnseal, match="an admin must enter it again"):
        row.unseal()
    with pytest.raises(provider_keys.NoKey, match="an admin must enter it again"):
        provider_keys.secret_for(cast.project.pk, "EXAMPLE_API_KEY", SERVER)


def test_a_version_names_the_key_and_its_engine_sends_it(cast: Cast) -> None:
    enter(cast)
    agent = make_agent(project=cast.project, actor=Actor(cast.builder), name="mail")
    endpoint = {"kind": "openai", "base_url": SERVER, "model": "m", "api_key_env": "EXAMPLE_API_KEY"}
    content = VersionContent(base_model="m", endpoint=endpoint)
    version, _ = make_version(agent=agent, actor=Actor(cast.builder), content=content)
    assert "project" not in version.endpoint
    assert open_version(version).api_key == SECRET  # type: ignore[attr-defined]
    elsewhere = VersionContent(base_model="m", endpoint=endpoint | {"base_url": "https://evil.example.org/v1"})
    with pytest.raises(Refused, match=r"is for api\.example\.com"):
        make_version(agent=agent, actor=Actor(cast.builder), content=elsewhere)


def test_the_gateway_sends_it_and_forgets_it_with_the_key(cast: Cast) -> None:
    row = enter(cast)
    route = routing.keyed(Route(cast.project.pk, 0, SERVER, "EXAMPLE_API_KEY"))
    assert route.key() == SECRET
    assert SECRET not in repr(route)
    provider_keys.remove(key=row, actor=Actor(cast.admin))
    with pytest.raises(NoRoute, match="EXAMPLE_API_KEY is bound to no host"):
        routing.keyed(Route(cast.project.pk, 0, SERVER, "EXAMPLE_API_KEY")).key()


def test_the_connection_is_tried_with_the_list_of_models(
    cast: Cast, sign_in: Callable[[User], Client], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, admin = enter(cast, base_url=server), sign_in(cast.admin)
    assert "EXAMPLE_API_KEY: 2 models are available with this key" in page_of(
        admin.post(f"{PAGE}{row.pk}/try/", follow=True)
    )
    assert Models.seen == [f"/v1/models Bearer {SECRET}"]
    for answer, told in [
        ((404, b""), "no list of models at this address"),
        ((302, b""), "redirects to another address"),
        ((500, b"<b>oops"), "the server answered 500: <b>oops"),
        ((200, b"<html>"), "not an OpenAI-compatible server; it answered: <html>"),
    ]:
        monkeypatch.setattr(Models, "answer", answer)
        tried = provider_connection.try_connection(row)
        assert (tried.works, told in tried.words) == (False, True), tried
    wrong = enter(cast, name="WRONG_API_KEY", base_url=server, secret="sk-wrong")
    assert "the server rejects this key (401): who?" in provider_connection.try_connection(wrong).words
    away = enter(cast, name="AWAY_API_KEY", base_url="http://127.0.0.1:9/v1")
    assert "no answer from http://127.0.0.1:9/v1" in provider_connection.try_connection(away).words
    ProviderKey.objects.filter(pk=away.pk).update(base_url="http://a..b:80/v1")  # of before such hosts were refused
    away.refresh_from_db()
    assert "no answer from http://a..b:80/v1" in provider_connection.try_connection(away).words


def test_programs_enter_try_list_and_forget_keys(
    cast: Cast, key: Callable[..., Any], client: Client, server: str
) -> None:
    admin = key("admin")
    body = json.dumps({"base_url": server, "key": SECRET})
    made = client.put("/api/v1/provider-keys/EXAMPLE_API_KEY", body, "application/json", headers=admin)
    assert (made.status_code, made.json()["base_url"]) == (200, server)
    assert SECRET not in made.content.decode()
    listed = client.get("/api/v1/provider-keys", headers=admin).json()["items"]
    assert [row["name"] for row in listed] == ["EXAMPLE_API_KEY"]
    tried = client.post("/api/v1/provider-keys/EXAMPLE_API_KEY/try", headers=admin).json()
    assert tried == {"works": True, "words": "2 models are available with this key"}
    assert client.get("/api/v1/provider-keys", headers=key("read")).status_code == 403
    assert client.delete("/api/v1/provider-keys/EXAMPLE_API_KEY", headers=admin).status_code == 204
    assert client.delete("/api/v1/provider-keys/EXAMPLE_API_KEY", headers=admin).status_code == 404


def test_the_operators_keys_are_listed_without_their_values(
    cast: Cast, sign_in: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_API_KEY", SECRET)
    monkeypatch.setenv("EXAMPLE_API_KEY_HOSTS", "api.example.com")
    text = page_of(sign_in(cast.admin).get(PAGE))
    assert "Set by the operator" in text
    assert "api.example.com" in text
    assert SECRET not in text
