"""Telemetry that was sent to another path than its own: the most common mistake, told to the sender and to the page.

`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is used as it is and `OTEL_EXPORTER_OTLP_ENDPOINT` gets `/v1/traces` appended; who
mixes them up sends to `/` or to `/v1/traces/v1/traces`, and without this hears of a form that lacks a token.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.ingest.otlp_http import refuse

SIGNALS = ("/v1/traces", "/v1/logs", "/v1/metrics")


def misdirected(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Answer OTLP that reached no receiver with where it belongs. Everything else passes untouched."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if request.method == "POST" and response.status_code in (403, 404, 405) and _is_otlp(request):
            signal = next((name for name in SIGNALS if name in request.path), SIGNALS[0])
            path = request.path if len(request.path) <= 100 else f"{request.path[:100]}…"
            return refuse(request, 404, f"nothing takes telemetry at {path}: send it to {signal}")
        return response

    return middleware


def _is_otlp(request: HttpRequest) -> bool:
    path = request.path.rstrip("/")
    if path in SIGNALS and path == request.path:
        return False
    if (request.content_type or "").lower() in (otlp_traces.PROTOBUF, "application/protobuf"):
        return True
    return path.endswith(SIGNALS)
