"""Attributes by beginnings, patterns and what they are not: found by an index, else looked for so long at most."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search import project_scope, walk_limit
from flywheel.trajectories.search.query import parse
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db

HOSTILE = "it's \\ 'q':* & | ! <-> %_ \U0001f600"


def sent(build: Build, *items: str) -> Trajectory:
    return build.trajectory(prompt="Please", attributes=[*items, *sorted({item.partition("=")[0] for item in items})])


@pytest.fixture
def rows(build: Build) -> dict[str, Trajectory]:
    return {
        "old": sent(build, "app.release=2026.10-rc1", "tier=gold"),
        "new": sent(build, "app.release=2026.11-rc7", "tier=silver"),
        "hostile": sent(build, f"note={HOSTILE}"),
        "bare": sent(build),
    }


@pytest.mark.parametrize("often", [50, 0])
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("attr.app.release:2026.*", {"old", "new"}),
        ("attr.app.release:2026.11*", {"new"}),
        ("attr.app.release:2026.1**", {"old", "new"}),
        ("attr.app.release:2026*-rc7", {"new"}),
        ("attr.app.release:*rc1", {"old"}),
        ("attr.app.release:*", {"old", "new"}),
        ("attr.app.rel:2026*", set()),
        ("attr.app.release:026*", set()),
        ("-attr.app.release:2026.11*", {"old", "hostile", "bare"}),
        ("-attr.app.release:*", {"hostile", "bare"}),
        ("-attr.tier:gold", {"new", "hostile", "bare"}),
        ("attr.tier:gold,s*", {"old", "new"}),
        (f'attr.note:"{HOSTILE}"', {"hostile"}),
        ("attr.note:it's*", {"hostile"}),
        ('attr.note:"it\'s*"', set()),
        ("attr.note:it*", {"hostile"}),
        ("attr.note:%*", set()),
        (f"attr.tier:{'g' * 500}*", set()),
    ],
)
def test_what_they_find(
    rows: dict[str, Trajectory],
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
    often: int,
    text: str,
    names: set[str],
) -> None:
    monkeypatch.setattr(project_scope, "OFTEN", often)
    query = parse(text)
    assert not query.problems
    for project in (cast.project.pk, None):
        keys = set(query.apply(Trajectory.objects.filter(project=cast.project), project).values_list("pk", flat=True))
        assert {name for name, row in rows.items() if row.pk in keys} == names


def nodes_of(plan: dict[str, Any]) -> list[str]:
    below = [name for each in plan.get("Plans", []) for name in nodes_of(each)]
    return [plan.get("Index Name", plan["Node Type"]), *below]


@pytest.mark.parametrize("text", ["attr.app.release:2026.*", "attr.app.release:2026.*-rc7", "attr.tier:gold"])
def test_an_index_leads_to_a_beginning(rows: dict[str, Trajectory], cast: Cast, text: str) -> None:
    found = Trajectory.objects.filter(project_scope.narrowed(parse(text).where, cast.project.pk))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")
    (plan,) = json.loads(found.values("pk").explain(format="json"))
    assert "trajectory_attributes" in nodes_of(plan["Plan"])


@pytest.mark.parametrize(
    ("text", "walks"),
    [
        ("attr.tier:gold", False),
        ("attr.tier:*", False),
        ("attr.tier:g*", True),
        ("attr.tier:*old", True),
        ("-attr.tier:gold", True),
        ("-(tool:x attr.tier:*)", True),
        ("not -attr.tier:gold", False),
        ("env:dev -tool:x", False),
    ],
)
def test_what_is_limited(text: str, walks: bool) -> None:
    assert parse(text).walks is walks


def test_who_asks_too_much_is_told_how_to_ask_less(
    cast: Cast, sign_in: Any, client: Client, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_limit, "WALK_S", 0.05)

    def slow(*_: Any, **__: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    for module, name in (
        ("pages.trajectory_list.list_views", "page_at"),
        ("pages.trajectory_list.list_views", "facets_of"),
        ("api.trajectories", "paginate"),
        ("api.lists", "facets_of"),
    ):
        monkeypatch.setattr(f"flywheel.trajectories.{module}.{name}", slow)
    said, asked = "was stopped after 0.05 seconds", {"q": "-attr.tier:gold"}
    reader = sign_in(cast.viewer)
    page = reader.get(reverse("trajectories:index", args=["acme"]), asked)
    assert (page.status_code, said in page.content.decode()) == (200, True)
    assert reader.get(reverse("trajectories:facets", args=["acme"]), asked).status_code == 200
    for place in ("trajectories", "facets"):
        answer = client.get(f"/api/v1/{place}", asked, headers=key("read"))
        assert (answer.status_code, said in answer.content.decode()) == (400, True)
