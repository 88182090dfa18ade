"""`/healthz`: the process answers. `/readyz`: web, database, worker and beat can do their work.

Both are open to everybody, so they name what is missing and never how to reach it.
"""

import logging
import time

from django.db import Error, connection
from django.http import HttpRequest, HttpResponse, JsonResponse

from flywheel.accounts.access import public

log = logging.getLogger(__name__)

SILENT_AFTER_S = 30
"""Seconds since a process last reported, after which nothing that needs it would be carried out."""
NEEDED = {
    "worker": "no job is carried out",
    "beat": "no orphaned job is found and nothing new is read by the detectors",
}


@public
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok\n", content_type="text/plain")


@public
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when everything is there, 503 with what is missing otherwise."""
    problems = {}
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, extract(epoch FROM now() - at)::float FROM accounts_pulse")
            silent: dict[str, float] = dict(cursor.fetchall())
    except Error:
        log.exception("not ready")
        problems["database"] = "it does not answer, or `manage.py prepare` has not run; the log says more"
    else:
        for name, consequence in NEEDED.items():
            if name not in silent:
                problems[name] = f"has not reported yet; {consequence}"
            elif silent[name] > SILENT_AFTER_S:
                problems[name] = f"silent for {int(silent[name])} s; {consequence}"
    status = 503 if problems else 200
    return JsonResponse({"ready": not problems, "problems": problems, "at": time.time()}, status=status)
