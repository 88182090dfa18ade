"""Keys of model servers, found for an endpoint before its engine is opened: engines know no database."""

from collections.abc import Mapping
from typing import Any

from flywheel.accounts.project_settings.provider_keys import NoKey, secret_for
from flywheel.core.envs.policy_rollouts import EngineError


def with_key(endpoint: Mapping[str, Any], project_id: int) -> dict[str, Any]:
    """The endpoint with the key itself, `api_key`, in place of its name. Raises EngineError."""
    found = dict(endpoint)
    if name := found.pop("api_key_env", ""):
        try:
            found["api_key"] = secret_for(project_id, name, found.get("base_url", ""))
        except NoKey as error:
            raise EngineError(str(error)) from None
    return found
