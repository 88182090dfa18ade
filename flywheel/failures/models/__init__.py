"""Models for failures: proposals of detectors, decisions of people and their queues, and failures that are alike."""

from flywheel.failures.models.buckets import BucketLife, Priority, ProjectBucket, Severity
from flywheel.failures.models.clusters import By, Cluster, Clustering, ClusteringEvent, Fineness, Member, Sketch, Which
from flywheel.failures.models.detectors import DetectorSetting, Proposal
from flywheel.failures.models.failures import Decision, Failure
from flywheel.failures.models.queues import OPEN, Queue, QueueItem, QueueTally, Review, Rule
from flywheel.failures.models.recurrences import Recurrence

__all__ = [
    "OPEN", "BucketLife", "By", "Cluster", "Clustering", "ClusteringEvent", "Decision", "DetectorSetting", "Failure",
    "Fineness", "Member", "Priority", "ProjectBucket", "Proposal", "Queue", "QueueItem", "QueueTally", "Recurrence",
    "Review", "Rule", "Severity", "Sketch", "Which",
]  # fmt: skip
