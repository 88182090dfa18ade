"""Who signs in, and how often a wrong password may be tried.

Five tries for a name from one address, fifty from one address, within a quarter of an hour. A try is written down
before the password is looked at, so that many at the same moment are counted too; a right password forgets the tries
of its name. Nobody can lock another person out from elsewhere: tries from another address are counted by themselves.
The counting is in the database, so that it holds over several web processes and restarts.
"""

from datetime import timedelta
from typing import Any, NoReturn

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flywheel.accounts.models import LoginAttempt

WINDOW = timedelta(minutes=15)
TRIES_PER_NAME = 5
TRIES_PER_ADDRESS = 50


class TooManyTries(ValidationError):
    """The password was not looked at."""


class SignIn(AuthenticationForm):
    """Username and password. It does not tell which of the two was wrong, or whether the account exists."""

    error_messages = {"invalid_login": "Username and password do not match.", "inactive": "This account is closed."}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, hint in (("username", "username"), ("password", "current-password")):
            self.fields[name].widget.attrs["autocomplete"] = hint

    def clean(self) -> dict[str, Any]:
        assert self.request is not None
        username = self.cleaned_data.get("username", "").casefold()
        address = address_of(self.request)
        if username and self.cleaned_data.get("password"):
            _count(username, address)
        cleaned = super().clean()
        LoginAttempt.objects.filter(username=username, address=address).delete()
        return cleaned


class SignInPage(LoginView):
    template_name = "accounts/login.html"
    authentication_form = SignIn
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        throttled = any(isinstance(error, TooManyTries) for error in form.non_field_errors().as_data())
        response = super().form_invalid(form)
        response.status_code = 429 if throttled else 422
        if throttled:
            response.headers["Retry-After"] = str(int(WINDOW.total_seconds()))
        return response


def _count(username: str, address: str) -> None:
    """Write the try down. Raises TooManyTries."""
    now = timezone.now()
    LoginAttempt.objects.filter(at__lt=now - WINDOW).delete()
    LoginAttempt.objects.create(username=username, address=address, at=now)
    from_here = LoginAttempt.objects.filter(address=address)
    for tries, most in ((from_here.filter(username=username), TRIES_PER_NAME), (from_here, TRIES_PER_ADDRESS)):
        if tries.count() > most:
            _refuse(tries.order_by("-at")[most - 1].at + WINDOW - now)


def _refuse(wait: timedelta) -> NoReturn:
    minutes = max(1, -(-int(wait.total_seconds()) // 60))
    raise TooManyTries(f"Too many tries from here. The next is looked at in {minutes} min; the password may be right.")


def address_of(request: HttpRequest) -> str:
    """Where the browser is, as the proxy in front says when there is one."""
    forwarded = request.headers.get("X-Forwarded-For", "") if settings.SESSION_COOKIE_SECURE else ""
    return (forwarded.rpartition(",")[2].strip() or request.META.get("REMOTE_ADDR", ""))[:64]
