"""Comments on a trajectory, and the people whom they mention."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.trajectories.models.trajectory import Trajectory


class Comment(models.Model):
    """A person's words about a step or about the whole. `comments.py` writes it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="comments", db_index=False)
    step = models.CharField(max_length=64, blank=True)
    """Span id; empty for the trajectory as a whole."""
    author = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    text = models.TextField(blank=True)
    """Empty once it is deleted: who said something, and when, stays."""
    at = models.DateTimeField(default=timezone.now)
    edited_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    deleted_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    key = models.UUIDField(default=uuid.uuid4)
    """Of whoever sent it: the same key again is the same comment."""

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["author", "key"], name="comment_once")]
        indexes = [
            models.Index(fields=["trajectory", "id"], name="comment_in_order"),
            # `has:comment`, from either side: of one trajectory, or which trajectories of a project have any.
            models.Index(fields=["project", "trajectory"], name="comment_stands", condition=Q(deleted_at=None)),
        ]

    def __str__(self) -> str:
        return f"comment {self.pk}"


class Mention(models.Model):
    """A member whom a comment names with an `@`, until they have seen it."""

    comment = models.ForeignKey(Comment, on_delete=models.CASCADE, related_name="mentions", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", db_index=False)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["comment", "user"], name="mention_once")]
        indexes = [
            models.Index(fields=["user", "project", "-id"], name="mention_newest"),
            models.Index(fields=["user", "project"], name="mention_unread", condition=Q(read_at=None)),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.comment}"
