"""What people read is plain English with one term for each thing: the style sheet of `docs/design/words.md`."""

import ast
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.core.detectors.standard_buckets import BUCKETS, Bucket
from flywheel.trajectories.models import Label, Trajectory
from flywheel.trajectories.search.query import parse
from tests.conftest import Build, Cast
from tests.pages import page_of

ROOT = Path(__file__).parents[2]
BANNED = {
    "a clause as subject": r"(?:^|[.:;!?] )(?:What|Who|Whoever|Whatever) [^.?:;]+? "
    r"(?:is|are|was|stays?|stands?|comes?|goes|holds?)\b"
    r"|\bwhoever\b",
    "stand, lie or hold for be": r"\b(?:it|they|that|this|which) (?:stands?|lies)\b|\bstands? here\b|\blies beside\b",
    "tell for show": r"\btells? apart\b|\bis told\b|\bTold apart\b",
    "say for set": r"\bSay (?:what|why|which|who|something)\b",
    "ask for run": r"\bis asked (?:anew|every|again)\b|\bwas asked every\b",
    "was made": r"\b(?:was|were) made\.(?:<|$)",
    "another than": r"\b(?:another|otherwise) than\b",
    "archaic": r"\banew\b|\bfor ever\b|\bso many\b|\bhad best\b",
    "of chains": r"\bmetrics of production\b|\bthe \w+ of the \w+ of the \w+ of\b",
    "negation at the end": r"\bnot any more\b|\bany more[.!?](?:$|\s)|, nor ever\b",
}
MISSED = ("templates/overview/",)
"""Not yet rewritten."""


def page_texts() -> Iterator[tuple[str, str]]:
    """Each template and its text, one sentence or label at a time."""
    for path in sorted((ROOT / "templates").rglob("*.html")):
        name = str(path.relative_to(ROOT))
        if name.startswith(MISSED):
            continue
        text = re.sub(r"\{#.*?#\}|\{%.*?%\}", " ", path.read_text(), flags=re.DOTALL)
        written = re.findall(r'(?:title|aria-label|placeholder|data-confirm)="([^"]*)"', text)
        text = re.sub(r"</?(?:b|i|em|a|code|kbd|span|abbr)\b[^<>]*>", "", text)
        for piece in (*written, *re.split(r"<[^<>]*>", text)):
            if piece.strip():
                yield name, unescape(" ".join(piece.split()))


def page_strings() -> Iterator[tuple[str, str]]:
    """The string literals of pages and forms, without docstrings."""
    for path in sorted((ROOT / "flywheel").rglob("*.py")):
        if "pages" not in path.parts:
            continue
        tree = ast.parse(path.read_text())
        notes = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in notes:
                yield str(path.relative_to(ROOT)), node.value


@pytest.mark.parametrize("pattern", BANNED.values(), ids=BANNED)
def test_no_page_reads_as_translated(pattern: str) -> None:
    banned = re.compile(pattern)
    found = [f"{name}: {text[:160]}" for name, text in (*page_texts(), *page_strings()) if banned.search(text)]
    assert not found, "\n".join(found)


def test_pages_call_a_bucket_a_category() -> None:
    bucket = re.compile(r"(?<![\w:./?&-])[Bb]uckets?(?![\w:])")
    found = [f"{name}: {text[:160]}" for name, text in page_texts() if bucket.search(re.sub(r"\{\{.*?\}\}", "", text))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("bucket", BUCKETS.values(), ids=BUCKETS)
def test_a_category_has_one_label_in_page_facet_search_and_api(
    bucket: Bucket, cast: Cast, build: Build, sign_in: Callable[[User], Client], key: Callable[..., dict[str, str]]
) -> None:
    row = build.trajectory(label=Label.FAILURE, label_bucket=bucket.key)
    build.trajectory(label=Label.PASS)
    client = sign_in(cast.viewer)
    assert bucket.label in page_of(client.get(reverse("failures:bucket", args=["acme", bucket.key])))
    facets = client.get(reverse("trajectories:facets", args=["acme"])).context["facets"]
    shown = [(value.label, value.term) for facet in facets if facet.name == "bucket" for value in facet.values]
    assert shown == [(bucket.label, f"bucket:{bucket.key}")]
    listed = client.get("/api/v1/buckets", headers=key("read")).json()
    assert {each["key"]: each["label"] for each in listed}[bucket.key] == bucket.label
    rows = Trajectory.objects.filter(project=cast.project)
    for written in (bucket.key, f'"{bucket.label}"', bucket.label.lower().replace(" ", "_")):
        assert list(parse(f"bucket:{written}").apply(rows, cast.project.pk)) == [row]
