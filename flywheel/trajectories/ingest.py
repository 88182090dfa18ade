from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from flywheel.accounts.access import public


@csrf_exempt
@public
def traces(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=503)


@csrf_exempt
@public
def accepted(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=200)
