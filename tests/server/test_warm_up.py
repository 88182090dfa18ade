"""What a process loads before its first request."""

from django.conf import settings
from django.template import engines

from flywheel.server.warm_up import warm


def test_every_template_can_be_read_before_it_is_asked_for() -> None:
    warm()
    (cached,) = engines["django"].engine.template_loaders  # type: ignore[attr-defined]
    folder = settings.BASE_DIR / "templates"
    pages = {page.relative_to(folder).as_posix() for page in folder.rglob("*.html")}
    assert len(pages) > 50
    assert pages <= set(cached.get_template_cache)
