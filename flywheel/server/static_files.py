"""Static files, served from where they are, with no collect step to forget: compressed once, and named by content.

Pages name `/static/app.css?v=<digest>`, which a browser keeps for good. Whatever else is asked for under `/static/`,
an old digest too, is answered with the file as it is now, to be kept for a minute.
"""

import gzip
import os
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage, staticfiles_storage
from django.http import FileResponse, HttpRequest
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import Response, StaticFile

SHORTEST = 512
"""Bytes; below this nothing is won."""


@lru_cache(maxsize=256)
def digest(name: str) -> str:
    """Return 12 hex digits of the file's SHA-256, of the file as the process found it first; "" for no file."""
    path = finders.find(name)
    return sha256(Path(path).read_bytes()).hexdigest()[:12] if path else ""


class NamedByContent(StaticFilesStorage):
    """Addresses as `{% static %}` writes them. With DEBUG files change under the process, and have their plain one."""

    def url(self, name: str | None) -> str:
        plain = super().url(name)
        known = "" if settings.DEBUG or not name else digest(name)
        return f"{plain}?v={known}" if known else plain


class Compressed(StaticFile):  # type: ignore[misc]
    """A file whose gzip variant is kept in memory: 70 kB for all of ours, shared by the processes of the server."""

    def __init__(self, path: str, headers: list[tuple[str, str]]) -> None:
        super().__init__(path, [*headers, ("Vary", "Accept-Encoding")])
        self.packed = gzip.compress(Path(path).read_bytes(), mtime=0)
        (_, _, whole), *_ = self.alternatives
        changed = {"Content-Encoding": "gzip", "Content-Length": str(len(self.packed))}
        self.packed_headers = list({**dict(whole), **changed}.items())

    def get_response(self, method: str, request_headers: dict[str, Any]) -> Response:
        found = super().get_response(method, request_headers)
        if found.status != HTTPStatus.OK or "gzip" not in request_headers.get("HTTP_ACCEPT_ENCODING", ""):
            return found
        if found.file:
            found.file.close()
        return Response(HTTPStatus.OK, self.packed_headers, BytesIO(self.packed) if found.file else None)


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """WhiteNoise, which sends `name.gz` where there is one, with the rest compressed, too, and lasting addresses."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> FileResponse:
        response: FileResponse = WhiteNoiseMiddleware.serve(static_file, request)
        name = request.path_info.removeprefix(settings.STATIC_URL)
        if request.GET and request.get_full_path() == staticfiles_storage.url(name):
            response.headers["Cache-Control"] = f"max-age={WhiteNoiseMiddleware.FOREVER}, public, immutable"
        return response

    def get_static_file(self, path: str, url: str, stat_cache: dict[str, os.stat_result] | None = None) -> StaticFile:
        found = super().get_static_file(path, url, stat_cache)
        (_, _, headers), *others = found.alternatives
        is_served_whole = self.autorefresh or others or os.path.getsize(path) < SHORTEST
        return found if is_served_whole else Compressed(path, [each for each in headers if each[0] != "Content-Length"])
