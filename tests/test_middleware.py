from django.http import HttpRequest, HttpResponse

from flywheel.middleware import security_headers


def test_every_answer_forbids_what_the_pages_do_not_need() -> None:
    response = security_headers(lambda _: HttpResponse())(HttpRequest())
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response["X-Content-Type-Options"] == "nosniff"


def test_a_view_may_be_stricter() -> None:
    own = HttpResponse(headers={"Content-Security-Policy": "default-src 'none'; sandbox"})
    assert security_headers(lambda _: own)(HttpRequest())["Content-Security-Policy"].endswith("sandbox")
