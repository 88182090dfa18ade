"""The list of trajectories."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.edge import paging
from flywheel.trajectories.models import Source
from flywheel.trajectories.pages.trajectory_list import list_views
from tests.conftest import Build, Cast

SignIn = Callable[[User], Client]
URL = "/p/acme/trajectories/"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_views, "PAGE", 5)


def ids(response: object) -> list[str]:
    return [row.trace_id for row in response.context["page"].items]  # type: ignore[attr-defined]


def test_an_empty_list_says_how_to_fill_it(cast: Cast, sign_in: SignIn) -> None:
    content = sign_in(cast.viewer).get(URL).content.decode()
    assert reverse("trajectories:connect", args=["acme"]) in content


def test_newest_first_in_pages_without_gap_or_repetition(cast: Cast, build: Build, sign_in: SignIn) -> None:
    same = datetime(2026, 1, 1, tzinfo=UTC)
    made = [build.trajectory(started_at=same).trace_id for _ in range(7)]
    made += [build.trajectory().trace_id for _ in range(6)]
    client = sign_in(cast.viewer)
    response = client.get(URL)
    forward, pages = ids(response), 1
    while address := response.context["page"].next:
        if pages == 1:
            build.trajectory()  # arrives meanwhile, and shifts nothing
        response = client.get(URL + address)
        forward += ids(response)
        pages += 1
    assert forward == made[::-1]
    assert (response.context["page"].first, response.context["page"].last) == (11, 13)

    backward: list[str] = []
    while address := response.context["page"].previous:
        response = client.get(URL + address)
        backward = ids(response) + backward
    assert backward[-10:] == forward[:10]


def test_pages_keep_the_filter(cast: Cast, build: Build, sign_in: SignIn) -> None:
    for _ in range(7):
        build.trajectory(outcome="failed")
    address = sign_in(cast.viewer).get(URL, {"q": "outcome:failed"}).context["page"].next
    assert parse_qs(urlsplit(address).query)["q"] == ["outcome:failed"]


def test_a_cursor_that_is_none_begins_anew(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.viewer)
    for cursor in ("nonsense", "W10", "WzEsMCwieCIsMV0", "é"):
        response = client.get(URL, {"q": "bako", "cursor": cursor})
        assert (response.status_code, response["Location"]) == (302, f"{URL}?q=bako")


def test_rollouts_are_shown_only_when_asked_for(cast: Cast, build: Build, sign_in: SignIn) -> None:
    production, rollout = build.trajectory(), build.trajectory(source=Source.ROLLOUT)
    client = sign_in(cast.viewer)
    assert ids(client.get(URL)) == [production.trace_id]
    assert ids(client.get(URL, {"q": "source:rollout"})) == [rollout.trace_id]


def test_an_unknown_field_is_told(cast: Cast, build: Build, sign_in: SignIn) -> None:
    build.trajectory()
    response = sign_in(cast.viewer).get(URL, {"q": "buket:x"})
    assert not ids(response)
    assert "Did you mean bucket?" in response.content.decode()


def test_a_value_that_none_has_is_hinted_at(cast: Cast, build: Build, sign_in: SignIn) -> None:
    build.trajectory(
        tool_names=["calendar.create_event", "<i>"], environment="production", agent=build.agent("support")
    )
    client = sign_in(cast.viewer)

    def hints(q: str) -> list[str]:
        found: list[str] = client.get(URL, {"q": q}).context["hints"]
        return found

    assert hints("tool:calendar.creat_event") == [
        "tool:calendar.creat_event was not seen lately. Did you mean tool:calendar.create_event?"
    ]
    assert "agent:support" in hints("agent:suport")[0]
    assert "env:production" in hints("-has:tools env:prodution")[0]
    assert hints("bucket:wrong_tol") == ["Unknown category 'wrong_tol'. Did you mean Wrong tool?"]
    assert hints('bucket:"wrong tol"') == ["Unknown category 'wrong tol'. Did you mean Wrong tool?"]
    (hint,) = hints("bucket:zzz")
    assert "Invented tool" in hint
    assert "hallucinated_api" not in hint
    assert hints("bucket:wrong_tool,none,un*") == []
    assert hints("env:production tool:other_thing") == []
    assert hints("env:prod*") == []


def test_a_pasted_id_jumps_to_the_trajectory(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory()
    response = sign_in(cast.viewer).get(URL, {"q": row.trace_id.upper()})
    assert response["Location"] == reverse("trajectories:detail", args=["acme", row.trace_id])


def test_other_projects_are_not_shown(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory(project=cast.elsewhere)
    client = sign_in(cast.viewer)
    assert not ids(client.get(URL, {"q": "bako"}))
    assert client.get(URL, {"q": row.trace_id}).status_code == 200


def test_a_stranger_gets_404(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory()
    client = sign_in(cast.stranger)
    for name, args in [
        ("index", ["acme"]),
        ("facets", ["acme"]),
        ("import", ["acme"]),
        ("detail", ["acme", row.trace_id]),
        ("conversation", ["acme", row.trace_id]),
        ("steps", ["acme", row.trace_id]),
        ("step", ["acme", row.trace_id]),
        ("detail", ["elsewhere", row.trace_id]),
        ("step", ["elsewhere", row.trace_id]),
    ]:
        assert client.get(reverse(f"trajectories:{name}", args=args)).status_code == 404


def test_what_an_agent_wrote_stays_text(cast: Cast, build: Build, sign_in: SignIn) -> None:
    build.trajectory(prompt="<script>alert(1)</script> \u202egnp", tool_names=["<b>x</b>"], version_label="<i>")
    content = sign_in(cast.viewer).get(URL).content.decode()
    assert "<script>alert" not in content
    assert "<b>x" not in content
    assert 'title="&lt;b&gt;x&lt;/b&gt;"' in content
    assert "⟨U+202E⟩" in content


def test_the_number_of_queries_does_not_grow_with_the_page(cast: Cast, build: Build, sign_in: SignIn) -> None:
    client = sign_in(cast.viewer)

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            client.get(URL)
        return len(queries)

    build.trajectory(version=build.version())
    few = cost()
    for _ in range(4):
        build.trajectory(version=build.version())
    assert cost() == few


def test_facets_lead_to_the_narrower_list(cast: Cast, build: Build, sign_in: SignIn) -> None:
    build.searchable(
        build.trajectory(outcome="failed", tool_names=["a tool", "other"]), build.trajectory(outcome="success")
    )
    response = sign_in(cast.viewer).get(reverse("trajectories:facets", args=["acme"]), {"q": "bako"})
    facets = {
        facet.name: [(value.label, value.count, value.term) for value in facet.values]
        for facet in response.context["facets"]
    }
    assert facets["outcome"] == [("success", 1, "outcome:success"), ("failed", 1, "outcome:failed")]
    assert ("a tool", 1, 'tool:"a tool"') in facets["tool"]
    assert "?q=bako%20outcome%3Afailed" in response.content.decode()


def test_what_is_added_to_alternatives_holds_for_each_and_keeps_the_columns(
    cast: Cast, build: Build, sign_in: SignIn
) -> None:
    build.trajectory(outcome="failed", environment="dev")
    build.trajectory(outcome="success", environment="test")
    client, asked = sign_in(cast.viewer), {"q": "env:dev or env:test", "cols": "cost"}
    either = quote("(env:dev or env:test) ")
    facets = client.get(reverse("trajectories:facets", args=["acme"]), asked).content.decode()
    assert f"?q={either}outcome%3Afailed&amp;cols=cost" in facets
    page = client.get(reverse("trajectories:index", args=["acme"]), asked).content.decode()
    assert f"?q={either}outcome:&amp;cols=cost" in page


def test_the_index_of_the_list_holds_the_longest_words_in_any_script(build: Build) -> None:
    source = random.Random(1)
    wide = "".join(chr(source.randrange(0x10000, 0x110000)) for _ in range(400))
    build.trajectory(agent_name=wide[:200], version_label=wide[200:300], environment=wide[300:], label_bucket="x" * 64)


def test_a_page_counts_what_follows_it_up_to_a_bound(
    cast: Cast, build: Build, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "AHEAD", 8)
    for _ in range(12):
        build.trajectory()
    client = sign_in(cast.viewer)
    cheap = client.get(URL).context["page"]
    assert (cheap.total, cheap.about) == (12, False), "where it costs next to nothing"
    monkeypatch.setattr(paging, "CHEAP", 0.0)
    first = client.get(URL).context["page"]
    assert (len(first.items), first.last) == (5, 5)
    assert first.about
    second = client.get(URL + first.next).context["page"]
    assert (second.first, second.last, second.total, second.about) == (6, 10, 12, False)
    back = client.get(URL + second.previous).context["page"]
    assert (back.first, back.last, back.total, back.about) == (1, 5, 12, False)
    assert [row.id for row in back.items] == [row.id for row in first.items]
