import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client

from flywheel.server.middleware import PROGRAMS, programs, security_headers
from flywheel.urls import gateway_urls, ingest_urls


def test_every_answer_forbids_what_the_pages_do_not_need() -> None:
    response = security_headers(lambda _: HttpResponse())(HttpRequest())
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response["X-Content-Type-Options"] == "nosniff"


def test_a_view_may_be_stricter() -> None:
    own = HttpResponse(headers={"Content-Security-Policy": "default-src 'none'; sandbox"})
    assert security_headers(lambda _: own)(HttpRequest())["Content-Security-Policy"].endswith("sandbox")


def test_calls_of_programs_pass_no_session_and_no_form(client: Client) -> None:
    own = [*(f"/v1/{item.pattern}" for item in ingest_urls), *(f"/gateway/v1/{item.pattern}" for item in gateway_urls)]
    assert sorted(PROGRAMS) == sorted(own)

    def page(request: HttpRequest) -> HttpResponse:
        raise AssertionError(f"{request.path} went the long way")

    short = programs(page)
    for path in PROGRAMS:
        request = HttpRequest()
        request.path = request.path_info = path
        request.META = {"HTTP_HOST": "localhost"}
        request.method = "PUT"
        response = short(request)
        assert response.status_code == 405, path
        assert response["Content-Length"] == str(len(response.content))
        assert client.put(path, headers={"host": "a b"}).status_code == 400  # no host name, as everywhere


def test_pages_pass_everything() -> None:
    request = HttpRequest()
    request.path = request.path_info = "/v1/traces/"
    with pytest.raises(ZeroDivisionError):
        programs(lambda _: HttpResponse(status=1 // 0))(request)
