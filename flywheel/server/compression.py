"""Pages and JSON compressed with gzip, where the browser takes it. Static files: `server.static_files`."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class Compression(GZipMiddleware):
    """Compress what is sent whole and may be kept.

    What is streamed (events, exports, the gateway's answers) is left as it is: a compressor would hold pieces back.

    Size tells what is in a compressed page to whoever may put text beside a secret and look often (BREACH). So a page
    that shows a secret is `no-store`, as it has to be, and is not compressed. The one secret in all others is the
    CSRF token, which Django masks anew in each answer; cookies are `SameSite=Lax`, so that another site's requests
    show nothing of an account; and Django adds up to 100 random bytes.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming or "no-store" in response.get("Cache-Control", ""):
            return response
        return super().process_response(request, response)
