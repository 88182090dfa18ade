"""Versions of an agent, immutable and named by their content."""

from typing import Any

from django.db import models, transaction
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.agents.models.agents import Agent
from flywheel.agents.models.artifacts import Artifact
from flywheel.core.digests import digest
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.traces.call_forms import LABELS


class Version(models.Model):
    """One immutable make of an agent. A prompt change and a trained checkpoint are both a new version.

    A trigger refuses every change of a row.
    """

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    base_model = models.CharField(max_length=300)
    """The base model's name, as people say it: `flywheel-reference`, `Qwen/Qwen3-8B`, …"""
    endpoint = models.JSONField(default=dict)
    """Serving: `{"kind": "transformers"}`, `{"kind": "openai", "base_url", "model", "api_key_env"}`, or
    `{"kind": "program", "way", "code", …}`, as `version_content.check_endpoint` has it."""
    weights = models.ForeignKey(Artifact, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    adapter = models.ForeignKey(Artifact, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    system_prompt = models.TextField(blank=True)
    tools = models.JSONField(default=list)
    """Tool definitions, as in `flywheel.core.traces.tooling`."""
    sampling = models.JSONField(default=dict)
    """`{"temperature", "top_p", "max_tokens"}` as it runs in production."""
    form = models.CharField(max_length=16, blank=True, default="")
    """How its program reads calls out of what the model writes, as `core.traces.call_forms` has it; empty for versions
    from before there were forms, which are read in any."""
    digest = models.CharField(max_length=64)
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="children")
    note = models.CharField(max_length=300, blank=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["agent", "number"]
        constraints = [
            models.UniqueConstraint(fields=["agent", "number"], name="version_number_once"),
            models.UniqueConstraint(fields=["agent", "digest"], name="version_content_once"),
        ]

    def __str__(self) -> str:
        return f"{self.agent.name}@{self.number}"

    def content(self) -> dict[str, Any]:
        """Return all that tells this version from others; its digest is the version's identity."""
        form = {"form": self.form} if self.form else {}
        return form | {
            "base_model": self.base_model,
            "endpoint": self.endpoint,
            "weights": self.weights.digest if self.weights else None,
            "adapter": self.adapter.digest if self.adapter else None,
            "system_prompt": self.system_prompt,
            "tools": self.tools,
            "sampling": self.sampling,
        }

    @property
    def is_program(self) -> bool:
        """Whether the team's own program makes its attempts."""
        return bool(self.endpoint.get("kind") == "program")

    def config(self) -> AgentConfig:
        """Return what it brings into every attempt."""
        return AgentConfig(self.system_prompt, tuple(self.tools), self.form if self.form in LABELS else "")

    @classmethod
    def make(cls, agent: Agent, created_by: User, **fields: Any) -> "Version":
        """The version with this content: the existing one when the agent has it already, else the next number."""
        version = cls(agent=agent, created_by=created_by, **fields)
        version.digest = digest(version.content())
        with transaction.atomic():
            # Two at once with the same content make one: the second looks after the first has written.
            Agent.objects.select_for_update().get(pk=agent.pk)
            if existing := agent.versions.filter(digest=version.digest).first():
                return existing
            last = agent.versions.aggregate(last=models.Max("number"))["last"] or 0
            version.number = last + 1
            version.save(force_insert=True)
        return version
