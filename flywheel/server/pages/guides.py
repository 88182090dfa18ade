"""The guides inside the app: the files of `docs/`, rendered as they are, so that there is no second text to keep."""

import posixpath
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET
from markdown_it import MarkdownIt
from markdown_it.token import Token

from flywheel.accounts.access import signed_in
from flywheel.core.text.glossary import TERMS

DOCS = Path(settings.BASE_DIR) / "docs"
SHELF = {
    "Reviewer": ("reviewer", "search", "metrics"),
    "Builder": ("builder", "worlds", "evals", "harness", "fixes"),
    "Trainer": ("trainer", "datasets"),
    "Approver": ("approver",),
    "Operator": ("operator", "connect", "ingest", "gateway", "redaction"),
    "Developer": ("extending",),
}
"""The guides by who reads them, in the order of reading."""
PLACES = {
    "agents": "evals#versions",
    "trajectories": "search",
    "trajectories:connect": "connect",
    "trajectories:import": "ingest#files",
    "trajectories:metrics": "metrics",
    "trajectories:quarantine": "ingest#what-was-rejected",
    "trajectories:detail": "reviewer#reading-a-trajectory",
    "failures": "reviewer",
    "failures:queue": "reviewer#the-desk",
    "failures:detectors": "reviewer#the-detectors",
    "failures:queues": "reviewer#queues",
    "failures:similar": "reviewer#failures-that-are-alike",
    "environments": "builder",
    "environments:task": "builder#the-proof",
    "environments:verifier": "builder#a-verifier-of-your-own",
    "environments:reward_recipes": "trainer#reward-recipes",
    "environments:reward_recipe": "trainer#reward-recipes",
    "environments:make_recipe": "trainer#reward-recipes",
    "evals": "evals",
    "evals:new": "evals#start-one",
    "evals:run": "evals#read-one",
    "evals:compare": "evals#compare-two",
    "evals:reward_audit": "evals#audit-the-reward",
    "training": "trainer",
    "training:launch": "trainer#launch",
    "training:run": "trainer#watch",
    "training:pipeline": "trainer#pipelines-one-launch-several-stages",
    "training:prompt_stage": "trainer#pipelines-one-launch-several-stages",
    "training:pipelines": "trainer#pipelines-one-launch-several-stages",
    "training:datasets": "datasets",
    "promotions": "approver",
    "settings": "operator#people-and-keys",
    "settings:notices": "operator#notices",
    "notices": "operator#notices",
}
"""The part of a guide that helps with a page, or with every other page of its room."""


@dataclass(frozen=True, slots=True)
class Guide:
    title: str
    html: SafeString
    anchors: frozenset[str]


@signed_in
@require_GET
def guide(request: HttpRequest, name: str = "", folder: str = "guides") -> HttpResponse:
    """Show a guide, or the list of them."""
    found = read(folder, name) if name else None
    shelf = [(reader, [(each, read("guides", each).title) for each in names]) for reader, names in SHELF.items()]
    return render(request, "help/guide.html", {"guide": found, "name": name, "shelf": shelf})


@signed_in
@require_GET
def glossary(request: HttpRequest) -> HttpResponse:
    """Show what each term means."""
    return render(request, "help/glossary.html", {"terms": sorted(TERMS.items(), key=lambda each: each[0].lower())})


def help_for(view: str) -> str:
    """Return the address of the help for a page, by its view's name such as `evals:run`."""
    place = PLACES.get(view) or PLACES.get(view.partition(":")[0], "")
    name, _, anchor = place.partition("#")
    if not name:
        return reverse("help:index")
    return reverse("help:guide", args=[name]) + (f"#{anchor}" if anchor else "")


@signed_in
@require_GET
def image(request: HttpRequest, name: str) -> HttpResponse:
    """A picture of the guides."""
    path = DOCS / "images" / f"{name}.png"
    if not path.is_file():
        raise Http404
    kept = {"Cache-Control": "private, max-age=3600"}
    return HttpResponse(path.read_bytes(), content_type="image/png", headers=kept)


@cache
def read(folder: str, name: str) -> Guide:
    """Return a file of the docs as a page. Raises Http404 where there is none."""
    path = DOCS / folder / f"{name}.md"
    if not path.is_file():
        raise Http404
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text())
    anchors = [_name_heading(token, tokens[place + 1]) for place, token in enumerate(tokens) if _is_heading(token)]
    for token in tokens:
        for child in token.children or ():
            if child.type == "image":
                _show_inside(child)
            else:
                _lead_inside(child, folder)
    title = next(tokens[place + 1].content for place, token in enumerate(tokens) if _is_heading(token))
    # Our own files, and HTML in them is shown as text.
    html = SafeString(markdown.renderer.render(tokens, markdown.options, {}))
    return Guide(title, html, frozenset(anchors))


def _is_heading(token: Token) -> bool:
    return token.type == "heading_open"


def _name_heading(heading: Token, text: Token) -> str:
    """Give a heading the anchor that a link to it has, made as GitHub makes them."""
    anchor = re.sub(r"[^\w\- ]", "", text.content.lower()).replace(" ", "-")
    heading.attrSet("id", anchor)
    return anchor


def _show_inside(token: Token) -> None:
    """Show a picture as it is served here, light or dark as the page is."""
    name = posixpath.basename(str(token.attrGet("src"))).removesuffix(".png")
    both = [(colours, reverse("help:image", args=[name + end])) for colours, end in (("light", ""), ("dark", "-dark"))]
    rows = ((colours, url, token.content) for colours, url in both)
    token.content = format_html_join("", '<img class="in-{}" src="{}" alt="{}" loading="lazy">', rows)
    token.type = "html_inline"


def _lead_inside(token: Token, folder: str) -> None:
    """Lead a link to another file of the docs to its page here. What is not served is a link no more."""
    if token.type != "link_open":
        return
    target = str(token.attrGet("href"))
    if target.startswith(("https://", "http://", "#")):
        return
    path, _, anchor = target.partition("#")
    place, _, name = posixpath.normpath(posixpath.join(folder, path)).rpartition("/")
    if place in ("guides", "design") and name.endswith(".md"):
        page = reverse("help:guide" if place == "guides" else "help:design", args=[name.removesuffix(".md")])
        token.attrSet("href", page + (f"#{anchor}" if anchor else ""))
    else:
        del token.attrs["href"]
