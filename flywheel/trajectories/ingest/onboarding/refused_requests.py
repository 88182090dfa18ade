"""Requests that were refused lately, so that the connect page can say why nothing arrives.

Writing is a courtesy: it never fails the request that it tells of, it happens a few times a second at most, and the
table is bounded. Who has no key of this server cannot choose a word of what is kept: such requests are counted under a
few fixed sentences, which belong to no project.
"""

import logging
import threading
import time
from collections.abc import Mapping

from django.db import connection, transaction
from django.utils import timezone

from flywheel.accounts.access import bearer
from flywheel.accounts.models import ApiKey
from flywheel.trajectories.ingest.onboarding import snippets
from flywheel.trajectories.models import Attempt

log = logging.getLogger(__name__)

A_SECOND = 5
"""Of those without a valid key, and as many of the others, so that strangers do not crowd them out."""
PAUSE_S = 1.0
"""The same refusal of the same key is written once in this time."""
KEPT = 50
"""Kinds of refusal per project."""
REMEMBERED = 500

WRONG_PATH = "OTLP is taken under /v1/traces, and it was sent to another path"
OTHER_HEADERS = ("x-api-key", "api-key", "apikey", "x-flywheel-key", "x-honeycomb-team", "dd-api-key")


def note(status: int, reason: str, headers: Mapping[str, str]) -> None:
    """Remember that a request with these headers (names in any case) was answered with this. Never raises."""
    try:
        given = {name.lower(): value for name, value in headers.items()}
        if _limits[status in (401, 404)].allows((status, reason[:300], given.get("authorization", "")[:32])):
            _write(status, reason, given)
    except Exception:
        log.debug("a refused request was not noted", exc_info=True)


def _write(status: int, reason: str, given: Mapping[str, str]) -> None:
    with transaction.atomic():
        key, problem = presented(given)
        if status == 401 or key is None or problem:
            # A refusal for another cause than the key is told only to whoever has a key that is in force.
            status, reason = (401, problem) if status != 404 else (404, WRONG_PATH)
        project, number = (key.project_id, key.pk) if key else (None, None)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO trajectories_attempt (project_id, key_id, status, reason, at, count)"
                " VALUES (%s, %s, %s, %s, %s, 1) ON CONFLICT (project_id, key_id, status, reason)"
                " DO UPDATE SET at = EXCLUDED.at, count = trajectories_attempt.count + 1 RETURNING count",
                [project, number, status, reason.replace("\0", "")[:300], timezone.now()],
            )
            is_new = cursor.fetchone() == (1,)
        if is_new:
            rows = Attempt.objects.filter(project=project)
            Attempt.objects.filter(pk__in=rows.order_by("-at", "-pk").values("pk")[KEPT:]).delete()


def presented(given: Mapping[str, str]) -> tuple[ApiKey | None, str]:
    """The key in headers (names in lower case), if the server knows it, and what is wrong with it: nothing with one in
    force."""
    header = given.get("authorization", "").strip()
    token = bearer(header)
    if not header:
        for name in OTHER_HEADERS:
            if given.get(name, "").strip().lower().removeprefix("bearer ").startswith("fw_"):
                return None, f"the key came in the header {name}; it belongs in Authorization: Bearer fw_…"
        return None, "there was no header Authorization: Bearer fw_…"
    if not token:
        return None, _not_bearer(header)
    if token == snippets.KEY or token.startswith(("fw_…", "fw_...", "$", "<")):
        return None, "the key is still the placeholder of the example"
    prefix, _, rest = token.strip("\"'").partition("_")
    public, _, secret = rest.partition("_")
    if prefix != "fw" or not secret:
        return None, "the key is none of this server's: they look like fw_<12 letters>_<secret>"
    row = ApiKey.objects.select_related("project").filter(public=public[:16]).first()
    if row is None:
        return None, "no key of this server begins like this one"
    if row.revoked_at is not None:
        return row, f"the key “{row.name}” is revoked"
    if row.is_expired:
        return row, f"the key “{row.name}” has expired"
    if ApiKey.find(token) is None:
        return row, f"the secret does not fit the key “{row.name}”: it was not copied whole, or was changed"
    return row, ""


def _not_bearer(header: str) -> str:
    """Say in a fixed sentence what is wrong with a header that has no bearer's token."""
    low = header.strip("\"'").lower()
    if low.startswith(("bearer%20", "bearer+")):
        return "the header says Bearer%20fw_… literally: this exporter wants a space there"
    if low != header.lower():
        return "the header Authorization has quotes around its value"
    if low.startswith("fw_"):
        return "the word Bearer is missing before the key"
    if low.startswith("basic"):
        return "the header says Basic (a user and a password); it has to say Bearer fw_…"
    return "the header Authorization is not of the form Bearer fw_…"


class _Limit:
    """A limit on how often this process writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[object, float] = {}
        self._second, self._written = 0, 0

    def allows(self, what: object) -> bool:
        now = time.monotonic()
        with self._lock:
            if int(now) != self._second:
                self._second, self._written = int(now), 0
            if self._written >= A_SECOND or now - self._last.get(what, -PAUSE_S) < PAUSE_S:
                return False
            if len(self._last) >= REMEMBERED:
                self._last.clear()
            self._written += 1
            self._last[what] = now
            return True


_limits = {True: _Limit(), False: _Limit()}
