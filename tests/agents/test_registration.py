"""Agents and versions: made by form, by API and by command; what is refused; what a version's page tells."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.agents import model_archives
from flywheel.agents.artifacts import store
from flywheel.agents.models import Agent, Version
from flywheel.agents.references import UnknownReference, find_version
from flywheel.agents.registration import make_version
from flywheel.agents.version_changes import changes
from flywheel.agents.version_content import VersionContent, check_endpoint, check_tools
from flywheel.edge.refusals import Refused
from tests.agents.test_artifacts import model, safetensors
from tests.conftest import TOOLS, Build, Cast
from tests.evals.fake import finished, wrong

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
SERVER = {"kind": "openai", "base_url": "http://gpu-1:8000/v1", "model": "qwen"}


def filled(**changes: Any) -> dict[str, Any]:
    return {
        "base_model": "Qwen/Qwen3-8B",
        "kind": "openai",
        "base_url": "http://gpu-1:8000/v1/",
        "model": "qwen",
        "system_prompt": "Be brief.\r\nAlways.",
        "tools": json.dumps(TOOLS),
        "temperature": "0.5",
        "top_p": "1",
        "max_tokens": "64",
        "note": "first",
        **changes,
    }


def new_version(build: Build, **query: Any) -> str:
    return reverse("agents:new_version", args=["acme", build.agent().name], query=query)


def test_a_builder_registers_an_agent_once(cast: Cast, sign_in: SignIn) -> None:
    url = reverse("agents:new", args=["acme"])
    client = sign_in(cast.builder)
    answer = client.post(url, {"name": "mail-agent", "description": "Sorts mail."})
    assert answer["location"] == reverse("agents:new_version", args=["acme", "mail-agent"])
    again = client.post(url, {"name": "mail-agent"})
    assert again.status_code == 422
    assert "already has an agent &#x27;mail-agent&#x27;" in again.content.decode()
    assert "is not a valid name" in client.post(url, {"name": "Mail Agent"}).content.decode()
    assert Agent.objects.count() == AuditEntry.objects.filter(action="agents.make_agent").count() == 1
    assert sign_in(cast.reviewer).post(url, {"name": "other"}).status_code == 403
    assert sign_in(cast.stranger).post(url, {"name": "other"}).status_code == 404


def test_a_builder_makes_a_version_and_equal_content_is_one(build: Build, cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    answer = client.post(new_version(build), filled())
    version = Version.objects.get()
    assert answer["location"] == reverse("agents:version", args=["acme", "assistant", 1])
    assert version.endpoint == SERVER
    assert version.system_prompt == "Be brief.\nAlways."
    assert version.tools == TOOLS
    assert version.sampling == {"temperature": 0.5, "top_p": 1.0, "max_tokens": 64}
    again = client.post(new_version(build), filled(note="again"), follow=True)
    assert "already has this content" in again.content.decode()
    assert Version.objects.count() == AuditEntry.objects.filter(action="agents.make_version").count() == 1


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("base_url", "gpu-1:8000", "is not the address of a server"),
        ("base_url", "ftp://gpu-1", "is not the address of a server"),
        ("base_url", "http://[", "is not the address of a server"),
        ("base_url", "http://me:secret@gpu-1/v1", "must not hold a login"),
        ("base_url", "http://gpu-1/v1?x=1", "must end with its path"),
        ("model", "", "is missing: the name under which the server knows the model"),
        ("api_key_env", "DATABASE_URL", "must end in _API_KEY"),
        ("api_key_env", "GPU_API_KEY", "sets GPU_API_KEY_HOSTS=gpu-1:8000 for web and worker"),
        ("tools", '{"name": "x"}', "must be a list of definitions"),
        ("tools", '[{"description": "x"}]', "needs a &quot;name&quot;"),
        ("tools", '[{"name": "x", "parameters": {"type": 3}}]', "tools[0].parameters"),
        ("tools", '[{"name": "x"}, {"name": "x"}]', "&#x27;x&#x27; is defined twice"),
        ("tools", "[", "Enter a valid JSON"),
        ("max_tokens", "0", "greater than or equal to 1"),
        ("top_p", "0", "leaves nothing to choose from"),
        ("weights", "f" * 64, "not one of the available choices"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    build: Build, cast: Cast, sign_in: SignIn, field: str, value: str, says: str
) -> None:
    answer = sign_in(cast.builder).post(new_version(build), filled(**{field: value}))
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    assert says in answer.content.decode()
    assert not Version.objects.exists()


@pytest.mark.parametrize(
    ("template", "form"), [("{{ tools }}{{ messages }}", "native"), ("{{ messages }}", "json"), (None, "native")]
)
def test_the_form_of_calls_is_proposed_by_the_chat_template(
    template: str | None, form: str, build: Build, cast: Cast, tmp_path: Path
) -> None:
    weights = None
    endpoint = {"kind": "openai", "base_url": "http://gpu-1:8000/v1", "model": "m"}
    if template is not None:
        place = model(tmp_path / "m")
        (place / "chat_template.jinja").write_text(template)
        weights, endpoint = store(place, "model"), {"kind": "transformers"}
    content = VersionContent(base_model="m", endpoint=endpoint, weights=weights)
    made, _ = make_version(agent=build.agent(), actor=Actor(cast.admin), content=content)
    assert made.form == form
    react = replace(content, form="react")
    other, is_new = make_version(agent=build.agent(), actor=Actor(cast.admin), content=react)
    assert (other.form, is_new) == ("react", True)
    with pytest.raises(Refused, match="form: 'xml' is unknown; use one of native"):
        make_version(agent=build.agent(), actor=Actor(cast.admin), content=replace(content, form="xml"))


def test_a_version_is_copied_and_changed(build: Build, cast: Cast, sign_in: SignIn, tmp_path: Path) -> None:
    weights = store(model(tmp_path / "m"), "model")
    parent = build.version(weights=weights, endpoint={"kind": "transformers", "dtype": "bfloat16"})
    client = sign_in(cast.builder)
    url = new_version(build, like=1)
    form = client.get(url).context["form"]
    assert json.loads(form["tools"].value()) == parent.tools
    data = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    data = {name: value for name, value in data.items() if not name.endswith("_files")}
    client.post(url, {**data, "system_prompt": "Answer with one call. Think first.", "note": "think"})
    made = Version.objects.get(number=2)
    assert made.parent == parent
    assert (made.weights, made.endpoint) == (weights, parent.endpoint)
    assert [(change.label, change.word) for change in changes(parent, made)] == [("System prompt", "changed")]
    page = client.get(reverse("agents:version", args=["acme", "assistant", 2])).content.decode()
    assert "<ins>" in page
    assert "Think" in page
    assert client.get(new_version(build, like=9)).status_code == 404
    assert client.get(new_version(build, like="x")).status_code == 404


def test_weights_are_uploaded(build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sign_in(cast.builder)
    own = {"kind": "transformers", "weights": "upload", "base_url": "", "model": ""}

    def files(**contents: bytes) -> list[SimpleUploadedFile]:
        return [SimpleUploadedFile(name.replace("__", "."), content) for name, content in contents.items()]

    good = {"model__safetensors": safetensors(b"abcd"), "config__json": b"{}"}
    for change, says in (
        ({"model__bin": b"PK"}, "model.bin: only"),
        ({"model__safetensors": b"pickle"}, "model.safetensors: not a safetensors file"),
    ):
        answer = client.post(new_version(build), filled(**own, weights_files=files(**{**good, **change})))
        assert answer.status_code == 422
        assert says in answer.content.decode()
    assert client.post(new_version(build), filled(**own)).status_code == 422
    monkeypatch.setattr(model_archives, "MAX_BYTES", 10)
    answer = client.post(new_version(build), filled(**own, weights_files=files(**good)))
    assert "manage.py add_version" in answer.content.decode()
    monkeypatch.undo()
    assert not Version.objects.exists()
    client.post(new_version(build), filled(**own, weights_files=files(**good)))
    version = Version.objects.get()
    assert version.weights is not None
    assert set(version.weights.manifest) == {"model.safetensors", "config.json"}


def test_what_cannot_go_together_is_refused(build: Build, cast: Cast, tmp_path: Path) -> None:
    weights = store(model(tmp_path / "m"), "model")
    adapter = store(model(tmp_path / "a"), "adapter")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"endpoint": {"kind": "transformers"}}, "weights: are missing"),
        ({"endpoint": SERVER, "weights": weights}, "weights: belong on the server"),
        ({"endpoint": SERVER, "adapter": adapter}, "adapter: is loaded by the server"),
        ({"endpoint": {"kind": "transformers"}, "weights": adapter}, "weights: adapter .* is not of kind model"),
        ({"endpoint": {"kind": "grpc"}}, "endpoint.kind: 'grpc' is unknown"),
        ({"endpoint": {**SERVER, "api_key": "sk-1"}}, "endpoint.api_key: is not part of"),
        ({"endpoint": {**SERVER, "concurrency": 0}}, "endpoint.concurrency: 0 is not a whole number"),
        ({"endpoint": {**SERVER, "price_in": "free"}}, "endpoint.price_in: 'free' is not a number"),
        ({"endpoint": SERVER, "base_model": " "}, "base_model: is missing"),
    ]
    for fields, says in cases:
        content = VersionContent(**{"base_model": "m", **fields})
        with pytest.raises(Refused, match=says):
            make_version(agent=build.agent(), actor=Actor(cast.builder), content=content)
    assert check_endpoint({**SERVER, "price_in": 1}, cast.project.pk)["price_in"] == 1.0
    with pytest.raises(Refused, match="at most 256"):
        check_tools([{"name": f"t{index}"} for index in range(257)])


def test_tools_in_a_providers_format_are_kept_in_ours(build: Build, cast: Cast) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string"}}}
    given = [
        {"type": "function", "function": {"name": "look_up", "description": "Finds an order.", "parameters": schema}},
        {"name": "refund", "input_schema": schema},
    ]
    version, _ = make_version(
        agent=build.agent(),
        actor=Actor(cast.builder),
        content=VersionContent(base_model="m", endpoint=SERVER, tools=given),
    )
    assert version.tools == [
        {"name": "look_up", "description": "Finds an order.", "parameters": schema},
        {"name": "refund", "parameters": schema},
    ]
    with pytest.raises(Refused, match=r"tools: tools\[0\]\.type: 'web_search' is no function"):
        check_tools([{"type": "web_search"}])


def test_a_version_names_a_key_that_the_operator_bound_to_its_server(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = {**SERVER, "api_key_env": "GPU_API_KEY"}
    monkeypatch.setenv("GPU_API_KEY_HOSTS", "gpu-1:8000")
    assert check_endpoint(endpoint, cast.project.pk) == endpoint
    with pytest.raises(Refused, match=r"endpoint\.api_key_env: GPU_API_KEY may be sent to gpu-1:8000 only"):
        check_endpoint({**endpoint, "base_url": "http://gpu-2:8000/v1"}, cast.project.pk)


@pytest.mark.django_db(transaction=True)
def test_two_at_once_with_the_same_content_make_one_version(build: Build, cast: Cast) -> None:
    agent = build.agent()
    made: list[Version] = []

    def go() -> None:
        try:
            content = VersionContent(base_model="m", endpoint=SERVER)
            made.append(make_version(agent=agent, actor=Actor(cast.builder), content=content)[0])
        finally:
            connection.close()

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({version.pk for version in made}) == Version.objects.count() == 1
    assert len(made) == 4


def test_references_say_what_there_is(build: Build, cast: Cast) -> None:
    version = build.version()
    assert find_version(cast.project, "assistant@1") == find_version(cast.project, " assistant@v1 ") == version
    for ref in ("assistant@", "assistant@-1", "assistant@1@2", "assistant@99999999999", ""):
        with pytest.raises(UnknownReference, match="expected agent@version"):
            find_version(cast.project, ref)
    with pytest.raises(UnknownReference, match="no agent yet"):
        find_version(cast.elsewhere, "assistant@1")
    newer = build.version(system_prompt="newer")
    assert find_version(cast.project, "assistant") == newer, "a name alone means the newest"
    build.agent("idle")
    with pytest.raises(UnknownReference, match="idle has no version yet"):
        find_version(cast.project, "idle")
    version.agent.live = version
    version.agent.save()
    assert find_version(cast.project, "assistant@live") == version


def test_pages_show_what_there_is_to_members_only(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = build.version(system_prompt="<script>alert(1)</script>\u202e")
    run = finished(build, monkeypatch, version=version)
    build.trajectory(agent=version.agent, version=version, outcome="failed")
    build.version(system_prompt="second", parent=version)
    urls = [
        reverse("agents:index", args=["acme"]),
        reverse("agents:agent", args=["acme", "assistant"]),
        reverse("agents:version", args=["acme", "assistant", 1]),
    ]
    for url in urls:
        assert sign_in(cast.viewer).get(url).status_code == 200
        assert sign_in(cast.stranger).get(url).status_code == 404
        assert sign_in(cast.stranger).get(url.replace("acme", "elsewhere", 1)).status_code in (200, 404)
    page = sign_in(cast.viewer).get(urls[2]).content.decode()
    assert "<script>alert(1)" not in page
    assert version.digest in page
    assert reverse("evals:run", args=["acme", run.pk]) in page
    assert reverse("agents:version", args=["acme", "assistant", 2]) in page
    listed = sign_in(cast.viewer).get(urls[1])
    assert [row["version"].number for row in listed.context["versions"]] == [2, 1]
    assert listed.context["versions"][1]["eval"] == run
    assert "assistant" not in sign_in(cast.stranger).get(reverse("agents:index", args=["elsewhere"])).content.decode()


def test_versions_are_listed_with_their_success_on_one_task_set_as_far_as_there_is_one(
    build: Build, cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (build.version(system_prompt=text) for text in ("one", "two", "three"))
    shared, other = build.task_set(), build.task_set(name="other")
    for version in (first, second):
        finished(build, monkeypatch, version=version, task_set=shared)
    newer = finished(build, monkeypatch, version=first, task_set=shared, samples=1)
    for version in (first, third):
        finished(build, monkeypatch, wrong, version=version, task_set=other)
    finished(build, monkeypatch, version=second, task_set=shared)
    page = sign_in(cast.viewer).get(reverse("agents:agent", args=["acme", "assistant"]))
    listed = {row["version"]: row["eval"] for row in page.context["versions"]}
    assert [listed[one].task_set for one in (first, second, third)] == [shared, shared, other]
    assert listed[first] == newer


def test_the_page_of_an_agent_costs_the_same_for_any_number_of_versions(
    build: Build, cast: Cast, sign_in: SignIn, django_assert_max_num_queries: Any
) -> None:
    for number in range(12):
        build.version(system_prompt=f"prompt {number}")
    client = sign_in(cast.viewer)
    with django_assert_max_num_queries(25):
        client.get(reverse("agents:agent", args=["acme", "assistant"]))


def test_the_api_makes_and_reads_the_same(build: Build, cast: Cast, client: Client, key: Any, tmp_path: Path) -> None:
    write, read = key("build", by=cast.builder), key("read", by=cast.viewer)

    def post(path: str, body: Any) -> Any:
        return client.post(f"/api/v1/agents{path}", body, content_type="application/json", headers=write)

    assert post("", {"name": "mail-agent"}).status_code == 201
    assert post("", {"name": "mail-agent"}).status_code == 422
    body = {"base_model": "Qwen/Qwen3-8B", "endpoint": SERVER, "tools": TOOLS, "sampling": {"temperature": 0}}
    first = post("/mail-agent/versions", body)
    assert (first.status_code, first.json()["number"], first.json()["parent"]) == (201, 1, None)
    assert post("/mail-agent/versions", body).status_code == 200
    second = post("/mail-agent/versions", {"like": 1, "system_prompt": "Be kind.", "note": "kinder"}).json()
    assert (second["number"], second["parent"], second["tools"]) == (2, 1, TOOLS)
    # Weights of another project are not to be had by their digest.
    foreign = store(model(tmp_path / "m"), "model")
    refused = post("/mail-agent/versions", {**body, "endpoint": {"kind": "transformers"}, "weights": foreign.digest})
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("weights: no version of this project uses an artifact")
    for change, says in (
        ({"like": 9}, "like: mail-agent has no version 9; it has 2, 1"),
        ({**body, "endpoint": {"kind": "x"}}, "endpoint.kind: 'x' is unknown"),
        ({}, "base_model: is missing"),
    ):
        refused = post("/mail-agent/versions", change)
        assert (refused.status_code, refused.json()["detail"][: len(says)]) == (422, says)
    assert post("/nobody/versions", body).status_code == 404
    rows = client.get("/api/v1/agents/mail-agent/versions", {"limit": 1}, headers=read).json()
    assert rows["items"][0]["number"] == 2
    assert rows["next"]
    whole = client.get("/api/v1/agents/mail-agent/versions/2", headers=read).json()
    assert whole["system_prompt"] == "Be kind."
    assert client.get("/api/v1/agents/mail-agent", headers=read).json()["live"] is None
    assert [row["name"] for row in client.get("/api/v1/agents", headers=read).json()["items"]] == ["mail-agent"]
    elsewhere = key("read", "build", by=cast.stranger, project=cast.elsewhere)
    for path in ("", "/versions", "/versions/1"):
        assert client.get(f"/api/v1/agents/mail-agent{path}", headers=elsewhere).status_code == 404
    assert (
        client.post("/api/v1/agents", {"name": "x"}, content_type="application/json", headers=read).status_code == 403
    )


def test_a_large_model_comes_by_command(build: Build, cast: Cast, tmp_path: Path) -> None:
    place = model(tmp_path / "m")
    parent = build.version(endpoint=SERVER, weights=None)
    out = StringIO()
    common = ["--project", "acme", "--agent", "assistant", "--by", cast.builder.username]
    call_command("add_version", *common, "--like", "1", "--weights", str(place), "--base-model", "own", stdout=out)
    made = Version.objects.get(number=2)
    assert out.getvalue().strip() == "assistant@2"
    assert (made.parent, made.endpoint, made.base_model) == (parent, {"kind": "transformers"}, "own")
    assert made.system_prompt == parent.system_prompt
    assert AuditEntry.objects.get(action="agents.make_version").through == "manage.py add_version"
    for options, says in (
        ([*common, "--weights", str(tmp_path / "none"), "--base-model", "x"], "is no directory"),
        ([*common[:3], "nobody", *common[4:], "--weights", str(place), "--base-model", "x"], "no agent 'nobody'"),
        (["--project", "none", *common[2:], "--weights", str(place), "--base-model", "x"], "no project 'none'"),
        ([*common[:5], "who", "--weights", str(place), "--base-model", "x"], "no member 'who'"),
        ([*common, "--weights", str(place)], "base_model: is missing"),
    ):
        with pytest.raises(CommandError, match=says):
            call_command("add_version", *options, stdout=StringIO())
