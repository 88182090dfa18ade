"""`POST /gateway/v1/chat/completions` and `/responses`, and `GET /gateway/v1/models`, as any OpenAI client asks them.

What the upstream answers goes through unchanged, errors too. What Flywheel itself refuses has OpenAI's shape:
`{"error": {"message", "type", "param", "code"}}`.
"""

import functools
import json
import logging
import time
from collections.abc import Callable
from typing import Any, cast

from django.db import Error
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.request import UnreadablePostError
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from flywheel.accounts.access import Declared, KeyRefused, admit, bearer, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models.attempt_keys import is_attempts
from flywheel.edge.numbers import BIGINT, number
from flywheel.trajectories.formats.values.hostile_json import text
from flywheel.trajectories.ingest.gateway import (
    attempt_calls,
    routing,
    server_calls,
    upstream_connection,
    version_defaults,
)
from flywheel.trajectories.ingest.gateway.arms import arm_choice, shadow_copies
from flywheel.trajectories.ingest.gateway.arms.answer_names import AnswerName
from flywheel.trajectories.ingest.gateway.arms.arm_choice import Misguessed, Way
from flywheel.trajectories.ingest.gateway.call_names import CallNames, header, names_of
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.ingest.gateway.recorder import recorder
from flywheel.trajectories.ingest.gateway.relay import Relay, Slots
from flywheel.trajectories.ingest.gateway.routing import Fork, NoRoute, Route
from flywheel.trajectories.ingest.gateway.server_calls import HOP, body_for, this_flywheel

log = logging.getLogger(__name__)

AT_ONCE = 24
"""Calls under way in one process, of its 32 threads."""
RETRY_AFTER_S = 1
REQUEST_MAX = 20 * 2**20
MODELS_S = 10.0
slots = Slots(AT_ONCE)


class Refused(Exception):
    """The call is not sent on."""

    def __init__(self, status: int, message: str, *, type: str = "invalid_request_error", code: str = "") -> None:
        super().__init__(message)
        self.status, self.type, self.code = status, type, code


def _door(*methods: str) -> Callable[[Callable[[HttpRequest], HttpResponseBase]], Declared]:
    """Guard a path of the gateway: the right method, and refusals in OpenAI's words, never a page."""

    def decorate(view: Callable[[HttpRequest], HttpResponseBase]) -> Declared:
        @csrf_exempt
        @functools.wraps(view)
        def call(request: HttpRequest) -> HttpResponseBase:
            def answer() -> HttpResponseBase:
                if request.method not in methods:
                    raise Refused(405, f"{request.path} takes {' and '.join(methods)}", code="method_not_allowed")
                if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
                    raise Refused(400, "an address with a NUL names nothing")
                return view(request)

            return _refusing(answer)

        call.permission = f"key:{Scope.GATEWAY.value}"  # type: ignore[attr-defined]
        return cast(Declared, call)

    return decorate


def _refusing(answer: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """The answer, or why there is none, in OpenAI's words."""
    try:
        return answer()
    except Refused as refused:
        return _error(refused)
    except KeyRefused as refused:
        code = "invalid_api_key" if refused.status == 401 else "insufficient_permissions"
        return _error(Refused(refused.status, str(refused), code=code))
    except NoRoute as missing:
        return _with(missing.headers, _error(Refused(missing.status, str(missing), code=missing.code)))
    except Error:
        log.exception("a gateway call could not be checked")
        return _error(Refused(503, "Flywheel's database is away; try again", type="server_error", code="database_away"))


def _with(headers: dict[str, str], response: HttpResponseBase) -> HttpResponseBase:
    for name, value in headers.items():
        response[name] = value
    return response


@_door("POST")
def chat_completions(request: HttpRequest) -> HttpResponseBase:
    """Send the call on, pass the answer back as it comes, and keep both."""
    return _model_call(request, "chat/completions")


@_door("POST")
def responses(request: HttpRequest) -> HttpResponseBase:
    """The same for the Responses API. A server that does not know it says so itself."""
    return _model_call(request, "responses")


def _model_call(request: HttpRequest, api: str) -> HttpResponseBase:
    started = time.time()
    if request.headers.get(HOP) == this_flywheel():
        raise Refused(508, "this Flywheel is its own upstream; change it under Settings › Gateway", code="loop")
    body = _body(request)
    asked = _request_body(body)
    found = _route_of(request, asked)
    names = names_of(request, api, asked, found.project_id)
    # Whoever answers the same key with what it said before would give one arm's answer for the other's.
    may_guess = "Idempotency-Key" not in request.headers
    try:
        return _begin(request, api, names, asked, body, started, _way(found, names, asked, may_guess=may_guess))
    except Misguessed:
        way = _way(_route_of(request, asked), names, asked, may_guess=False)
        return _begin(request, api, names, asked, body, time.time(), way)


def _route_of(request: HttpRequest, asked: dict[str, Any]) -> Route | Fork:
    """Raises KeyRefused, NoRoute and django.db.Error."""
    token = bearer(request.headers.get("Authorization", ""))
    return attempt_calls.route(token, asked["model"]) if is_attempts(token) else routing.route(request, asked["model"])


def _way(found: Route | Fork, names: CallNames, asked: dict[str, Any], *, may_guess: bool) -> Way:
    return arm_choice.way_of(found, names, asked, may_guess=may_guess) if isinstance(found, Fork) else Way(found)


def _begin(
    request: HttpRequest,
    api: str,
    names: CallNames,
    asked: dict[str, Any],
    body: bytes,
    started: float,
    way: Way,
) -> HttpResponseBase:
    """The answer on its way, with who gives it. Raises Misguessed where that is not so."""
    route = way.route
    head = _head(request, api, route, names, asked, started) | ({"is_guess": True} if way.is_guess else {})
    shadow = route.shadow if _is_wanted(request) else None
    copy = (
        shadow_copies.Call(shadow, names.unit, head, upstream_connection.passed_on(request.headers), body)
        if (shadow is not None)
        else None
    )
    return _with(route.headers, _refusing(lambda: _send_on(request, way, head, asked, body, copy)))


def _send_on(
    request: HttpRequest,
    way: Way,
    head: dict[str, Any],
    asked: dict[str, Any],
    body: bytes,
    copy: shadow_copies.Call | None,
) -> HttpResponseBase:
    """Ask the route's server; `copy` is handed over after the last byte. Raises what `_refusing` tells the caller, and
    Misguessed."""
    route = way.route
    route.key()  # or there is nothing to begin
    sent = body_for(head["api"], route, asked, body)
    _take_slot(way)
    journal, reply, is_handed_on = None, None, False
    try:
        if route.attempt:
            attempt_calls.begin(route)
        is_recorded = bool(route.attempt) or _is_wanted(request)
        journal = Journal.begin(head, sent) if is_recorded else Journal()
        headers = upstream_connection.passed_on(request.headers)
        with way.confirmed():
            reply, passed = server_calls.ask(head["api"], route, headers, sent, journal)
        after = functools.partial(shadow_copies.offer, copy, slots) if copy else None
        look = AnswerName(way.keep_name).look if way.keep_name else None
        relay = Relay(reply, journal, _finish, after, look)
        response = StreamingHttpResponse(relay, status=reply.status, reason=reply.reason)
        for name, value in passed.items():
            response[name] = value
        if "Content-Type" not in passed:
            del response["Content-Type"]
        if is_recorded:
            response["X-Flywheel-Trace-Id"] = head["trace"]
        response["X-Accel-Buffering"] = "no"  # a proxy in front passes each piece on as it comes
        is_handed_on = True
        return response
    except upstream_connection.Unreachable as error:
        assert journal is not None
        reason = server_calls.out_of_reach(route, error, journal)
        code = "upstream_timeout" if error.status == 504 else "upstream_unreachable"
        raise Refused(error.status, reason, type="server_error", code=code) from None
    except Misguessed:
        assert journal is not None
        journal.done()
        journal = None
        raise
    finally:
        if not is_handed_on:
            slots.give_back()
            if reply is not None:
                reply.close()
            if journal is not None:
                journal.end({"how": "failed", "error": "the gateway itself failed; its log says why"})
                recorder.put(journal)


def _take_slot(way: Way) -> None:
    """Raises Refused where all are taken, which names the arm too, and so Misguessed."""
    if slots.take():
        return
    with way.confirmed():
        raise Refused(
            503,
            f"{slots.count} calls are under way in this process, which is as many as it takes; try again",
            type="server_error",
            code="gateway_busy",
        )


@_door("GET")
def models(request: HttpRequest) -> HttpResponseBase:
    """The live versions that are served, then what the upstream has."""
    admit(request, bearer(request.headers.get("Authorization", "")), Scope.GATEWAY)
    project = keyed(request).project
    rows: list[Any] = [
        {
            "id": f"{version.agent.name}{routing.LIVE}",
            "object": "model",
            "created": int(version.created_at.timestamp()),
            "owned_by": str(version),
        }
        for version in routing.served(project)
    ]
    chosen = project.upstream
    if chosen:
        route = routing.keyed(Route(project.pk, 0, chosen["base_url"], chosen.get("api_key_env", "")))
    routing.give_back_connection()
    if chosen:
        try:
            rows += _upstream_models(route, request)
        except (upstream_connection.Unreachable, NoRoute, ValueError) as error:
            if not rows:
                raise Refused(
                    502, f"the upstream {route.host} lists no models: {error}", type="server_error", code="upstream"
                ) from None
    return JsonResponse({"object": "list", "data": rows})


def _upstream_models(route: Route, request: HttpRequest) -> list[Any]:
    headers = {**upstream_connection.passed_on(request.headers), HOP: this_flywheel()}
    reply = upstream_connection.ask("GET", f"{route.base_url}/models", route.key(), headers, timeout_s=MODELS_S)
    try:
        body = reply.read(REQUEST_MAX, decode_content=False)
    finally:
        reply.close()
    if reply.status != 200:
        raise ValueError(f"it answered {reply.status}")
    value = json.loads(body)
    if not isinstance(value, dict) or not isinstance(value.get("data"), list):
        raise ValueError("its answer is no list of models")
    rows: list[Any] = value["data"]
    return rows


# What comes in


def _is_wanted(request: HttpRequest) -> bool:
    return request.headers.get("X-Flywheel-Record", "").strip().lower() not in ("no", "off", "false", "0")


def _body(request: HttpRequest) -> bytes:
    """The request's body, at most `REQUEST_MAX` bytes."""
    if (encoding := request.headers.get("Content-Encoding", "identity").strip().lower()) != "identity":
        raise Refused(415, f"Content-Encoding {encoding[:40]!r} is not taken here; send the JSON as it is")
    too_long = Refused(413, f"the request is longer than {REQUEST_MAX >> 20} MiB")
    length = number(request.headers.get("Content-Length", ""), most=BIGINT) or 0
    if length > REQUEST_MAX:
        raise too_long
    stream: Any = request
    if "chunked" in request.headers.get("Transfer-Encoding", "").lower():
        if not request.META.get("wsgi.input_terminated"):
            raise Refused(411, "send a Content-Length")
        stream = request.META["wsgi.input"]
    try:
        body: bytes = stream.read(REQUEST_MAX + 1)
    except (UnreadablePostError, OSError):
        raise Refused(400, "the body ended before its length") from None
    if len(body) > REQUEST_MAX:
        raise too_long
    if len(body) < length:
        raise Refused(400, f"the body ended after {len(body)} of {length} bytes")
    return body


def _request_body(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("model"), str) or not asked["model"]:
        raise Refused(400, 'the body must be a JSON object with a "model", which is a string', code="model_missing")
    if text(asked["model"]) != asked["model"]:
        raise Refused(400, 'the "model" holds a NUL or half of a character, as no model\'s name does')
    return asked


def _head(
    request: HttpRequest, api: str, route: Route, names: CallNames, asked: dict[str, Any], started: float
) -> dict[str, Any]:
    """Everything about the call that is not in its bodies."""
    claimed = header(request, "Agent")
    agent, _, version = claimed.partition("@")
    return {
        "id": names.call,
        "api": api,
        "follows": names.follows,
        "project": route.project_id,
        "key": route.key_id,
        "attempt": route.attempt,
        "trace": names.trace,
        "parent": names.parent,
        "session": names.session,
        "agent": route.agent or agent,
        "version": route.version or (version if not route.agent else ""),
        "claimed": claimed,
        "answered_by": route.answered_by,
        "arm": route.arm,
        "overrides": version_defaults.overridden(route.defaults, asked),
        "user": header(request, "User-Id"),
        "environment": header(request, "Environment"),
        "outcome": header(request, "Outcome").lower(),
        "asked": asked["model"],
        "host": route.host,
        "price": route.price.to_json() if route.price else None,
        "started": started,
    }


# What goes out


def _finish(journal: Journal) -> None:
    slots.give_back()
    recorder.put(journal)


def _error(refused: Refused) -> HttpResponse:
    error = {"message": str(refused), "type": refused.type, "param": None, "code": refused.code or None}
    response = JsonResponse({"error": error}, status=refused.status)
    if refused.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    if refused.status == 405:
        response["Allow"] = "GET" if refused.args[0].endswith("GET") else "POST"
    if refused.status == 503:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response
