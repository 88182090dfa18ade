from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from flywheel.accounts.access import PageRequest, requires, signed_in
from flywheel.accounts.models import Permission


@signed_in
def home(request: HttpRequest) -> HttpResponse:
    first = request.user.projects().first()
    return redirect("overview:index", project=first.slug)


@requires(Permission.ADMIN)
def settings_index(request: PageRequest) -> HttpResponse:
    return render(request, "base.html")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "403.html", {"reason": str(exception)}, status=403)
