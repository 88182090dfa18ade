"""Models for practice: environments and their immutable versions, tasks, frozen task sets, and who looked at them."""

from flywheel.environments.models.environments import Environment, EnvironmentVersion
from flywheel.environments.models.openings import Opening
from flywheel.environments.models.plays import Move, Play, PlayTurn, PlayTurnEvent
from flywheel.environments.models.reward_recipes import RewardRecipe
from flywheel.environments.models.sandboxes import SandboxReport
from flywheel.environments.models.suites import Suite
from flywheel.environments.models.task_sets import TaskSet, TaskSetMember, TaskSets
from flywheel.environments.models.tasks import MEASURED, Generation, GenerationEvent, Split, Task
from flywheel.environments.models.verifier_jobs import JudgeMemory, Proving, ProvingEvent, Trial, TrialEvent
from flywheel.environments.models.world_trials import WorldTrial, WorldTrialEvent

__all__ = [
    "MEASURED", "Environment", "EnvironmentVersion", "Generation", "GenerationEvent", "JudgeMemory", "Move", "Opening",
    "Play", "PlayTurn", "PlayTurnEvent", "Proving", "ProvingEvent", "RewardRecipe", "SandboxReport", "Split", "Suite",
    "Task", "TaskSet", "TaskSetMember", "TaskSets", "Trial", "TrialEvent", "WorldTrial", "WorldTrialEvent",
]  # fmt: skip
