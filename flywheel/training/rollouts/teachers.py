"""Teachers: endpoints that attempt the train split of a set, so that others learn from it."""

import re

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, Version
from flywheel.agents.registration import make_agent, make_version
from flywheel.agents.version_content import OPENAI


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
    endpoint = {"kind": OPENAI, "base_url": base_url, "model": model, "api_key_env": api_key_env}
    version, _ = make_version(
        agent=agent, actor=actor, base_model=model.strip(), endpoint=endpoint, note="asked as a teacher"
    )
    return version
