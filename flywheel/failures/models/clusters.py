"""Failures that are alike: what is kept to compare them, and clusterings with their clusters and members."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.edge.jobs import Job, JobEvent
from flywheel.trajectories.models import Trajectory


class Sketch(models.Model):
    """The compared part of one failure (`core.evidence.similarity.failure_similarity.pack`): hashed terms and counts,
    none of its text."""

    trajectory = models.OneToOneField(Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="+")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    read_at = models.DateTimeField()
    """When; what was said and decided later is not in it."""
    method = models.PositiveSmallIntegerField()
    """`core.evidence.similarity.failure_similarity.METHOD` that read it."""
    asked = models.BinaryField()
    wrong = models.BinaryField()
    calls = models.BinaryField()

    class Meta:
        indexes = [models.Index(fields=["project", "-trajectory"], name="sketch_newest")]

    def __str__(self) -> str:
        return f"sketch of {self.trajectory_id}"


class Which(models.TextChoices):
    """Whose word it is that something went wrong."""

    BOTH = "both", "confirmed and proposed"
    CONFIRMED = "confirmed", "confirmed by people"
    PROPOSED = "proposed", "proposed and waiting"


class By(models.TextChoices):
    """The basis for calling two failures alike."""

    BOTH = "both", "text and tool calls"
    TEXT = "text", "text alone"
    CALLS = "calls", "tool calls alone"


class Fineness(models.TextChoices):
    COARSE = "coarse", "few and wide"
    MEDIUM = "medium", "medium"
    FINE = "fine", "many and narrow"


class Clustering(Job):
    """The failures that a filter found, in clusters. `workers/jobs/failure_clusters.py` makes it; people change it
    afterwards.

    With `within` it takes one cluster of another clustering apart, and its clusters take that one's place there.
    """

    which = models.CharField(max_length=16, choices=Which, default=Which.BOTH)
    bucket = models.CharField(max_length=64, blank=True)
    """Empty for all of them."""
    since = models.DateTimeField(null=True, blank=True)
    q = models.TextField(blank=True)
    """A further filter in the filter bar's language."""
    by = models.CharField(max_length=8, choices=By, default=By.BOTH)
    fineness = models.CharField(max_length=8, choices=Fineness, default=Fineness.MEDIUM)
    """Of one `within` a cluster it does not count: that is taken apart where its own members are far apart."""
    up_to = models.PositiveBigIntegerField()
    """Key of the newest trajectory that there was."""
    within = models.ForeignKey("Cluster", on_delete=models.CASCADE, null=True, blank=True, related_name="splits")
    report = models.JSONField(default=dict, blank=True)
    """`{"found", "compared", "unreadable", "clusters", "alone", "linked", "apart", "seed", "first", "last"}`, the last
    two the days on which its failures began."""
    through = models.CharField(max_length=120, blank=True)
    """The API key that asked."""

    cancel_entry = "failures.cancel_clustering"
    resume_entry = "failures.resume_clustering"

    @property
    def count(self) -> int:
        """The number of its clusters as people have left them, without the rest."""
        return self.clusters.filter(is_rest=False).count()


class ClusteringEvent(JobEvent):
    job = models.ForeignKey(Clustering, on_delete=models.CASCADE, related_name="events")


class Cluster(models.Model):
    """Failures of one clustering that are alike; or, once in each, the unclustered ones."""

    clustering = models.ForeignKey(Clustering, on_delete=models.CASCADE, related_name="clusters", db_index=False)
    name = models.CharField(max_length=100, blank=True)
    """By a person; empty until then."""
    words = ArrayField(models.CharField(max_length=120), default=list, blank=True)
    """What sets it apart in what was asked and went wrong, the most telling first."""
    calls = ArrayField(models.CharField(max_length=400), default=list, blank=True)
    """The same of its tool calls."""
    cohesion = models.FloatField(null=True, blank=True)
    """Mean likeness of two of its members; None for the rest and for a single one."""
    size = models.PositiveIntegerField(default=0)
    medoid = models.ForeignKey(Trajectory, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    """The member that is most like the others."""
    is_rest = models.BooleanField(default=False)
    """Like no other, or taken out of their cluster."""
    is_stale = models.BooleanField(default=False)
    """A member was deleted or is read anew. What the cluster is told by is gone with it (a trigger of migration 0101
    sees to that, and to the size), until it is measured again."""
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["clustering"], condition=models.Q(is_rest=True), name="cluster_one_rest")
        ]
        indexes = [
            models.Index(fields=["clustering", "-size", "-id"], name="cluster_largest"),
            models.Index(fields=["id"], name="cluster_stale", condition=models.Q(is_stale=True)),
        ]

    def __str__(self) -> str:
        if self.name or self.is_rest:
            return self.name or "unclustered"
        return ", ".join([*self.words[:4], *self.calls[:1]]) or f"cluster {self.pk}"


class Member(models.Model):
    """A trajectory in a cluster; in one of each clustering."""

    clustering = models.ForeignKey(Clustering, on_delete=models.CASCADE, related_name="+", db_index=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="members", db_index=False)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="+")
    likeness = models.FloatField()
    """To the other members, on average; 0 for the unclustered ones."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["clustering", "trajectory"], name="member_once")]
        indexes = [models.Index(fields=["cluster", "-likeness", "-id"], name="member_nearest")]

    def __str__(self) -> str:
        return f"member {self.pk} of cluster {self.cluster_id}"
