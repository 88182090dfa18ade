"""What a browser sends of a page's form when nobody touched it."""

from html.parser import HTMLParser
from typing import Any


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, str] = {}
        self.select = self.area = ""
        self.option: tuple[str | None, bool] | None = None
        self.words = ""
        self.is_first = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has: dict[str, Any] = dict(attrs)
        name = has.get("name") or ""
        if tag == "input" and name and (has.get("type") not in ("checkbox", "radio") or "checked" in has):
            self.sent[name] = has.get("value", "on" if has.get("type") == "checkbox" else "") or ""
        elif tag == "select":
            self.select, self.is_first = name, True
        elif tag == "option" and self.select:
            self.option, self.words = (has.get("value"), "selected" in has), ""
        elif tag == "textarea":
            self.area, self.words = name, ""

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "option" and self.option is not None:
            value, is_selected = self.option
            if is_selected or self.is_first:
                self.sent[self.select] = self.words.strip() if value is None else value
            self.option, self.is_first = None, False
        elif tag == "select":
            self.select = ""
        elif tag == "textarea" and self.area:
            self.sent[self.area] = self.words.removeprefix("\r").removeprefix("\n")
            self.area = ""


def posted(page: str) -> dict[str, str]:
    """Name → value of every input, choice and text of the page."""
    reader = _Reader()
    reader.feed(page)
    return reader.sent
