"""What the first request of a process would else wait for: addresses and templates, read once before it comes."""

from pathlib import Path

from django.template import engines
from django.urls import get_resolver, reverse


def warm() -> None:
    """Load every page's code, its address and its template. What is loaded before a fork is shared after it."""
    assert get_resolver().url_patterns
    reverse("home")
    engine = engines["django"]
    for folder in map(Path, engine.engine.dirs):  # type: ignore[attr-defined]
        for page in sorted(folder.rglob("*.html")):
            engine.get_template(page.relative_to(folder).as_posix())
