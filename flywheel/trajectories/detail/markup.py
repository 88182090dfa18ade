"""HTML written in Python, where a page has more pieces than a template is quick enough for."""

from html import escape

from django.utils.safestring import SafeString

from flywheel.templatetags.flywheel import safe_text


def html(form: str, *parts: object) -> SafeString:
    """As `format_html`, without a look whether a part has to be translated first: every part is escaped that is not
    HTML already."""
    return SafeString(form.format(*[part if type(part) is SafeString else escape(str(part)) for part in parts]))


def said(text: object) -> str:
    """What an agent or a person wrote, as it may stand in HTML and in its attributes: visible, and escaped."""
    return escape(safe_text(text))


def joined(parts: list[SafeString]) -> SafeString:
    return SafeString("".join(parts))
