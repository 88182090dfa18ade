"""Teachers: endpoints that attempt the train split of a set, so that others learn from it."""

import re

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent, Version
from flywheel.agents.registration import make_agent, make_version
from flywheel.agents.version_content import OPENAI, VersionContent
from flywheel.environments.models import TaskSet
from flywheel.training.datasets.dataset_builder import speaker_of


@transaction.atomic
def teacher(*, task_set: TaskSet, base_url: str, model: str, actor: Actor, api_key_env: str = "") -> Version:
    """The version that asks this model at an OpenAI-compatible server: of the agent `teacher-<model>`, made if it is
    not there. It is asked as the agent is whose failures the tasks come from, with its prompt and tools. Raises
    Refused."""
    project, learner = task_set.project, speaker_of(task_set)
    name = f"teacher-{re.sub(r'[^a-z0-9]+', '-', model.lower()).strip('-')}"[:100].rstrip("-")
    agent = Agent.objects.filter(project=project, name=name).first() or make_agent(
        project=project,
        name=name,
        actor=actor,
        description=f"Shows how it is done: {model[:200]}, asked for rollouts to learn from.",
    )
    content = VersionContent(
        base_model=model.strip(),
        endpoint={"kind": OPENAI, "base_url": base_url, "model": model, "api_key_env": api_key_env},
        system_prompt=learner.system_prompt if learner else "",
        tools=learner.tools if learner else [],
        form="",  # it may call as it likes: the rows are written in the learner's form
    )
    version, _ = make_version(agent=agent, actor=actor, content=content, note="asked as a teacher")
    return version
