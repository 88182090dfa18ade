"""The words of trajectories, as full-text search finds them."""

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models

from flywheel.trajectories.models.trajectory import Trajectory


class Words(models.Model):
    """The words of a trajectory, of which a long one has several rows."""

    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="words", db_index=False)
    part = models.PositiveIntegerField()
    words = SearchVectorField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["trajectory", "part"], name="words_once")]
        indexes = [GinIndex(fields=["words"], name="words_found", fastupdate=True)]

    def __str__(self) -> str:
        return f"words {self.part} of trajectory {self.trajectory_id}"
