"""The JSON API at `/api/v1/`, one router a room, described by `/api/v1/openapi.json`.

Errors are `{"detail": text}`, or a list of `{"loc", "msg"}` for a body that does not fit.
"""

from django.core.exceptions import BadRequest
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI

from flywheel.accounts.api import router as accounts
from flywheel.agents.api import router as agents
from flywheel.environments.api import router as environments
from flywheel.evals.api import router as evals
from flywheel.failures.api import router as failures
from flywheel.promotions.api import router as promotions
from flywheel.training.api import router as training
from flywheel.trajectories.api import router as trajectories

api = NinjaAPI(title="Flywheel", version="1", docs_url=None, urls_namespace="api")
for router in (accounts, agents, trajectories, failures, environments, evals, training, promotions):
    api.add_router("", router)


@api.exception_handler(DataError)
def _unfit(request: HttpRequest, error: Exception) -> HttpResponse:
    """A text with a NUL or a number beyond its column: the request is wrong, not the server."""
    return api.create_response(request, {"detail": f"a value cannot be stored: {error}".splitlines()[0]}, status=422)


@api.exception_handler(BadRequest)
def _bad_address(request: HttpRequest, error: Exception) -> HttpResponse:
    return api.create_response(request, {"detail": str(error)}, status=400)
