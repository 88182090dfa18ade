"""First requests of evals, beside what the gateway would send for the same version: what is evaluated goes live."""

from collections.abc import Mapping
from typing import Any

from flywheel.agents.models import Version
from flywheel.agents.version_content import DEFAULT_SAMPLING
from flywheel.core import envs
from flywheel.core.digests import digest
from flywheel.core.envs.agent_config import AgentConfig, first_request
from flywheel.environments.models import Task
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.models import EvalRun
from flywheel.trajectories.ingest.gateway.routing import defaults_of

NOT_KNOWN = "system prompt (this eval is from before it was the version's own)"
"""Stands for evals that opened with the environment's prompt instead of the version's."""


def of_program(version: Version, sampling: Mapping[str, Any], code: str) -> dict[str, str]:
    """Digests of what makes a program's attempts: its code, the way to it, and what the gateway does to its calls."""
    endpoint, defaults = version.endpoint, defaults_of(version)
    parts: dict[str, Any] = {
        "code": code,
        "way": [endpoint.get(name) for name in ("way", "url", "command")],
        "model": [endpoint.get(name) for name in ("base_url", "model")],
        "system prompt": defaults.get("system", ""),
        "tools": defaults.get("tools", []),
        "sampling": dict(sampling),
    }
    return {name: digest(part) for name, part in parts.items()}


def code_of(run: EvalRun) -> str:
    """The code that the run's program says it is, or what its version names where it says nothing."""
    told = run.attempts.exclude(code="").values_list("code", flat=True).first()
    return told or str(run.version.endpoint["code"])


def live_request(run: EvalRun, task: Task) -> dict[str, str]:
    """Return the digests of what the run's version would be sent first if it were live, in the world of this task. What
    is live of a program is the code that its version names."""
    defaults = defaults_of(run.version)
    if run.version.is_program:
        sampling = {name: defaults.get(name, usual) for name, usual in DEFAULT_SAMPLING.items()}
        return of_program(run.version, sampling, run.version.endpoint["code"])
    tools = tuple(tool["function"] for tool in defaults.get("tools", ()))
    version = run.task_set.environment_version
    kind = version.environment.kind
    env = envs.build(kind, version.config, version.verifier, agent=AgentConfig(defaults.get("system", ""), tools))
    opening = env.reset(core_task(task), 0)
    sampling = {name: defaults.get(name, usual) for name, usual in DEFAULT_SAMPLING.items()}
    return first_request(opening, env.tools, sampling)


def differences(run: EvalRun) -> list[str]:
    """List the parts in which the run was asked otherwise than its version would be live; empty where it was not."""
    if not run.first_request:
        return [NOT_KNOWN]
    live = live_request(run, Task.objects.get(pk=run.first_request["task"]))
    return [part for part, digest in live.items() if run.first_request.get(part) != digest]
