"""Agents, their immutable versions, reward models, the artifacts (weights) of both, and the keys of attempts."""

from flywheel.agents.models.agents import Agent
from flywheel.agents.models.artifacts import Artifact
from flywheel.agents.models.attempt_keys import AttemptKey, AttemptSpan
from flywheel.agents.models.hub_versions import HubVersion, HubVersionEvent
from flywheel.agents.models.merged_weights import MergedWeights, MergedWeightsEvent
from flywheel.agents.models.reward_models import RewardModel
from flywheel.agents.models.versions import Version

__all__ = [
    "Agent",
    "Artifact",
    "AttemptKey",
    "AttemptSpan",
    "HubVersion",
    "HubVersionEvent",
    "MergedWeights",
    "MergedWeightsEvent",
    "RewardModel",
    "Version",
]
