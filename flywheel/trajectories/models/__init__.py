"""Trajectories of agents and their steps, what was said of them, and the ledger of what arrived."""

from flywheel.trajectories.models.comments import Comment, Mention
from flywheel.trajectories.models.feedback import Feedback
from flywheel.trajectories.models.jobs import Bulk, BulkEvent, BulkKeys, Import, ImportEvent, Reread, RereadEvent
from flywheel.trajectories.models.ledger import Attempt, Batch, Body, Quarantined, Retention
from flywheel.trajectories.models.lists import Item, Taste, View
from flywheel.trajectories.models.metrics import MetricsDay, MetricsStale
from flywheel.trajectories.models.reported_versions import ReportedVersion
from flywheel.trajectories.models.steps import Blob, Event, Json, ModelCall, Step
from flywheel.trajectories.models.trajectory import AnsweredBy, Label, Outcome, Source, Trajectory
from flywheel.trajectories.models.words import Words

__all__ = [
    "AnsweredBy", "Attempt", "Batch", "Blob", "Body", "Bulk", "BulkEvent", "BulkKeys", "Comment", "Event", "Feedback",
    "Import", "ImportEvent", "Item", "Json", "Label", "Mention", "MetricsDay", "MetricsStale", "ModelCall", "Outcome",
    "Quarantined", "ReportedVersion", "Reread", "RereadEvent", "Retention", "Source", "Step", "Taste", "Trajectory",
    "View", "Words",
]  # fmt: skip
