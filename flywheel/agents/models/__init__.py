"""Agents, versions, splits of sessions, reward models, their artifacts (weights), the bases that vLLM has, and the keys
of attempts."""

from flywheel.agents.models.agents import Agent
from flywheel.agents.models.artifacts import Artifact
from flywheel.agents.models.attempt_keys import AttemptKey, AttemptSpan
from flywheel.agents.models.chosen_bases import ChosenBase
from flywheel.agents.models.hub_versions import HubVersion, HubVersionEvent
from flywheel.agents.models.merged_weights import MergedWeights, MergedWeightsEvent
from flywheel.agents.models.reward_models import RewardModel
from flywheel.agents.models.shadows import Shadow, ShadowCopy
from flywheel.agents.models.splits import NamedAnswer, Split, SplitUnit
from flywheel.agents.models.versions import Version

__all__ = [
    "Agent",
    "Artifact",
    "AttemptKey",
    "AttemptSpan",
    "ChosenBase",
    "HubVersion",
    "HubVersionEvent",
    "MergedWeights",
    "MergedWeightsEvent",
    "NamedAnswer",
    "RewardModel",
    "Shadow",
    "ShadowCopy",
    "Split",
    "SplitUnit",
    "Version",
]
