"""Pictures of pages in both colour schemes, and a film of a walk with one frame for each act."""

import io
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.sync_api import Locator, Page

DRAWN_MS = 1500
"""Charts are drawn after the page is there."""
FILM_SIZE = (1200, 750)
FILM_MAX = 4 * 10**6
"""Bytes, so that a page that shows the film stays light."""
SHOWN: Final = "initial"
"""To hide the caret, a style would be written into the page, which its policy refuses."""
MARK = "element => { element.style.outline = '3px solid var(--accent)'; element.style.outlineOffset = '2px'; }"


class Camera:
    """Puts `name.png` and `name-dark.png` of each picture, and the film, into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._film: list[tuple[bytes, int]] = []

    def picture(self, page: Page, name: str) -> None:
        """Take the window's first screen, light and dark."""
        page.evaluate("scrollTo(0, 0)")
        both: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for colours in both:
            page.emulate_media(color_scheme=colours)
            page.wait_for_timeout(DRAWN_MS)
            end = "-dark" if colours == "dark" else ""
            page.screenshot(path=self.folder / f"{name}{end}.png", caret=SHOWN)
        page.emulate_media(color_scheme="light")

    def frame(self, page: Page, milliseconds: int, at: Locator | None = None) -> None:
        """Add what the window shows, for so long; where something is clicked next, it is marked."""
        if at is not None:
            at.scroll_into_view_if_needed()
            at.evaluate(MARK)
        self._film.append((page.screenshot(type="jpeg", quality=95, caret=SHOWN), milliseconds))

    def develop(self, name: str) -> int:
        """Write the film as an animated WebP, and return its bytes. Raises ValueError when they are too many."""
        frames = [Image.open(io.BytesIO(shot)).resize(FILM_SIZE, Image.Resampling.LANCZOS) for shot, _ in self._film]
        path = self.folder / f"{name}.webp"
        durations = [milliseconds for _, milliseconds in self._film]
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=60, method=4)
        if (size := path.stat().st_size) > FILM_MAX:
            raise ValueError(f"the film has {size:,} bytes, more than {FILM_MAX:,}")
        return size
