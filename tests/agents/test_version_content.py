"""Endpoints of versions that are a team's own program: what they name, what is refused, and how pages show it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Version
from flywheel.agents.registration import make_version
from flywheel.agents.version_content import VersionContent, check_endpoint
from flywheel.edge.refusals import Refused
from tests.agents.test_registration import filled, new_version
from tests.conftest import Build, Cast

CODE = "9fceb02d0ae5"
PROGRAM = {"kind": "program", "way": "http", "url": "http://agent:9000/run", "code": CODE}
SignIn = Callable[[User], Client]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"way": "push"}, "endpoint.way: 'push' is unknown; use one of http, command, pull"),
        ({"way": None}, "endpoint.way: None is unknown"),
        ({"url": "agent:9000"}, "endpoint.url: 'agent:9000' is not the address of a server, such as http://agent"),
        ({"url": "http://169.254.169.254/x"}, "endpoint.url: is link-local"),
        ({"url": "http://a..b:80/run"}, "endpoint.url: 'http://a..b:80/run' is not the address"),
        ({"url": f"http://{'a' * 64}/run"}, "is not the address"),
        ({"url": "http://agent/ausführen"}, "is not the address"),
        ({"url": "http://bücher/run"}, "is not the address"),
        ({"code": "main"}, "endpoint.code: 'main' is not a fixed version of the code: expected a commit"),
        ({"code": "image:latest"}, "endpoint.code"),
        ({"code": None}, "endpoint.code"),
        ({"command": ["a"]}, "endpoint.command: is not part of a program endpoint"),
        ({"way": "command"}, "endpoint.url: is not part of a program endpoint"),
        ({"way": "command", "url": None, "command": "python a.py"}, "endpoint.url: is not part"),
        ({"timeout_s": 0}, "endpoint.timeout_s: 0 is not a number from 1 to 86400"),
        ({"concurrency": 1.5}, "endpoint.concurrency: 1.5 is not a whole number from 1 to 256"),
        ({"base_url": "http://gpu/v1"}, "endpoint.model: is missing"),
        ({"api_key_env": "X_API_KEY"}, "endpoint.api_key_env: goes with base_url"),
    ],
)
def test_a_program_that_cannot_be_found_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused) as refused:
        check_endpoint(PROGRAM | changes, 0)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "kind", [{"kind": "transformers"}, {"kind": "openai", "base_url": "http://gpu/v1", "model": "m"}]
)
def test_settings_of_the_chat_template_are_kept(kind: dict[str, Any]) -> None:
    thinking = {"enable_thinking": False, "budget": 3, "effort": "low"}
    assert check_endpoint(kind | {"chat_template_kwargs": thinking}, 0)["chat_template_kwargs"] == thinking
    assert "chat_template_kwargs" not in check_endpoint(kind | {"chat_template_kwargs": {}}, 0), "the version of before"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no", "endpoint.chat_template_kwargs: expected an object"),
        ([], "expected an object"),
        ({"a": {"b": 1}}, "expected an object"),
        ({"a": float("nan")}, "expected an object"),
        ({"a": float("inf")}, "expected an object"),
        ({"a": "\0"}, "expected an object"),
        ({"\0": 1}, "expected an object"),
        ({"a": "x" * 1001}, "expected an object"),
        ({str(at): at for at in range(21)}, "expected an object of at most 20"),
        ({"chat_template": "{{ 1 }}"}, "endpoint.chat_template_kwargs: chat_template is set by Flywheel itself"),
    ],
)
def test_settings_of_a_chat_template_that_are_none_are_refused(value: Any, says: str) -> None:
    with pytest.raises(Refused) as refused:
        check_endpoint({"kind": "transformers", "chat_template_kwargs": value}, 0)
    assert says in str(refused.value)


@pytest.mark.django_db
def test_settings_of_the_chat_template_are_written_in_the_form(build: Build, cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    assert 'name="chat_template_kwargs" value' not in client.get(new_version(build)).content.decode()
    answer = client.post(new_version(build), filled(chat_template_kwargs='{"enable_thinking": false}'))
    assert answer.status_code == 302, answer.context["form"].errors
    assert Version.objects.get().endpoint["chat_template_kwargs"] == {"enable_thinking": False}
    page = client.get(reverse("agents:version", args=["acme", "assistant", 1])).content.decode()
    assert "enable_thinking: False" in page
    again = client.get(new_version(build, like=1)).content.decode()
    assert "{&quot;enable_thinking&quot;: false}" in again
    wrong = client.post(new_version(build), filled(chat_template_kwargs='{"tools": 1}'))
    assert "is set by Flywheel itself" in str(wrong.context["form"].errors["chat_template_kwargs"])


@pytest.mark.parametrize("words", ["python a.py", [], [""], ["a", 1], ["a\0"], ["a"] * 65])
def test_a_command_is_a_list_of_words(words: Any) -> None:
    with pytest.raises(Refused, match=r"endpoint\.command: "):
        check_endpoint({"kind": "program", "way": "command", "command": words, "code": CODE}, 0)


@pytest.mark.django_db
def test_a_program_is_known_by_its_code(build: Build, cast: Cast) -> None:
    def made(**changes: Any) -> Version:
        content = VersionContent(base_model="gpt-5", endpoint=PROGRAM | changes)
        return make_version(agent=build.agent(), actor=Actor(cast.builder), content=content)[0]

    first, same, other = made(), made(), made(code=f"registry/agent@sha256:{'a' * 64}")
    assert (first.number, same.number, other.number) == (1, 1, 2)
    assert (first.is_program, first.form) == (True, "native")
    pulls = check_endpoint({"kind": "program", "way": "pull", "code": CODE, "model": "gpt-5"}, 0)
    assert pulls == {"kind": "program", "way": "pull", "code": CODE, "model": "gpt-5"}
    content = VersionContent(base_model="gpt-5", endpoint=PROGRAM, form="json")
    with pytest.raises(Refused, match="form: is not needed"):
        make_version(agent=build.agent(), actor=Actor(cast.builder), content=content)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("way", "about", "endpoint", "says"),
    [
        (
            "http",
            {"url": "http://agent:9000/run"},
            {"url": "http://agent:9000/run"},
            "Answer POST http://agent:9000/run",
        ),
        ("command", {"command": "python 'my agent.py'"}, {"command": ["python", "my agent.py"]}, "FLYWHEEL_TOOLS_URL"),
        ("pull", {}, {}, "/api/v1/attempts/claim"),
    ],
)
def test_a_program_is_made_in_the_form_and_shown_with_a_snippet(
    build: Build, cast: Cast, sign_in: SignIn, way: str, about: Any, endpoint: Any, says: str
) -> None:
    client = sign_in(cast.admin)
    fields = {"kind": "program", "way": way, "code": CODE, "base_url": "", "model": "gpt-5", **about}
    answer = client.post(new_version(build), filled(**fields))
    assert answer.status_code == 302, answer.context["form"].errors
    version = Version.objects.get()
    assert version.endpoint == {"kind": "program", "way": way, "code": CODE, "model": "gpt-5", **endpoint}
    page = client.get(reverse("agents:version", args=["acme", "assistant", 1])).content.decode()
    assert says in page
    assert CODE in page
    again = client.get(new_version(build, like=1)).content.decode()
    assert "my agent.py" in again or way != "command"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("code", "main", "is not a fixed version of the code"),
        ("url", "agent", "is not the address"),
        ("way", "", "is unknown"),
    ],
)
def test_what_is_wrong_with_a_program_is_said_at_its_field(
    build: Build, cast: Cast, sign_in: SignIn, field: str, value: str, says: str
) -> None:
    fields = {"kind": "program", "way": "http", "url": "http://agent:9000", "code": CODE, "base_url": "", field: value}
    answer = sign_in(cast.builder).post(new_version(build), filled(**fields))
    assert answer.status_code == 422
    assert says in str(answer.context["form"].errors[field])


@pytest.mark.django_db
def test_only_an_admin_says_what_workers_start(
    build: Build, cast: Cast, client: Client, key: Callable[..., dict[str, str]], sign_in: SignIn
) -> None:
    endpoint = {"kind": "program", "way": "command", "command": ["sh", "agent.sh"], "code": CODE}
    content = VersionContent(base_model="gpt-5", endpoint=endpoint)
    agent = build.agent()
    with pytest.raises(Refused, match="only an admin may create a version whose program is a command"):
        make_version(agent=agent, actor=Actor(cast.builder), content=content)
    fields = {"kind": "program", "way": "command", "command": "sh agent.sh", "code": CODE, "base_url": "", "model": ""}
    answer = sign_in(cast.builder).post(new_version(build), filled(**fields))
    assert answer.status_code == 422
    assert "only an admin" in str(answer.context["form"].errors["way"])
    for headers in (key("build", by=cast.builder), key("build", by=cast.admin)):
        body = {"base_model": "gpt-5", "endpoint": endpoint}
        address = f"/api/v1/agents/{agent.name}/versions"
        refused = client.post(address, body, content_type="application/json", headers=headers)
        assert (refused.status_code, "only an admin" in refused.json()["detail"]) == (403, True)
    assert not Version.objects.exists()
    made, _ = make_version(agent=agent, actor=Actor(cast.admin), content=content)
    like = VersionContent(base_model="gpt-5", endpoint=made.endpoint, system_prompt="Another.")
    with pytest.raises(Refused, match="only an admin"):
        make_version(agent=agent, actor=Actor(cast.builder), content=like, parent=made)
