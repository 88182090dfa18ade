"""Refusals: what was asked for cannot be done, and whoever asked is told why.

    raise Refused("is 300; at most 200 are shown", field="limit")

A verb raises one and nobody in between catches it: the API answers `{"detail": "limit: is 300; …"}` with its status
(`server.api`), a page goes back to where the form stood and says so (`answer`). A view that shows the problem beside
its field catches it and reads `field` and `problem`, or has `refusal_shown` do so.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from django.contrib import messages
from django.db.models import Model, QuerySet
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django_htmx.http import HttpResponseClientRedirect

from flywheel.core.errors import FieldError

M = TypeVar("M", bound=Model)


class Refused(FieldError):
    """The request is understood and not carried out; nothing changed."""

    status: ClassVar[int] = 422


@contextmanager
def at_field(field: str) -> Iterator[None]:
    """Refuse what is refused inside as a problem of this field of the request."""
    try:
        yield
    except FieldError as error:
        raise Refused(error.problem, field=field) from None


class Unreadable(Refused):
    """A cursor, a number or a filter in an address that is none of ours."""

    status = 400


class Missing(Refused):
    """No such row in this project, or none that this person may see."""

    status = 404


class NoRoom(Exception):
    """A job has to wait for what it needs here. The reason is for its page; empty where the one before still holds."""


class Stale(Refused):
    """Somebody else was first: the row moved since the form was shown."""

    status = 409


def status_of(error: FieldError) -> int:
    return getattr(error, "status", Refused.status)


def one(rows: QuerySet[M], **wanted: Any) -> M:
    """The row that `wanted` names. Raises Missing, which says what there is none of."""
    row = rows.filter(**wanted).first()
    if row is None:
        name = "@".join(str(value)[:100] for value in wanted.values())
        raise Missing(f"there is no {rows.model._meta.verbose_name} {name}")
    return row


def check_choice(value: object, known: Iterable[str], *, field: str, error: type[Refused] = Refused) -> None:
    """Raise `error` for a value that is none of `known`."""
    names = list(known)
    if value not in names:
        raise error(f"{repr(value)[:100]} is unknown; use one of {', '.join(filter(None, names))}", field=field)


def show_at_field(form: BaseForm, error: FieldError, **names: str) -> None:
    """Put the problem beside its field, which the form may call otherwise (`names`), or above the form."""
    name = names.get(error.field, error.field.rpartition(".")[2])
    if name in form.fields:
        form.add_error(name, error.problem)
    else:
        form.add_error(None, str(error))


@contextmanager
def refusal_shown(form: BaseForm, **names: str) -> Iterator[None]:
    """Go on after a refusal inside, which the form then shows as `show_at_field` does."""
    try:
        yield
    except FieldError as error:
        show_at_field(form, error, **names)


def answer(request: HttpRequest, error: FieldError) -> HttpResponseBase:
    """Go back to the page that was left and say it there; show the problem alone for a page that was only read, or that
    is of nothing. A list whose cursor may be why is shown from its beginning."""
    if request.method == "GET" and isinstance(error, Unreadable) and "cursor" in request.GET:
        query = request.GET.copy()
        del query["cursor"]
        return redirect(f"{request.path}?{query.urlencode()}")
    if request.method == "GET" or isinstance(error, Missing):
        return render(request, "problem.html", {"problem": error}, status=status_of(error))
    messages.error(request, f"Nothing was changed: {error}.".replace("..", "."))
    came_from = urlsplit(request.headers.get("HX-Current-URL") or request.headers.get("Referer", ""))
    back = came_from.path + (f"?{came_from.query}" if came_from.query else "")
    if came_from.netloc != request.get_host() or not back.startswith("/") or back.startswith("//"):
        back = "/"
    return HttpResponseClientRedirect(back) if request.headers.get("HX-Request") else redirect(back)


class Refusals:
    """Middleware: a refusal that no view caught."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        return answer(request, error) if isinstance(error, FieldError) else None
