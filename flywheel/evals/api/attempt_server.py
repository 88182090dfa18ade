"""An attempt's own addresses, `/attempts/<id>/…`, for the program that makes it, with the key of that attempt.

Errors are `{"detail": text}`: 401 without a key, 404 for another attempt's, 409 after its answer, 410 after its time,
429 where too many calls wait, 504 where one has waited too long.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from flywheel.accounts.access import Declared, bearer
from flywheel.core.digests import DEEPEST, is_deep, read_json
from flywheel.core.errors import FieldError
from flywheel.edge.refusals import Refused, status_of
from flywheel.evals.api import attempt_mcp
from flywheel.evals.attempts import attempt_lifecycle, attempt_tools
from flywheel.evals.attempts.program_answers import answer_of
from flywheel.evals.attempts.waiting_calls import RETRY_AFTER_S, Busy
from flywheel.evals.models import ProgramAttempt

BODY_MAX, CALL_MAX = 8 * 2**20, 64 * 2**10
"""Bytes of a result, and of one call's arguments."""
Answer = Callable[..., dict[str, Any] | None]


def _door(method: str) -> Callable[[Answer], Declared]:
    """Guard a path: the right method, and the key of this attempt."""

    def decorate(view: Answer) -> Declared:
        @csrf_exempt
        @functools.wraps(view)
        def call(request: HttpRequest, attempt: str, **more: Any) -> HttpResponse:
            if request.method != method:
                return JsonResponse({"detail": f"{request.path} takes {method}"}, status=405, headers={"Allow": method})
            token = bearer(request.headers.get("Authorization", ""))
            if not token:
                detail = "send the attempt's key: `Authorization: Bearer fwa_…`"
                return JsonResponse({"detail": detail}, status=401, headers={"WWW-Authenticate": "Bearer"})
            try:
                found = attempt_lifecycle.find(attempt, token)
                attempt_lifecycle.refuse_over(found)
                answer = view(request, found, **more)
                return HttpResponse(status=202) if answer is None else JsonResponse(answer)
            except FieldError as error:
                status = status_of(error)
                headers = {"Retry-After": str(RETRY_AFTER_S)} if status == Busy.status else {}
                return JsonResponse({"detail": str(error)}, status=status, headers=headers)

        call.permission = "key:attempt"  # type: ignore[attr-defined]
        return cast(Declared, call)

    return decorate


@_door("GET")
def tools(request: HttpRequest, attempt: ProgramAttempt) -> dict[str, Any]:
    """Definitions, as chat completions take them."""
    return {"tools": attempt_tools.definitions(attempt)}


@_door("POST")
def tool(request: HttpRequest, attempt: ProgramAttempt, name: str) -> dict[str, Any]:
    """Carry out one call, whose arguments are the body. `over`: the episode ended with it."""
    made = attempt_tools.use(attempt, name, _body(request, CALL_MAX))
    return {"result": made.result or "", "over": made.result is None}


@_door("POST")
def mcp(request: HttpRequest, attempt: ProgramAttempt) -> dict[str, Any] | None:
    """The same tools, for an MCP client: one message of JSON-RPC."""
    return attempt_mcp.answer(attempt, _body(request, CALL_MAX))


@_door("POST")
def lease(request: HttpRequest, attempt: ProgramAttempt) -> dict[str, Any]:
    """Hold the attempt for another lease."""
    return {"lease_until": attempt_lifecycle.renew(attempt).isoformat()}


@_door("POST")
def result(request: HttpRequest, attempt: ProgramAttempt) -> dict[str, Any]:
    """Take the answer, `{"output": …}`, or `{"error": …}` where there is none."""
    attempt_lifecycle.answer(attempt, **answer_of(_body(request)))
    return {"attempt": attempt.key.public if attempt.key else "", "state": "answered"}


def _body(request: HttpRequest, most: int = BODY_MAX) -> Any:
    content = request.read(most + 1)
    if len(content) > most:
        raise Refused(f"the body is longer than {most >> 10} KiB")
    try:
        value = read_json((content or b"{}").decode())
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if is_deep(value):
        raise Refused(f"lists and objects of the body stand more than {DEEPEST} deep within each other")
    return value
