"""Two versions side by side: part by part, tools by field, a prompt by line."""

import difflib
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.models import User
from flywheel.agents.version_changes import changes, lines
from tests import conftest
from tests.conftest import Build, Cast
from tests.pages import page_of

TOOLS: Any = conftest.TOOLS
SignIn = Callable[[User], Client]


def kinds(before: str, after: str) -> list[tuple[str, str, str]]:
    return [(part.kind, part.before, part.after) for part in lines(before, after)]


def test_lines_that_changed_stand_among_those_that_stayed() -> None:
    assert kinds("a\nb\nc", "a\nB\nc\nd") == [
        ("same", "a", "a"),
        ("changed", "b", "B"),
        ("same", "c", "c"),
        ("added", "", "d"),
    ]
    assert kinds("a\nb", "a") == [("same", "a", "a"), ("removed", "b", "")]
    assert kinds("", "a") == [("changed", "", "a")]


def test_long_runs_that_stayed_are_counted() -> None:
    many = [str(number) for number in range(20)]
    found = lines("\n".join([*many, "old", *many]), "\n".join([*many, "new", *many]))
    assert [(part.kind, part.count) for part in found] == [
        ("hidden", 17),
        ("same", 3),
        ("changed", 1),
        ("same", 3),
        ("hidden", 17),
    ]
    assert found[1].before == "17\n18\n19"


def test_prompts_of_any_length_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that repeat cost a comparison of all with all each time; what is looked at is bounded before."""
    compared: list[int] = []

    class Counted(SequenceMatcher[str]):
        def __init__(self, isjunk: None, a: list[str], b: list[str], *, autojunk: bool) -> None:
            compared.append(len(a) * len(b))
            super().__init__(isjunk, a, b, autojunk)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counted)
    whole = lines("a\n" + "b\na\n" * 1500, "b\n" + "a\na\n" * 1500)
    assert [(part.kind, part.is_whole) for part in whole] == [("changed", True), ("same", False)]
    many = "the same\n" * 50_000
    near = lines(f"{many}old\n{many}", f"{many}new\nand more\n{many}")
    assert [part.kind for part in near] == ["hidden", "same", "changed", "same", "hidden"]
    assert not any(part.is_whole for part in near)
    assert kinds("a\na", "a\na\na") == [("same", "a\na", "a\na"), ("added", "", "a")]
    assert all(count <= 90_000 for count in compared)


@pytest.mark.django_db
def test_the_page_says_where_lines_were_not_compared(build: Build, cast: Cast, sign_in: SignIn) -> None:
    build.version(system_prompt="Be brief.\n" + "a\n" * 400 + "b")
    build.version(system_prompt="Be brief.\n" + "c\n" * 400 + "d")
    page = page_of(sign_in(cast.viewer).get("/p/acme/agents/assistant/versions/2/against/1/"))
    assert "Too many lines differ for a line-by-line comparison" in page
    assert page.count("<del>") == page.count("<ins>") == 1


def with_tool(**changed: Any) -> list[dict[str, Any]]:
    return [*TOOLS[:1], TOOLS[1] | changed, *TOOLS[2:]]


@pytest.mark.django_db
def test_tools_differ_by_field_and_argument(build: Build) -> None:
    base = build.version()
    properties = {**TOOLS[1]["parameters"]["properties"], "cc": {"type": "string"}}
    schema = {**TOOLS[1]["parameters"], "properties": properties, "required": ["to"]}
    other = build.version(
        tools=[*with_tool(description="Send one email.", parameters=schema)[:2], {"name": "new", "parameters": {}}],
        sampling={"temperature": 0.0},
        endpoint={"kind": "transformers", "batch_size": 2},
    )
    found = {change.label: change for change in changes(base, other)}
    assert {label: change.word for label, change in found.items()} == {
        "Endpoint": "changed",
        "Sampling": "changed",
        "Tool email.send: description": "changed",
        "Tool email.send: argument cc": "added",
        "Tool email.send: parameters": "changed",
        "Tool calendar.delete_all": "removed",
        "Tool new": "added",
    }
    assert found["Tool email.send: description"].after == "Send one email."
    assert "properties" not in found["Tool email.send: parameters"].after


@pytest.mark.django_db
def test_the_page_marks_words_and_escapes_what_agents_wrote(build: Build, cast: Cast, sign_in: SignIn) -> None:
    build.version(system_prompt="Be brief.\nNever <b>shout</b>.")
    build.version(system_prompt="Be brief.\nNever <i>shout</i>.", tools=with_tool(description="<script>x</script>"))
    client = sign_in(cast.viewer)
    page = page_of(client.get("/p/acme/agents/assistant/versions/2/against/1/"))
    assert "<del>b</del><ins>i</ins>" in page
    assert "Tool email.send: description" in page
    assert "<script>x" not in page
    assert "&lt;<" in page
    assert "<b>shout" not in page
    same = page_of(client.get("/p/acme/agents/assistant/versions/2/against/2/"))
    assert "No differences" in same
    assert client.get("/p/acme/agents/assistant/versions/2/against/9/").status_code == 404
    chosen = client.get("/p/acme/agents/assistant/versions/difference/?after=1&before=2")
    assert chosen["Location"] == "/p/acme/agents/assistant/versions/1/against/2/"
    nothing = client.get("/p/acme/agents/assistant/versions/difference/?after=x")
    assert nothing["Location"] == "/p/acme/agents/assistant/"
    assert "/p/acme/agents/assistant/versions/2/against/1/" not in page_of(
        client.get("/p/acme/agents/assistant/versions/1/")
    )


@pytest.mark.django_db
def test_a_program_asks_for_the_changes(build: Build, client: Client, key: Callable[..., dict[str, str]]) -> None:
    build.version()
    build.version(system_prompt="Be brief.")
    here = "/api/v1/agents/assistant/versions/2/changes"
    headers = key("read")
    (change,) = client.get(f"{here}?against=1", headers=headers).json()
    assert (change["part"], change["after"]) == ("System prompt", "Be brief.")
    answer = client.get(here, headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "against: is missing: assistant@2 was not made from another version",
    )
    assert client.get(f"{here}?against=7", headers=headers).status_code in (404, 422)
