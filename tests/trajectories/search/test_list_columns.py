"""Any attribute that was sent as a column of the list, of views and of exports."""

import csv
import io
import json
import re
import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.trajectories.models import Taste, Trajectory, View
from flywheel.trajectories.operations import bulk_actions
from flywheel.trajectories.search import list_columns
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
URL = "/p/acme/trajectories/"
HOSTILE = '<b onclick="x">&"x'


def sent(build: Build, *items: str, **fields: Any) -> Trajectory:
    keys = sorted({item.partition("=")[0] for item in items})
    return build.trajectory(prompt="Please", attributes=[*sorted(items), *keys], **fields)


def cells(page: str, label: str) -> list[str]:
    found = re.findall(rf'<td class="clip-2" title="[^"]*" data-label="{re.escape(label)}">(.*?)</td>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in found]


def test_the_order_is_the_lists_and_then_as_asked() -> None:
    asked = ["attr.b", "cost", "attr.a", "attr.b", "gone", "when", "attr.", "attr.a,b", "attr.x=y", "attr.request_id"]
    assert list_columns.existing(asked) == ["when", "cost", "attr.b", "attr.a"]
    many = [f"attr.k{number}" for number in range(20)]
    assert list_columns.existing(many) == many[: list_columns.MOST_ATTRIBUTES]
    assert list_columns.existing([f"attr.{'k' * 81}", "attr.a\x1bb"]) == []


def test_a_cell_shows_the_values_of_its_key(build: Build, cast: Cast, sign_in: Any) -> None:
    sent(build, "tier=gold", "tiers=no")
    sent(build, "tier=gold", "tier=silver")
    sent(build)
    page = sign_in(cast.viewer).get(URL, {"cols": "when,attr.tier"}).content.decode()
    assert "<th>tier</th>" in page
    assert cells(page, "tier") == ["–", "gold +1", "gold"]
    assert 'title="gold, silver"' in page


def test_what_was_sent_is_offered_and_can_be_chosen(build: Build, cast: Cast, sign_in: Any) -> None:
    sent(build, "tier=gold", "app.release=7")
    client = sign_in(cast.viewer)
    page = client.get(URL).content.decode()
    assert '<input type="checkbox" name="column" value="attr.app.release">' in page
    client.post(reverse("trajectories:choose_columns", args=["acme"]), {"column": ["when", "attr.tier", "attr.gone"]})
    assert Taste.objects.get().columns == ["when", "attr.tier", "attr.gone"]
    page = client.get(URL).content.decode()
    assert '<input type="checkbox" name="column" value="attr.tier" checked>' in page
    assert '<input type="checkbox" name="column" value="attr.gone" checked>' in page, "though no row here sent it"
    assert (cells(page, "tier"), cells(page, "gone")) == (["gold"], ["–"])
    asked = {"name": "Tiers", "cols": "when,attr.tier", "q": "attr.tier:gold"}
    client.post(reverse("trajectories:save_view", args=["acme"]), asked)
    assert View.objects.get().columns == ["when", "attr.tier"]


def test_keys_and_values_are_hostile_text(build: Build, cast: Cast, sign_in: Any) -> None:
    key = "k <b>&\"' #?"
    sent(build, f"{key}={HOSTILE}")
    page = sign_in(cast.viewer).get(URL, {"cols": f"when,attr.{key}", "q": "has:tools or -has:tools"}).content.decode()
    assert "<b onclick" not in page
    assert "&lt;b onclick=" in page, "the value"
    assert "k &lt;b&gt;" in page, "the key"
    assert "k <b>" not in page
    addresses = re.findall(r'href="[^"]*cols=([^"]*)"', page)
    assert addresses
    assert all("#" not in address and " " not in address and "?" not in address for address in addresses)


def test_a_table_has_the_chosen_attributes_behind_its_own_columns(build: Build, cast: Cast, sign_in: Any) -> None:
    sent(build, "note==SUM(A1)", "tier=gold", "tier=silver")
    asked = {"format": "csv", "cols": "when,attr.tier,attr.note"}
    answer = sign_in(cast.viewer).get(reverse("trajectories:export", args=["acme"]), asked)
    head, row = csv.reader(io.StringIO(b"".join(answer).decode("utf-8-sig")))
    assert head[-3:] == ["tags", "attr.tier", "attr.note"]
    assert row[-2:] == ["gold, silver", "'=SUM(A1)"]


@pytest.mark.parametrize(("name", "place"), [("atif", "extra"), ("openai", "metadata"), ("openai-bare", "")])
def test_a_line_has_them_beside_the_conversation(
    build: Build, cast: Cast, client: Client, key: Any, name: str, place: str
) -> None:
    sent(build, "tier=gold")
    asked = {"format": name, "cols": ["attr.tier", "attr.none"]}
    answer = client.get("/api/v1/trajectories/export", asked, headers=key("read"))
    line = json.loads(b"".join(answer))
    assert line.get(place, {}).get("attributes") == ({"tier": ["gold"]} if place else None)
    plain = client.get("/api/v1/trajectories/export", {"format": name}, headers=key("read"))
    assert "attributes" not in json.loads(b"".join(plain)).get(place or "metadata", {})


def test_an_export_in_the_background_has_them_too(build: Build, cast: Cast) -> None:
    sent(build, "tier=gold")
    chosen: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.viewer), "action": "export", "q": ""}
    job = bulk_actions.submit(**chosen, options={"format": "csv", "columns": ["when", "attr.tier"]}, key=uuid.uuid4())
    assert job.options == {"format": "csv", "attributes": ["tier"]}
    report = bulk_actions.do(job, bulk_actions.keys_of(job))
    head, row = csv.reader(io.StringIO(bulk_actions.file_of(job, report["file"]).read_text("utf-8-sig")))
    assert (head[-1], row[-1]) == ("attr.tier", "gold")
