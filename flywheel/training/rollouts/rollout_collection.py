"""Collect rollouts to learn from: a version of any agent, or an endpoint as a teacher, attempts the train split.

It is an eval run like any other, by the same runner. What is held out cannot be asked for here: nobody may learn from
it.
"""

import re
import uuid
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, Version
from flywheel.agents.registration import make_agent, make_version
from flywheel.agents.version_content import OPENAI
from flywheel.environments.models import Split, TaskSet
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.runs import submission


def collect(
    *,
    key: uuid.UUID,
    version: Version,
    task_set: TaskSet,
    actor: Actor,
    samples: int = 4,
    seed: int = 1,
    sampling: Mapping[str, Any] | None = None,
    engine: str = Engine.ENDPOINT,
    budget: Mapping[str, Any] | None = None,
) -> tuple[EvalRun, bool]:
    """Queue the version's attempts at the train split. Returns the run and whether it is new.

    Raises Refused.
    """
    return submission.submit(
        key=key,
        version=version,
        task_set=task_set,
        actor=actor,
        split=Split.TRAIN,
        samples=samples,
        seed=seed,
        sampling=dict(sampling or {}),
        engine=engine,
        budget=budget,
    )


@transaction.atomic
def teacher(*, project: Project, base_url: str, model: str, actor: Actor, api_key_env: str = "") -> Version:
    """The version that asks this model at an OpenAI-compatible server: of the agent `teacher-<model>`, made if it is
    not there. Raises Refused."""
    name = f"teacher-{re.sub(r'[^a-z0-9]+', '-', model.lower()).strip('-')}"[:100].rstrip("-")
    agent = Agent.objects.filter(project=project, name=name).first() or make_agent(
        project=project,
        name=name,
        actor=actor,
        description=f"Shows how it is done: {model[:200]}, asked for rollouts to learn from.",
    )
    endpoint = {"kind": OPENAI, "base_url": base_url, "model": model}
    if api_key_env:
        endpoint["api_key_env"] = api_key_env
    version, _ = make_version(
        agent=agent,
        actor=actor,
        base_model=model.strip(),
        endpoint=endpoint,
        note="asked as a teacher",
    )
    return version
