"""Agents, their immutable versions, and the artifacts (weights) that versions are made of."""

from flywheel.agents.models.agents import Agent
from flywheel.agents.models.artifacts import Artifact
from flywheel.agents.models.versions import Version

__all__ = ["Agent", "Artifact", "Version"]
