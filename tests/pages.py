"""How tests read a page: its HTML with the white space that a browser would show and no other."""

import re
from html.parser import HTMLParser
from typing import Any

BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|caption|col|colgroup|datalist|dd|details|dialog|div|dl|dt|fieldset"
    "|figcaption|figure|footer|form|h[1-6]|head|header|hr|html|legend|li|link|main|meta|nav|ol|optgroup|option|p|pre"
    "|script|section|style|summary|table|tbody|td|template|tfoot|th|thead|title|tr|ul"
)
"""Beside their tags no space is seen."""
VERBATIM = frozenset({"pre", "script", "style", "textarea"})
"""Inside them every space is."""
SPACE = " \t\n\r\f"


def page_of(response: Any) -> str:
    """Return the page's HTML in one line, so that `"<p>3 of <b>4</b></p>" in page_of(response)` says what is seen.

    A run of white space is one space, and there is none beside the tags of blocks. Values of attributes, entities and
    what is in `VERBATIM` stay as they were sent.
    """
    return "".join(_Reader(response.content.decode()).pieces).strip(SPACE)


class _Reader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        self.pieces = [""]
        self.is_beside_block = True
        self.verbatim = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # What is in quotes is matched first, and stays.
        parts = re.findall(rf"""(?:"[^"]*"|'[^']*'|[^{SPACE}"'])+""", self.get_starttag_text() or "")
        self.add_tag(tag, re.sub(r" (/?>)$", r"\1", " ".join(parts)))
        self.verbatim = self.verbatim or (tag if tag in VERBATIM else "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag == self.verbatim:
            self.pieces.append("")  # what stands before the tag is kept
            self.verbatim = ""
        self.add_tag(tag, f"</{tag}>")

    def add_tag(self, tag: str, source: str) -> None:
        self.is_beside_block = BLOCKS.fullmatch(tag) is not None
        if self.is_beside_block and not self.verbatim:
            self.pieces[-1] = self.pieces[-1].rstrip(SPACE)
        self.pieces.append(source)

    def handle_data(self, data: str) -> None:
        if not self.verbatim:
            data = re.sub(rf"[{SPACE}]+", " ", data)
            data = data.lstrip(" ") if self.is_beside_block else data
        if data:
            self.pieces.append(data)
            self.is_beside_block = False

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")
