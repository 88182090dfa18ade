"""Security headers of every answer, so that hostile text in a trajectory stays text even if a template errs; and the
short way of the calls that programs make."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import resolve

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "object-src 'none'",
    ]
)
"""No nonce and no hash: there is no inline script and no inline style in any page (docs/design/ui-components.md)."""

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def security_headers(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Add HEADERS to every answer; a view that needs another value sets its own first."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return middleware


PROGRAMS = (
    *("/v1/traces", "/v1/logs", "/v1/metrics"),
    *("/gateway/v1/chat/completions", "/gateway/v1/responses", "/gateway/v1/models"),
)
"""What telemetry and model calls are sent to, thousands of times a minute. Each carries its own key."""


def programs(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Hand these calls to their views at once: there is no session, cookie, form or page in them."""
    views = {path: resolve(path).func for path in PROGRAMS}

    def middleware(request: HttpRequest) -> HttpResponse:
        view = views.get(request.path_info)
        if view is None:
            return get_response(request)
        request.get_host()  # raises for a host that is not ours
        response: HttpResponse = view(request)
        if not response.streaming:
            response.headers.setdefault("Content-Length", str(len(response.content)))
        return response

    return middleware
