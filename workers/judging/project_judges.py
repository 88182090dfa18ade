"""A project's judges as jobs use them: made for one run, asked nothing before they met their canaries, and void
where one got a mark.
"""

import functools
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from flywheel.accounts.models import Project
from flywheel.accounts.project_settings import model_prices
from flywheel.accounts.project_settings.provider_keys import NoKey, secret_for
from flywheel.agents import artifacts
from flywheel.core.envs import Environment, Task
from flywheel.core.envs.policy_rollouts import EngineError
from flywheel.core.envs.worlds.own_world import runners_of
from flywheel.core.verifiers import Runners, Verdict, WorldError, rubric
from flywheel.edge.jobs import Lease
from flywheel.environments.proofs import judge_endpoints
from flywheel.environments.versions import reward_parts
from flywheel.evals.runs.void_scores import unscore
from workers.engines.process_engine import ProcessScorer
from workers.judging import attempt_verdicts
from workers.judging.llm_judge import Judge, JudgeError
from workers.judging.model_simulator import ModelSimulator
from workers.judging.reward_models import RewardModels
from workers.policies.endpoint_keys import with_key
from workers.worlds.gym_sessions import Gym
from workers.worlds.tool_servers import ToolServers


def judge_of(
    project: Project, verifier: Mapping[str, Any], report: Mapping[str, Any] | None = None, *, remembers: bool = True
) -> Judge:
    """The judges of a verifier for one run. `report` is what an earlier owner of the run has left. One that does not
    remember knows nothing of other runs, and needs no database once it is made."""
    names = {digest: part.name for digest, part in rubric.judges(verifier).items()}
    return Judge(endpoints_of(project), names, report, judge_endpoints.Memory(project) if remembers else None)


def endpoints_of(project: Project) -> dict[str, dict[str, Any]]:
    """The endpoints that models are asked at beside the policy, with their keys and prices."""
    endpoints = {name: _keyed(endpoint, project) for name, endpoint in judge_endpoints.endpoints(project).items()}
    if "upstream" in endpoints:  # this installation's vLLM has no price
        endpoints["upstream"]["table"] = model_prices.table_of(project.pk)
    return endpoints


def _keyed(endpoint: Mapping[str, Any], project: Project) -> dict[str, Any]:
    """Return the endpoint with its key, or with the `problem` that a judge has who asks it."""
    try:
        return with_key(endpoint, project.pk)
    except EngineError as error:
        return {**endpoint, "problem": str(error)}


def runners(
    project: Project,
    verifier: Mapping[str, Any],
    report: Mapping[str, Any] | None = None,
    *,
    simulated: Mapping[str, Any] | None = None,
    lease: Lease | None = None,
) -> Runners:
    """All that a worker has, for one run; sessions at tool servers end with the lease. `report` and `simulated` are
    what an earlier owner of the run has left of its judges, and of the model that stands in for tools."""
    return replace(
        attempt_verdicts.RUNNERS,
        judge=judge_of(project, verifier, report),
        reward_model=reward_models_of(project, verifier, lease),
        gym=Gym(),
        server=tool_servers(project, lease),
        simulator=ModelSimulator(endpoints_of(project), simulated),
    )


def reward_models_of(project: Project, verifier: Mapping[str, Any], lease: Lease | None = None) -> RewardModels:
    """The reward models of a verifier, each in a process of its own, which ends with the lease."""
    asked = reward_parts.models_of(project, verifier)
    places = {digest: artifacts.local(model.weights) for digest, model in asked.items()}
    models = RewardModels(places, ProcessScorer)
    if lease is not None:
        lease.ends.callback(models.close)
    return models


def tool_servers(project: Project, lease: Lease | None = None) -> ToolServers:
    """The project's own tool servers, asked with its keys."""
    owner = threading.get_ident()

    @functools.cache
    def key_for(name: str, base_url: str) -> str:
        try:
            return secret_for(project.pk, name, base_url)
        except NoKey as error:
            raise WorldError(str(error), "refused") from None
        finally:
            if threading.get_ident() != owner:  # one of a pool, which would leave its connection open
                connections.close_all()

    servers = ToolServers(key_for)
    if lease is not None:
        lease.ends.callback(servers.close)
    return servers


def meet(lease: Lease, env: Environment, task: Task, said: QuerySet[Any]) -> None:
    """Let every judge meet its canaries at this task, before anything is spent on attempts. Raises JudgeError.

    The job of the lease keeps in `judges` what came of it. `said` is what an earlier owner of the job has stored: a
    judge that is void now takes its scores back there too.
    """
    judge = attempt_verdicts.judge_of(env)
    if judge is None:
        return
    judge.recall(attempt_verdicts.questions(env, [(task, env.reset(task, 0))]))
    judge.keep()
    with lease.guard():
        lease.update(judges=judge.report)
        unscore(said, judge.report)
    refuse(env)


def refuse(env: Environment, watched: Collection[str] = ()) -> None:
    """Raise JudgeError where a judge cannot be asked, or a canary has made it void that is none of the `watched`."""
    judge = attempt_verdicts.judge_of(env)
    if judge is not None and judge.problem:
        raise JudgeError(judge.problem, "judge")
    refuse_void(env, watched)


def settled(env: Environment, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts as they may be kept: without what a void judge said."""
    judge = attempt_verdicts.judge_of(env)
    return list(verdicts) if judge is None else [judge_endpoints.voided(verdict, judge.void) for verdict in verdicts]


def note(lease: Lease, env: Environment) -> dict[str, Any]:
    """Keep with the lease's job what is known of its judges by now, and give it."""
    judge = attempt_verdicts.judge_of(env)
    if judge is None:
        return {}
    job: Any = lease.job
    for name, row in judge.report.items():
        found = row["models"]
        if 0 < len(job.judges.get(name, {}).get("models", ())) < len(found):
            lease.log(f"the judge {name} answered as {' and then as '.join(found)}", "warning")
    lease.update(judges=judge.report)
    return judge.report


def simulator_report(env: Environment) -> dict[str, Any]:
    """Return the report on the model that stands in for tools so far; empty where there is none."""
    simulator = runners_of(env).simulator
    return simulator.report if isinstance(simulator, ModelSimulator) else {}


def report_of(runners: Runners) -> dict[str, Any]:
    """Return the report on the judges so far, by part."""
    return runners.judge.report if isinstance(runners.judge, Judge) else {}


def void_of(runners: Runners) -> dict[str, str]:
    """The judges that a canary has made void, and why."""
    return runners.judge.void if isinstance(runners.judge, Judge) else {}


def refuse_void(env: Environment, watched: Collection[str] = ()) -> None:
    """Raise JudgeError where a canary has made a judge void: the run ends, and its scores are no evidence. What is
    `watched`, by name, ends nothing."""
    judge = attempt_verdicts.judge_of(env)
    void = {} if judge is None else {name: why for name, why in judge.void.items() if name not in watched}
    if void:
        raise JudgeError("; ".join(void.values()), "canary")
