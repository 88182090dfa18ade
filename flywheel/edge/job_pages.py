"""The views that every page of a job has: how far it is, stop, go on.

    live = job_pages.live(_find, "evals/_rescoring.html", requires(Permission.VIEW))
    cancel = job_pages.cancel(_find, "evals:rescore", requires(Permission.BUILD))
    resume = job_pages.resume(_find, "evals:rescore", requires(Permission.BUILD))

Each is given how the job of an address is found, and the decorator that lets in who may, for `accounts` is above this
room. The address has one number besides the project, the job's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.core.errors import FieldError
from flywheel.edge.jobs import Job
from flywheel.edge.polling import loaded_anew

J = TypeVar("J", bound=Job)
V = TypeVar("V", bound=Callable[..., Any])


def live(
    find: Callable[[Any, int], J],
    template: str,
    door: Callable[[Callable[..., HttpResponse]], V],
    context: Callable[[Any, J], dict[str, Any]] = lambda _, job: {"job": job},
) -> V:
    """Make the view that a job's page asks for every two seconds until the job ends; then the page is loaded anew."""

    def view(request: HttpRequest, **number: int) -> HttpResponse:
        job = find(request, *number.values())
        return loaded_anew() if job.is_finished else render(request, template, context(request, job))

    return require_GET(door(view))


def _move(
    verb: Callable[[Job, Any], object],
    find: Callable[[Any, int], J],
    page: str,
    door: Callable[[Callable[..., HttpResponse]], V],
    *,
    of: Callable[[J], Sequence[Any]] = lambda job: [job.pk],
    refusal: str,
) -> V:
    """Do it and go back to the page, whose address has what `of` says after the project's name."""

    def view(request: Any, **number: int) -> HttpResponse:
        job = find(request, *number.values())
        with refusal_told(request, refusal):
            verb(job, request.actor)
        return redirect(page, request.project.slug, *of(job))

    return require_POST(door(view))


cancel = partial(_move, Job.cancel, refusal="Not stopped")
resume = partial(_move, Job.resume, refusal="Not resumed")


@contextmanager
def refusal_told(request: HttpRequest, what: str) -> Iterator[None]:
    """A refusal inside is a message on the page that comes next, after `what`."""
    try:
        yield
    except FieldError as error:
        messages.warning(request, f"{what}: {error}.")
