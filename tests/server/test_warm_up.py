"""What a process loads before its first request."""

from django.conf import settings
from django.template import engines

from flywheel.server.warm_up import warm


def test_every_template_can_be_read_before_it_is_asked_for() -> None:
    warm()
    (cached,) = engines["django"].engine.template_loaders  # type: ignore[attr-defined]
    folder = settings.BASE_DIR / "templates"
    pages = {page.relative_to(folder).as_posix() for page in folder.rglob("*.html")}
    by_jinja = {page for page in pages if page.startswith("jinja/")}
    assert len(pages) > 50
    assert pages - by_jinja <= set(cached.get_template_cache)
    read = {f"jinja/{name}" for _, name in engines["jinja2"].env.cache}  # type: ignore[attr-defined]
    assert by_jinja
    assert by_jinja <= read
