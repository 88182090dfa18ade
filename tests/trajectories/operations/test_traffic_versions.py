"""A version from what production sends: what is proposed, what is made of it, and whose those runs are then."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.agents.models import Agent, Version
from flywheel.agents.version_content import VersionContent
from flywheel.core.traces import Message, ToolCall, call_forms
from flywheel.edge.refusals import Missing
from flywheel.trajectories.models import ReportedVersion, Trajectory
from flywheel.trajectories.operations.traffic_versions import Proposal, make, proposal
from tests.conftest import Build, Cast
from tests.pages import page_of
from tests.trajectories.talking import body_of, span, text

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Find an order.",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string"}, "at": {"type": "string"}},
            "required": ["order_id"],
        },
    },
}
PROMPT = "You answer for a shop that sells tea. Be brief and kind, and look an order up before you speak of it."


@pytest.fixture
def send(cast: Cast, key: Callable[..., dict[str, str]]) -> Callable[..., None]:
    """One run of the agent, as its instrumentation sends it."""
    client, headers = Client(), key("ingest")

    def go(
        number: int, version: str = "2026.11", prompt: str = PROMPT, tools: Any = (LOOK_UP,), **attributes: Any
    ) -> None:
        call = span(
            1,
            at_ms=1000 * number,
            trace=f"{number + 1:032x}",
            gen_ai__operation__name="chat",
            gen_ai__provider__name="openai",
            gen_ai__agent__name="shop",
            gen_ai__agent__version=version,
            gen_ai__request__model="gpt-4.1-mini",
            gen_ai__input__messages=[text("system", prompt), text("user", f"Where is order {number}?")],
            **{
                "gen_ai__output__messages": [text("assistant", "On its way.")],
                **attributes,
                **({"gen_ai__tool__definitions": list(tools)} if tools else {}),
            },
        )
        answer = client.post("/v1/traces", body_of([call]), content_type="application/x-protobuf", headers=headers)
        assert answer.status_code == 200, answer.content

    return go


def content_of(found: Proposal) -> VersionContent:
    return VersionContent(**found.content)


def proposed(label: str | None = None) -> Proposal:
    return proposal(Agent.objects.get(name="shop"), label)


def notes(found: Proposal) -> dict[str, tuple[int, str]]:
    return {note["about"]: (note["runs"], note["words"]) for note in found.notes}


def test_what_the_newest_runs_have_in_common_is_proposed(send: Callable[..., None]) -> None:
    for number in range(4):
        send(number, gen_ai__request__max_tokens=700)
    send(4, tools=(), gen_ai__request__max_tokens=500)
    found = proposed()
    assert found.content["system_prompt"] == PROMPT
    assert found.content["endpoint"] == {
        "kind": "openai",
        "model": "gpt-4.1-mini",
        "base_url": "https://api.openai.com/v1",
    }
    assert found.content["sampling"] == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 700}
    (tool,) = found.content["tools"]
    assert (tool["name"], list(tool["parameters"]["properties"])) == ("look_up", ["order_id", "at"]), "in their order"
    said = notes(found)
    assert (found.runs, found.reported.label, found.reported.runs) == (5, "2026.11", 5)
    assert said["System prompt"] == (5, "")
    assert said["Sampling"] == (4, "Not recorded: temperature, top_p; defaults are filled in.")
    assert said["Model"][0] == 5


def test_a_prompt_that_differs_per_run_is_said_so_and_the_newest_is_taken(send: Callable[..., None]) -> None:
    for number in range(3):
        send(number, prompt=f"{PROMPT} Today is 2026-11-2{number}.")
    send(3, prompt="Count the stars.")
    send(4, prompt=f"{PROMPT} Today is 2026-11-25.")
    found = proposed()
    assert found.content["system_prompt"].endswith("2026-11-25.")
    runs, words = notes(found)["System prompt"]
    assert runs == 4
    assert "differs between runs in 4 wordings, such as '2026-11-25.' and '2026-11-22.'" in words


def test_what_no_run_recorded_is_said(send: Callable[..., None], build: Build) -> None:
    send(0, prompt="", tools=())
    found = proposed()
    assert (found.content["system_prompt"], found.content["tools"]) == ("", [])
    assert notes(found)["System prompt"] == (0, "No run recorded one.")
    assert notes(found)["Tools"][1].startswith("No run recorded tool definitions")
    with pytest.raises(Missing, match="no production runs of idle yet"):
        proposal(build.agent("idle"))
    with pytest.raises(Missing, match="label: no production run of shop reports version 'x'"):
        proposed("x")


def test_runs_that_report_the_version_belong_to_it_then_and_later(send: Callable[..., None], cast: Cast) -> None:
    send(0)
    send(1)
    send(2, version="2026.10")
    found = proposed("2026.11")
    assert [(other.label, other.runs) for other in found.others] == [("2026.10", 1)]
    made, is_new, linked = make(
        agent=found.agent,
        actor=Actor(cast.builder),
        label="2026.11",
        is_linked=True,
        content=content_of(found),
    )
    assert (is_new, linked, made.number) == (True, 2, 1)
    send(3)
    of = dict(Trajectory.objects.values_list("trace_id", "version__number"))
    assert [of[f"{number + 1:032x}"] for number in range(4)] == [1, 1, None, 1]
    entry = AuditEntry.objects.get(action="trajectories.link_version")
    assert (entry.subject, entry.data) == ("shop@1", {"label": "2026.11", "trajectories": 2})


def test_a_label_that_is_a_versions_own_number_means_that_version(send: Callable[..., None], cast: Cast) -> None:
    send(0, version="2")
    found = proposed()
    first, _, linked = make(
        agent=found.agent, actor=Actor(cast.builder), label="2", is_linked=True, content=content_of(found)
    )
    assert (first.number, linked) == (1, 1)
    second = Version.make(found.agent, cast.builder, base_model="other")
    send(1, version="2")
    assert list(Trajectory.objects.order_by("started_at").values_list("version", flat=True)) == [first.pk, second.pk]


def test_runs_that_report_no_version_can_be_linked_too(send: Callable[..., None], cast: Cast) -> None:
    send(0, version="")
    found = proposed()
    assert (found.reported.label, found.reported.words) == ("", "no version")
    make(agent=found.agent, actor=Actor(cast.builder), label="", is_linked=True, content=content_of(found))
    send(1, version="")
    assert Trajectory.objects.filter(version__number=1).count() == 2


def test_a_person_looks_at_the_filled_form_and_confirms(send: Callable[..., None], cast: Cast, sign_in: SignIn) -> None:
    send(0)
    client = sign_in(cast.builder)
    url = reverse("trajectories:version_from_traffic", args=["acme", "shop"])
    assert "Version 1 from what production sends" in page_of(client.get(reverse("agents:agent", args=["acme", "shop"])))
    assert "Fill in from production" in page_of(client.get(reverse("agents:new_version", args=["acme", "shop"])))
    answer = client.get(url)
    page = page_of(answer)
    assert PROMPT in page
    assert "1 newest run with version 2026.11" in page
    assert "1 stored run without a version, and later ones" in page
    assert not Version.objects.exists(), "nothing is made by looking"
    form = answer.context["form"]
    filled = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    refused = client.post(url, {**filled, "link": "on", "base_url": ""})
    assert refused.status_code == 422
    assert "is not the address of a server" in page_of(refused)
    assert 'name="label" value="2026.11"' in page
    send(1, version="2026.12")  # since the form was shown
    done = client.post(url, {**filled, "label": "2026.11", "link": "on"}, follow=True)
    assert "Version 1 created. 1 run linked to it." in page_of(done)
    assert Version.objects.get().tools[0]["name"] == "look_up"
    assert list(Trajectory.objects.order_by("started_at").values_list("version__number", flat=True)) == [1, None]


def test_unticked_nothing_is_linked(send: Callable[..., None], cast: Cast, sign_in: SignIn) -> None:
    send(0)
    url = reverse("trajectories:version_from_traffic", args=["acme", "shop"])
    client = sign_in(cast.builder)
    form = client.get(url).context["form"]
    client.post(url, {name: form[name].value() for name in form.fields if form[name].value() is not None})
    assert Version.objects.count() == 1
    assert Trajectory.objects.get().version is None
    assert not ReportedVersion.objects.exists()


def test_a_program_looks_and_makes(send: Callable[..., None], key: Callable[..., dict[str, str]]) -> None:
    send(0)
    client, url = Client(), "/api/v1/agents/shop/versions/from-traffic"
    seen = client.get(url, headers=key("read")).json()
    assert (seen["runs"], seen["reported"]) == (1, {"label": "2026.11", "runs": 1})
    assert seen["content"]["system_prompt"] == PROMPT
    assert client.post(url, "{}", "application/json", headers=key("read")).status_code == 403
    body = json.dumps({"system_prompt": "Be kind.", "note": "first"})
    made = client.post(url, body, "application/json", headers=key("build"))
    assert (made.status_code, made.json()["number"], made.json()["linked"]) == (201, 1, 1)
    assert made.json()["system_prompt"] == "Be kind."
    assert made.json()["tools"][0]["name"] == "look_up"
    again = client.post(url, json.dumps({"label": "1999"}), "application/json", headers=key("build"))
    assert (again.status_code, again.json()["detail"]) == (
        404,
        "label: no production run of shop reports version '1999'",
    )
    assert client.get("/api/v1/agents/shop/versions/1", headers=key("read")).json()["number"] == 1


@pytest.mark.parametrize("form", ["", *call_forms.LABELS])
def test_the_form_of_calls_is_that_of_the_traffic(form: str, cast: Cast, send: Callable[..., None]) -> None:
    calling = Message("assistant", "", (ToolCall("c", "look_up", {"order_id": "1"}),))
    said = call_forms.write(calling, form) if form else Message("assistant", "On its way.")
    parts: list[dict[str, Any]] = [{"type": "text", "content": said.content}] if said.content else []
    for call in said.tool_calls:
        parts.append({"type": "tool_call", "id": "c", "name": call.name, "arguments": call.arguments})
    for number in range(2):
        send(number, gen_ai__output__messages=[{"role": "assistant", "parts": parts, "finish_reason": "stop"}])
    assert proposed().content["form"] == (form or None)
