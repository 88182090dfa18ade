"""The demo's door: in by its link, and from one role to another."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts import demo_accounts
from flywheel.accounts.access import public, signed_in


@public
@never_cache
@require_GET
def enter(request: HttpRequest, token: str) -> HttpResponse:
    """Sign the visitor in as the demo's reviewer."""
    if not demo_accounts.enter(request, token):
        raise Http404
    return redirect("overview:index", demo_accounts.PROJECT)


@signed_in
@require_POST
def switch(request: HttpRequest) -> HttpResponse:
    """Go on as another of the demo's accounts, on the page that is named; or hide the tour, or show it again."""
    if not demo_accounts.others(request):
        raise Http404
    if tour := request.POST.get("tour"):
        demo_accounts.dismiss(request, tour == "hide")
        return _go(request, request.headers.get("Referer", ""))
    if not demo_accounts.switch(request, request.POST.get("username", "")):
        raise Http404
    return _go(request, request.POST.get("next", ""))


def _go(request: HttpRequest, place: str) -> HttpResponse:
    is_ours = url_has_allowed_host_and_scheme(place, {request.get_host()})
    return redirect(place) if is_ours else redirect("overview:index", demo_accounts.PROJECT)
