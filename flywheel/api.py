"""The JSON API at `/api/v1/`, one router a room, described by `/api/v1/openapi.json`.

Errors are `{"detail": text}`, or a list of `{"loc", "msg"}` for a body that does not fit.
"""

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
