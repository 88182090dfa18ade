"""The name of an answer of the Responses API, read on its way to the caller, who may name it in the next call."""

import logging
import re
from collections.abc import Callable

from django.db import Error

from flywheel.trajectories.ingest.gateway.routing import give_back_connection

log = logging.getLogger(__name__)

LOOKED_AT = 64 * 1024
"""Bytes within which an answer says its name: whole ones at their beginning, streams in their first event."""
_NAME = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,195})"')


class AnswerName:
    """Looks at the pieces of one answer until its name is there, and then keeps that before the piece goes on."""

    def __init__(self, keep: Callable[[str], None]) -> None:
        """`keep` may raise django.db.Error."""
        self._keep: Callable[[str], None] | None = keep
        self._seen = b""

    def look(self, piece: bytes) -> None:
        if self._keep is None:
            return
        self._seen += piece[: LOOKED_AT - len(self._seen)]
        found = _NAME.search(self._seen)
        if found is not None:
            self._tell(self._keep, found[1].decode(errors="replace"))
        if found is not None or len(self._seen) >= LOOKED_AT:
            self._keep, self._seen = None, b""

    def _tell(self, keep: Callable[[str], None], name: str) -> None:
        try:
            keep(name)
        except Error:
            log.exception("a call that goes on from this answer is not known to be of its arm")
        finally:
            give_back_connection()
