"""Pages that ask again until a job is over."""

from django.http import HttpResponse
from django_htmx.http import HttpResponseStopPolling


def loaded_anew() -> HttpResponse:
    """The last answer: nothing more is asked, and the whole page is loaded, which now shows the end."""
    response = HttpResponseStopPolling()
    response.headers["HX-Refresh"] = "true"
    return response
