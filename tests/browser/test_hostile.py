"""Whatever agents and people write stays text: every page of the application in a real browser, its policy on.

The corpus of `tests/hostile.py` comes in through ingest and the forms, and then into every other text of the database.
The pages are those of the URL resolver: a new one is looked at without being named here.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Browser, Dialog, Request
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.trajectories.models import Trajectory
from tests.accounts.test_access import PAGE_LIST, Page, World, agent, candidate, evaluated, world
from tests.browser.browse import Tab
from tests.conftest import Cast, proposed
from tests.hostile import ATTRIBUTES, DEEP, HTML, HTMX, HUGE, MIXED, PAYLOADS, SVG, one_line
from tests.trajectories.talking import body_of, span, text

__all__ = ["agent", "candidate", "evaluated", "world"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
EVERYTHING = "\n".join(PAYLOADS)
AT_ONCE = 8
"""Payloads in one trajectory."""
NO_PAGE = {
    "trajectories:bulk_file": "a file of a job that is not done",
    "accounts:logout": "ends the session",
    "accounts:demo": "opens by the demo's link alone",
    "help:guide": "a file of ours",
    "help:design": "a file of ours",
    "help:image": "a picture of ours",
    "readyz": "no page, and not ready: there is no worker",
    "agents:download": "a file, and this version has no weights",
    "training:dataset_rows": "a file, and this dataset has none",
    "training:dataset_format": "a file, and this dataset has none",
    "training:run_file": "a file, and this run has none",
    "training:provider_file": "a file of a version and a task set that its query names",
    "trajectories:download": "a file of a step, asked for below",
}
"""Pages that are not reviewed, and why."""
FILE_NAME = re.compile(r'attachment; filename="[\w.@+-]+"')
WATCH = """
addEventListener("securitypolicyviolation", (event) => console.error("policy", event.violatedDirective, event.sample));
addEventListener("error", (event) => console.error("error", event.message));
"""
FIND = (Path(__file__).parent / "look.js").read_text().partition("\n\n")[2].rstrip().rstrip(";")


def talking(trace: str, some: list[str], **more: Any) -> bytes:
    """A trajectory with these payloads in every place that a span has."""
    first = some[0]
    said: dict[str, Any] = {
        "gen_ai__operation__name": "chat",
        "gen_ai__agent__name": first,
        "gen_ai__agent__version": first,
        "gen_ai__conversation__id": first,
        "user__id": first,
        "gen_ai__request__model": first,
        "gen_ai__response__finish_reasons": json.dumps([first]),
        "gen_ai__system_instructions": json.dumps([{"type": "text", "content": first}]),
        "gen_ai__input__messages": json.dumps([text("user", payload) for payload in some]),
        "gen_ai__output__messages": json.dumps([text("assistant", payload) for payload in some]),
        "gen_ai__tool__definitions": json.dumps([{"name": p, "description": p, "parameters": {p: p}} for p in some]),
        "flywheel__outcome": first,
        "tag__tags": json.dumps(some),
        "deployment__environment__name": first,
        "flywheel__meta__note": first,
        **more,
    }
    spans = [span(1, trace=trace, name=first, error=first, **said)]
    spans[0].attributes.add(key=first).value.string_value = first
    spans[0].events.add(name="exception").attributes.add(key="exception.message").value.string_value = first
    stepped = spans[0].events.add(name="flywheel.intervention")
    for name in ("kind", "by", "note", "text"):
        stepped.attributes.add(key=name).value.string_value = first
    for number, payload in enumerate(some, 2):
        called: dict[str, Any] = {
            "gen_ai__operation__name": "execute_tool",
            "gen_ai__tool__name": payload,
            "gen_ai__tool__call__arguments": json.dumps({payload: payload, "list": [payload, {payload: [payload]}]}),
            "gen_ai__tool__call__result": json.dumps({payload: payload}) if number % 2 else payload,
        }
        spans.append(span(number, parent=1, trace=trace, at_ms=number, name=payload, error=payload, **called))
    return body_of(spans)


@pytest.fixture
def sent(client: Client, cast: Cast, key: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trace ids of what agents sent: the corpus by eights, and what is too long and too deep."""
    monkeypatch.setattr("flywheel.trajectories.store.detector_wakeup.soon", lambda _: None)
    headers = key("ingest")
    bodies = {}
    for number in range(0, len(PAYLOADS), AT_ONCE):
        trace = f"{number + 1:032x}"
        bodies[trace] = talking(trace, [payload.replace("\0", "") for payload in PAYLOADS[number : number + AT_ONCE]])
    huge = json.dumps([text("assistant", HUGE), text("assistant", json.dumps(DEEP))])
    bodies["f" * 32] = talking("f" * 32, ["a\0b<b pwn>"], gen_ai__output__messages=huge)
    for body in bodies.values():
        answer = client.post("/v1/traces", body, content_type="application/x-protobuf", headers=headers)
        assert answer.status_code == 200, answer.content
    broken = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": p, "name": p}]} for p in PAYLOADS]}]})
    client.post("/v1/traces", broken, content_type="application/json", headers=headers)
    return list(bodies)


@pytest.fixture
def written(
    sent: list[str], world: World, cast: Cast, client: Client, sign_in: Callable[[User], Client], key: Any
) -> None:
    """What people write into the forms, and machines over the API."""
    person = sign_in(world.everyone)
    trace = world.values["trajectories", "trace_id"]

    def post(name: str, /, *args: Any, **data: Any) -> None:
        answer = person.post(reverse(name, args=[cast.project.slug, *args]), data)
        assert answer.status_code in (200, 302), f"{name}: {answer.status_code} {answer.content[:300]!r}"

    for number, payload in enumerate(PAYLOADS):
        line = one_line(payload)[:90] or "-"
        post("trajectories:say", trace, text=f"@{payload} {payload}", step="s2" if number % 2 else "")
        if number % 4 == 0:
            post("trajectories:save_view", name=f"{number} {line}", q="has:error", is_shared="1")
            post("settings:make_key", name=line, scopes=["read"], form=f"{number:032x}")
            post("failures:new_queue", name=f"{number} {line}", instructions=payload, rule="hand", needed=1, minutes=5)
            given = {
                "trace_id": trace,
                "key": payload[:100] or "k",
                "value": payload[:500],
                "comment": payload,
                "by": payload[:100],
            }
            client.post("/api/v1/feedback", json.dumps(given), "application/json", headers=key("ingest"))
    post("failures:label", trace, bucket="other", note=EVERYTHING, step="s2", quick="", seen=0)
    post(
        "agents:new_version",
        world.values["agents", "name"],
        base_model=HTML[0],
        kind="openai",
        base_url="http://127.0.0.1:9/v1",
        model=HTML[1],
        system_prompt=EVERYTHING,
        tools=json.dumps(
            [{"name": "x", "description": EVERYTHING, "parameters": {"type": "object", "properties": {}}}]
        ),
        temperature=1,
        top_p=1,
        max_tokens=10,
        note=one_line(EVERYTHING)[:300],
    )


STRUCTURE = re.compile(
    r"(^|_)(id|ids|key|digest|sha256|hashed|public|slug|password|token|upload|file|cluster|kind|format|mode|algorithm|bucket"
    r"|step|source|split|action|route|codename|q|detector|media_type|parent|state|at|role|task|status|decision|rule|lease|worker|queue)$"
)
"""Fields by name that hold what programs made and pages address by, never what anybody wrote."""


def poison() -> None:
    """Put a payload into every text of every row that a person, an agent or a server's error may have written."""
    for model in apps.get_models():
        if not model.__module__.startswith("flywheel."):
            continue
        fields = [field for field in model._meta.concrete_fields if is_written(model, field)]
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {model._meta.db_table} DISABLE TRIGGER USER")  # some rows never change
        for field in fields:
            for pk in model._default_manager.values_list("pk", flat=True):
                room = field.max_length or 1_000_000
                payload = EVERYTHING if room > len(EVERYTHING) else MIXED
                model._default_manager.filter(pk=pk).update(**{field.name: f"{pk} {payload}"[:room]})
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {model._meta.db_table} ENABLE TRIGGER USER")


def is_written(model: type[models.Model], field: "models.Field[Any, Any]") -> bool:
    if not isinstance(field, models.CharField | models.TextField) or isinstance(field, models.SlugField):
        return False
    if field.choices or STRUCTURE.search(field.name):
        return False
    if (model.__name__, field.name) == ("User", "username"):
        return False  # letters, digits and @ . + - _ alone
    return field.name != "name" or model.__name__ not in {"Agent", "Environment", "TaskSet", "Dataset"}


@pytest.fixture
def tab(browser: Browser, live_server: LiveServer, world: World, sign_in: Callable[[User], Client]) -> Iterator[Tab]:
    tab = Tab(browser, live_server.url)
    cookie = sign_in(world.everyone).cookies["sessionid"]
    tab.context.add_cookies([{"name": "sessionid", "value": cookie.value, "url": live_server.url}])
    tab.context.route("**/favicon.ico", lambda route: route.fulfill(status=204))  # started by fragments alone
    tab.page.add_init_script(WATCH)

    def dismiss(dialog: Dialog) -> None:
        tab.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def tell(request: Request) -> None:
        if not request.url.startswith((live_server.url, "data:", "blob:")):
            tab.problems.append(f"asked {request.url}")

    tab.page.on("dialog", dismiss)
    tab.page.on("request", tell)
    yield tab
    tab.close()


def look(tab: Tab, address: str) -> list[str]:
    """What is wrong on the page, once all that it loads by itself is there."""
    tab.problems.clear()
    tab.page.goto(tab.base + address, wait_until="load")
    tab.page.wait_for_function("() => !document.querySelector('.htmx-request')")
    return [*tab.page.evaluate(FIND), *tab.problems]


def address_of(page: Page, world: World, cast: Cast) -> str:
    return page.url(project=cast.project.slug, **world.of(page)) if page.is_of_a_project else page.url()


def test_nothing_that_is_written_is_more_than_text(
    sent: list[str], written: None, world: World, cast: Cast, tab: Tab, sign_in: Callable[[User], Client]
) -> None:
    row = Trajectory.objects.get(trace_id=sent[0])
    proposed(row, "wrong_tool", 0.5, evidence=EVERYTHING)
    name = world.values["agents", "name"]
    Trajectory.objects.filter(trace_id__in=sent).update(agent=Agent.objects.get(name=name))  # a version is made of them
    poison()
    client = sign_in(world.everyone)
    client.raise_request_exception = False
    wrong: dict[str, Any] = {}
    addresses = []
    for page in PAGE_LIST:
        if page.name in NO_PAGE or page.name.startswith(("ingest:", "gateway:", "attempts:")):
            continue
        address = address_of(page, world, cast)
        answer = client.get(address)
        kind = answer.headers.get("Content-Type", "")
        if answer.status_code not in (200, 204, 286, 302, 405):
            wrong[page.name] = answer.status_code
        elif answer.status_code == 200 and kind.startswith("text/html"):
            addresses.append(address)
        elif "csv" in kind:
            wrong[page.name] = "a table for spreadsheets: look at its formulas here"
        elif "attachment" in answer.headers.get("Content-Disposition", ""):
            named = answer.headers["Content-Disposition"]
            if not FILE_NAME.fullmatch(named):
                wrong[page.name] = named
    rooms = f"/p/{cast.project.slug}/"
    for trace in sent:
        files = [f"export/?format={name}&id={trace}" for name in ("atif", "otlp", "openai")]
        for file in (*files, f"{trace}/download/?step={2:016x}"):
            named = client.get(f"{rooms}trajectories/{file}").headers["Content-Disposition"]
            if not FILE_NAME.fullmatch(named):
                wrong[file] = named
    assert wrong == {}
    addresses += [f"{rooms}trajectories/?q={asked}" for asked in ("has:error", "%3Cscript%20pwn%3E")]
    addresses += [f"{rooms}trajectories/{trace}/?step={2:016x}" for trace in sent]
    for trace in (*sent[::4], sent[-1]):
        addresses += [f"{rooms}trajectories/{trace}/preview/", f"{rooms}failures/review/{trace}/"]
    for address in addresses:
        if found := look(tab, address):
            wrong[address] = found
    assert wrong == {}


def test_what_is_not_ours_would_be_found(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content("<p>nothing but words</p>")
    assert page.evaluate(FIND) == []
    for payload in (
        '<b title="' + ATTRIBUTES[0] + '">x</b>',
        SVG[1],
        HTMX[0],
        HTML[17],
        "<p>user\u202egnp.exe</p>",
        HTML[0],
    ):
        page.set_content(payload)
        assert page.evaluate(FIND), payload
    page.close()
