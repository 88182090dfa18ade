"""Addresses and templates, read once before a process's first request, which would else wait for them."""

from django.conf import settings
from django.template import engines
from django.urls import get_resolver, reverse


def warm() -> None:
    """Load every page's code, its address and its template. What is loaded before a fork is shared after it."""
    assert get_resolver().url_patterns
    reverse("home")
    folder = settings.BASE_DIR / "templates"
    for page in sorted(path.relative_to(folder) for path in folder.rglob("*.html")):
        if page.parts[0] == "jinja":
            engines["jinja2"].get_template(page.relative_to("jinja").as_posix())
        else:
            engines["django"].get_template(page.as_posix())
