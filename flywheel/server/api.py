"""The JSON API at `/api/v1/`, a router for each thing of a room, described by `/api/v1/openapi.json`.

Errors are `{"detail": text}`, or a list of `{"loc", "msg"}` for a body that does not fit.
"""

from django.core.exceptions import BadRequest, PermissionDenied
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.operation import Operation

from flywheel.core.errors import FieldError
from flywheel.edge.refusals import status_of

ROUTERS = {
    "accounts": "members keys provider_keys prices notices audit",
    "agents": "agents versions assignments downloads reward_models",
    "trajectories": "trajectories detail lists metrics quarantine costs retention feedback comments"
    " versions_from_traffic",
    "failures": "labels buckets queues similar_failures detectors",
    "environments": "environments generations tasks task_sets exchange playground sandbox variants verifiers"
    " reward_recipes worlds",
    "evals": "runs attempts task_grid rescores reward_audits",
    "training": "recommendations fix_trials prompt_proposals datasets contamination finished_runs runs pipelines"
    " dataset_sources rollouts token_previews",
    "promotions": "promotions ramps shadows live_versions suites lineage turns",
}
"""Modules in each room's `api`, in the order in which the description names what they hold."""


class _Api(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        """An operation is called as its function is."""
        return operation.view_func.__name__


DESCRIPTION = """Send a key as `Authorization: Bearer KEY`; each operation requires one of the key's scopes.

Errors are `{"detail": text}`, or a list of `{"loc", "msg"}` if fields do not fit. Any operation may answer 400 if the
address or a parameter cannot be read, 401 without a valid key, 403 if the key or its creator may not do this, 404 if
something that the request names does not exist in the key's project, and 422 if the request is refused. Operations
name their other errors."""

api = _Api(title="Flywheel", version="1", description=DESCRIPTION, docs_url=None, urls_namespace="api")
for room, names in ROUTERS.items():
    for name in names.split():
        api.add_router("", f"flywheel.{room}.api.{name}.router")


@api.exception_handler(DataError)
@api.exception_handler(UnicodeEncodeError)
def _unfit(request: HttpRequest, error: Exception) -> HttpResponse:
    """A text with a NUL or a lone surrogate, or a number beyond its column: the request is wrong, not the server."""
    return api.create_response(request, {"detail": f"a value cannot be stored: {error}".splitlines()[0]}, status=422)


@api.exception_handler(FieldError)
def _refused(request: HttpRequest, error: FieldError) -> HttpResponse:
    return api.create_response(request, {"detail": str(error)}, status=status_of(error))


@api.exception_handler(PermissionDenied)
def _not_for_you(request: HttpRequest, error: Exception) -> HttpResponse:
    return api.create_response(request, {"detail": str(error)}, status=403)


@api.exception_handler(BadRequest)
def _bad_address(request: HttpRequest, error: Exception) -> HttpResponse:
    return api.create_response(request, {"detail": str(error)}, status=400)
