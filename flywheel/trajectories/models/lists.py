"""Saved views and settings of the list of trajectories, and the names that its filters know."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User


class View(models.Model):
    """A filter and columns under a name. `saved_views.py` keeps it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="views", db_index=False)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=100)
    q = models.TextField(blank=True)
    """In the filter bar's language."""
    columns = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    """Empty for those that each person has chosen."""
    is_shared = models.BooleanField(default=False)
    """Seen by everyone in the project; changed by its owner alone."""
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "id"]
        constraints = [models.UniqueConstraint(fields=["project", "owner", "name"], name="view_once")]

    def __str__(self) -> str:
        return self.name


class Taste(models.Model):
    """One person's settings for the list of one project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    columns = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    """Empty for the usual ones."""
    view = models.ForeignKey(View, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    """What the list opens with."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="taste_once")]

    def __str__(self) -> str:
        return f"list of {self.user} in {self.project}"


class Item(models.Model):
    """A tool's name or a tag that some trajectory of the project has. Triggers (migration 0101) append it with the
    first trajectory that has it; `known_values.py` reads it, and forgets what no trajectory has any more.

    Nothing says that a name stands here once: so nobody who stores one waits for another who stores it too.
    """

    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="+", db_index=False, db_constraint=False
    )
    """Without a constraint: trajectories that go with their project still append."""
    field = models.CharField(max_length=16)
    """`tool_names` or `tags`."""
    name = models.CharField(max_length=200)
    is_doubted = models.BooleanField(default=False)
    """Appended by a trajectory that had it and was deleted; never the only row of a name that there is."""

    class Meta:
        indexes = [models.Index(fields=["project", "field", "name", "is_doubted"], name="item_known")]

    def __str__(self) -> str:
        return self.name
