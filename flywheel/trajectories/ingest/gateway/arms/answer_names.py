"""The name of an answer of the Responses API, read on its way to the caller, who may name it in the next call."""

import logging
from collections.abc import Callable

from django.db import Error

from flywheel.trajectories.ingest.gateway.call_names import name_of_answer
from flywheel.trajectories.ingest.gateway.journals.journal_contents import json_object
from flywheel.trajectories.ingest.gateway.routing import give_back_connection

log = logging.getLogger(__name__)

LOOKED_AT = 2**20
"""Bytes within which an answer says its name: all of a whole one, the first event of a stream."""


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
        if name := _name_in(self._seen):
            self._tell(self._keep, name)
        if name or len(self._seen) >= LOOKED_AT:
            self._keep, self._seen = None, b""

    def _tell(self, keep: Callable[[str], None], name: str) -> None:
        try:
            keep(name)
        except Error:
            log.exception("a call that goes on from this answer is not known to be of its arm")
        finally:
            give_back_connection()


def _name_in(seen: bytes) -> str:
    """The name of the response that begins so, as one JSON object or as events; empty while it is not there."""
    seen = seen.strip()
    if seen.startswith(b"{"):
        return name_of_answer(json_object(seen).get("id")) if seen.endswith(b"}") else ""
    for line in seen.splitlines()[:-1]:
        if line.startswith(b"data:"):
            response = json_object(line.removeprefix(b"data:")).get("response")
            return name_of_answer(response.get("id")) if isinstance(response, dict) else ""
    return ""
