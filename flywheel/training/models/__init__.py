"""Datasets, recommendations, tried fixes, searches for prompts, training runs, pipelines of them, and what they
measured on the way."""

from flywheel.training.models.attempts import TrainingAttempt
from flywheel.training.models.builds import BuildEvent, DatasetBuild
from flywheel.training.models.checkpoint_versions import CheckpointVersion, CheckpointVersionEvent
from flywheel.training.models.contamination import ContaminationCheck
from flywheel.training.models.datasets import Dataset
from flywheel.training.models.fix_trials import FixDraft, FixTrial
from flywheel.training.models.pipelines import PROMPT, Pipeline, PipelineStage
from flywheel.training.models.prompt_searches import (
    PromptAttempt,
    PromptProposal,
    PromptSearch,
    PromptSearchEvent,
    ProposalState,
)
from flywheel.training.models.recommendations import Recommendation
from flywheel.training.models.rollouts import Dropped
from flywheel.training.models.runs import Point, TrainingEvent, TrainingRun
from flywheel.training.models.token_previews import PreviewEvent, TokenPreview

__all__ = [
    "PROMPT",
    "BuildEvent",
    "CheckpointVersion",
    "CheckpointVersionEvent",
    "ContaminationCheck",
    "Dataset",
    "DatasetBuild",
    "Dropped",
    "FixDraft",
    "FixTrial",
    "Pipeline",
    "PipelineStage",
    "Point",
    "PreviewEvent",
    "PromptAttempt",
    "PromptProposal",
    "PromptSearch",
    "PromptSearchEvent",
    "ProposalState",
    "Recommendation",
    "TokenPreview",
    "TrainingAttempt",
    "TrainingEvent",
    "TrainingRun",
]
