"""`/healthz`: the process answers. `/readyz`: web, database and worker can do their work."""

import time

from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse

from flywheel.accounts.access import public

WORKER_SILENT_AFTER = 30
"""Seconds since a worker last reported, after which nothing that is launched would be carried out."""


@public
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok\n", content_type="text/plain")


@public
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when everything is there, 503 with what is missing otherwise."""
    problems = {}
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM now() - max(at)) FROM accounts_pulse WHERE name = 'worker'")
            silent = cursor.fetchone()[0]
        if silent is None or silent > WORKER_SILENT_AFTER:
            problems["worker"] = "no worker has reported yet" if silent is None else f"silent for {int(silent)} s"
    except Exception as error:
        problems["database"] = str(error).strip().splitlines()[0]
    return JsonResponse(
        {"ready": not problems, "problems": problems, "at": time.time()}, status=503 if problems else 200
    )
