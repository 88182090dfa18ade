"""Proofs that the web does not make itself: tasks whose verifier needs a worker's sandbox, or that are many, wait for a
worker here."""

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db import models, transaction
from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import JSONObject

from flywheel.accounts.actors import Actor
from flywheel.core.envs.kinds import needs
from flywheel.core.traces import Message
from flywheel.core.verifiers import Runners, Verdict
from flywheel.edge.jobs import State
from flywheel.environments.models import Environment, EnvironmentVersion, Proving, Task
from flywheel.environments.proofs import labelled_attempts
from flywheel.environments.proofs.judge_endpoints import voided
from flywheel.environments.proofs.red_green_proof import common_wrong, prove_again

PROVED_AT_ONCE = 50
"""More tasks than these are proved by a worker: nobody waits for them, and no row stays locked meanwhile."""
AT_ONCE = 5
SPOILED = ("refused", "timeout", "memory", "crashed", "judge", "environment")
"""Causes that another machine, or this one on another day, might not have."""
_BEGUN = JSONObject(
    recorded=F("proof__recorded"), is_failure=F("proof__is_failure"), checks=Value([], models.JSONField())
)
"""What `red_green_proof.begun` makes, out of what a proof recorded."""


def is_for_a_worker(version: EnvironmentVersion, tasks: int = 1) -> bool:
    """Whether proofs of so many tasks under this version need what only a worker has, which may be time."""
    return bool(needs(version.environment.kind, version.config, version.verifier)) or tasks > PROVED_AT_ONCE


def waiting(environment: Environment, version: EnvironmentVersion) -> QuerySet[Task]:
    """Tasks in use whose proof is of another version, or only begun."""
    rows = environment.tasks.filter(retired_at=None, proof__has_key="recorded")
    # A key that is missing compares as NULL, which an exclude would drop: the proofs that are only begun.
    made = Q(proof__has_key="environment_version") & Q(proof__environment_version=str(version))
    return rows.exclude(made).order_by("pk")


def spoiled(environment: Environment) -> QuerySet[Task]:
    """Tasks whose red proof says more of the machine than of the verifier: the sandbox refused, or was too slow."""
    found = Q()
    for cause in SPOILED:
        found |= Q(proof__checks__contains=[{"cause": cause}])
    return environment.tasks.filter(found, retired_at=None, is_proved=False)


def forget_spoiled(environment: Environment) -> None:
    """Let these wait for a proof again."""
    spoiled(environment).update(proof=_BEGUN)


def measure_again(environment: Environment) -> None:
    """Let proofs in which a model was asked for recorded results wait once more; what is proved stays so meanwhile."""
    for task in environment.tasks.filter(retired_at=None, proof__has_key="simulated"):
        task.proof.pop("environment_version", None)
        task.save(update_fields=["proof"])


@transaction.atomic
def ask(environment: Environment, actor: Actor) -> Proving:
    """Let a worker prove what waits; one job that has not begun is enough for all that comes meanwhile."""
    # Locked, a claim passes it over until what waits for it can be seen.
    queued = environment.provings.select_for_update().filter(state=State.QUEUED).first()
    if queued is not None:
        return queued
    job, _ = Proving.submit(key=uuid.uuid4(), project=environment.project, actor=actor, environment=environment)
    return job


def prove_all_again(environment: Environment, version: EnvironmentVersion, actor: Actor) -> None:
    """Every task in use under a new version: at once where that is pure and soon done, else by a worker."""
    stale = waiting(environment, version)
    count = stale.count()
    if count and is_for_a_worker(version, count):
        stale.update(is_proved=False, proof=_BEGUN)
        ask(environment, actor)
    elif count:
        common = common_wrong(environment, version)
        for task in stale:
            prove_again(task, version, common=common)


def proof_notice(environment: Environment, version: EnvironmentVersion) -> str:
    """Return the notice of a new version to its maker."""
    if waiting(environment, version).exists():
        return f"{version} is the newest version. A worker proves its tasks under it."
    unproved = environment.tasks.filter(retired_at=None, is_proved=False).count()
    notice = f"{version} is the newest version. {unproved} tasks are not proved under it."
    if apart := labelled_attempts.disagreements(version):
        notice += f" Its verifier disagrees with people on {apart} labelled attempts: see its probes."
    return notice


def take_back(environment: Environment, version: EnvironmentVersion, void: Mapping[str, str]) -> None:
    """No task is proved under a version whose judge passed a canary: what it said of the checks does not count."""
    for task in environment.tasks.filter(proof__environment_version=str(version)):
        task.proof["checks"] = [_taken_back(check, void) for check in task.proof["checks"]]
        task.proof["warnings"] = []
        task.proof["labelled"] = []
        task.is_proved = False
        task.save(update_fields=["proof", "is_proved"])


def _taken_back(check: dict[str, Any], void: Mapping[str, str]) -> dict[str, Any]:
    verdict = voided(Verdict(check["score"], check["reason"], check["parts"], check["cause"]), void)
    if verdict.cause == check["cause"]:
        return check
    return {**check, **asdict(verdict), "passed": False}


def prove_some(
    environment: Environment, version: EnvironmentVersion, runners: Runners, common: Message | None = None
) -> list[Task]:
    """The next few that wait, proved; empty when none waits any more. Whoever holds a lease saves inside it."""
    tasks = list(waiting(environment, version)[:AT_ONCE])
    for task in tasks:
        prove_again(task, version, common=common, runners=runners)
    return tasks
