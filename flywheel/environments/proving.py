"""Proofs that the web cannot make itself: tasks whose verifier needs a worker's sandbox wait for one here."""

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from flywheel.accounts.models import User
from flywheel.core.verifiers import Runners, Verdict
from flywheel.core.verifiers.rubric import needs
from flywheel.environments.judges import voided
from flywheel.environments.models import Environment, EnvironmentVersion, Proving, Task
from flywheel.environments.prove import common_wrong, prove_again
from flywheel.jobs import State

AT_ONCE = 5
SPOILED = ("refused", "timeout", "memory", "crashed", "judge", "environment")
"""Causes that another machine, or this one on another day, might not have."""


def is_for_a_worker(version: EnvironmentVersion) -> bool:
    """Whether proofs under this version need what only a worker has."""
    return bool(needs(version.verifier))


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
    for task in spoiled(environment):
        task.proof.pop("environment_version", None)
        task.save(update_fields=["proof"])


@transaction.atomic
def ask(environment: Environment, actor: User) -> Proving:
    """Let a worker prove what waits; one job that has not begun is enough for all that comes meanwhile."""
    # Locked, a claim passes it over until what waits for it can be seen.
    queued = environment.provings.select_for_update().filter(state=State.QUEUED).first()
    if queued is not None:
        return queued
    job, _ = Proving.submit(key=uuid.uuid4(), project=environment.project, created_by=actor, environment=environment)
    return job


def prove_all_again(environment: Environment, version: EnvironmentVersion, actor: User) -> None:
    """Every task in use under a new version: at once where that is pure, else by a worker."""
    if is_for_a_worker(version):
        if waiting(environment, version).update(is_proved=False):
            ask(environment, actor)
        return
    common = common_wrong(environment)
    for task in waiting(environment, version):
        prove_again(task, version, common=common)


def take_back(environment: Environment, version: EnvironmentVersion, void: Mapping[str, str]) -> None:
    """No task is proved under a version whose judge passed a canary: what it said of the checks does not count."""
    for task in environment.tasks.filter(proof__environment_version=str(version)):
        task.proof["checks"] = [_taken_back(check, void) for check in task.proof["checks"]]
        task.is_proved = False
        task.save(update_fields=["proof", "is_proved"])


def _taken_back(check: dict[str, Any], void: Mapping[str, str]) -> dict[str, Any]:
    verdict = voided(Verdict(check["score"], check["reason"], check["parts"], check["cause"]), void)
    if verdict.cause == check["cause"]:
        return check
    return {**check, **asdict(verdict), "passed": False}


def prove_some(environment: Environment, version: EnvironmentVersion, runners: Runners) -> list[Task]:
    """The next few that wait, proved; empty when none waits any more. Whoever holds a lease saves inside it."""
    tasks = list(waiting(environment, version)[:AT_ONCE])
    common = common_wrong(environment) if tasks else None
    for task in tasks:
        prove_again(task, version, common=common, runners=runners)
    return tasks
