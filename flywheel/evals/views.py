from django.http import HttpResponse
from django.shortcuts import render

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission


@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    return render(request, "base.html")
