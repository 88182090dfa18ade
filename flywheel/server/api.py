"""The JSON API at `/api/v1/`, a router for each thing of a room, described by `/api/v1/openapi.json`.

Errors are `{"detail": text}`, or a list of `{"loc", "msg"}` for a body that does not fit.
"""

from django.core.exceptions import BadRequest, PermissionDenied
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.operation import Operation

from flywheel.accounts.api.audit import router as audit
from flywheel.accounts.api.keys import router as keys
from flywheel.accounts.api.members import router as members
from flywheel.agents.api.agents import router as agents
from flywheel.agents.api.versions import router as versions
from flywheel.core.errors import FieldError
from flywheel.edge.refusals import status_of
from flywheel.environments.api.environments import router as environments
from flywheel.environments.api.exchange import router as exports
from flywheel.environments.api.generations import router as generations
from flywheel.environments.api.playground import router as plays
from flywheel.environments.api.sandbox import router as sandboxes
from flywheel.environments.api.task_sets import router as task_sets
from flywheel.environments.api.tasks import router as tasks
from flywheel.environments.api.variants import router as variations
from flywheel.environments.api.verifiers import router as verifier_trials
from flywheel.evals.api.rescores import router as rescores
from flywheel.evals.api.reward_audits import router as reward_audits
from flywheel.evals.api.runs import router as evals
from flywheel.evals.api.task_grid import router as grids
from flywheel.failures.api.buckets import router as buckets
from flywheel.failures.api.detectors import router as measures
from flywheel.failures.api.labels import router as failures
from flywheel.failures.api.queues import router as queues
from flywheel.failures.api.similar_failures import router as similar
from flywheel.promotions.api.promotions import router as promotions
from flywheel.promotions.api.suites import router as suites
from flywheel.training.api.contamination import router as contamination
from flywheel.training.api.datasets import router as datasets
from flywheel.training.api.mixes import router as mixes
from flywheel.training.api.recommendations import router as recommendations
from flywheel.training.api.rollouts import router as rollouts
from flywheel.training.api.runs import router as training_runs
from flywheel.trajectories.api.comments import router as comments
from flywheel.trajectories.api.detail import router as details
from flywheel.trajectories.api.feedback import router as feedback
from flywheel.trajectories.api.lists import router as lists
from flywheel.trajectories.api.metrics import router as metrics
from flywheel.trajectories.api.quarantine import router as quarantine
from flywheel.trajectories.api.retention import router as retention
from flywheel.trajectories.api.trajectories import router as trajectories


class _Api(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        """An operation is called as its function is."""
        return operation.view_func.__name__


api = _Api(title="Flywheel", version="1", docs_url=None, urls_namespace="api")
for router in (
    members,
    keys,
    audit,
    agents,
    versions,
    trajectories,
    details,
    lists,
    metrics,
    quarantine,
    retention,
    feedback,
    comments,
    failures,
    buckets,
    queues,
    similar,
    measures,
    environments,
    generations,
    tasks,
    task_sets,
    exports,
    plays,
    sandboxes,
    variations,
    verifier_trials,
    evals,
    grids,
    rescores,
    reward_audits,
    recommendations,
    datasets,
    contamination,
    training_runs,
    mixes,
    rollouts,
    promotions,
    suites,
):
    api.add_router("", router)


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
