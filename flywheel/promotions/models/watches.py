"""The claims of a promotion, and the sessions by which they are watched."""

from django.db import models
from django.utils import timezone

from flywheel.agents.models import Agent
from flywheel.promotions.models.promotions import Promotion


class Watch(models.Model):
    """The claims of a promotion, watched while its version is live."""

    class State(models.TextChoices):
        RUNNING = "running", "watching"
        OVER = "over", "over"
        """Another version is live."""

    promotion = models.OneToOneField(Promotion, on_delete=models.PROTECT, related_name="watch")
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="watches")
    state = models.CharField(max_length=16, choices=State, default=State.RUNNING)
    claims = models.JSONField()
    """The promotion's."""
    detector_settings = models.JSONField(default=dict)
    """By detector `[is_on, bucket]` when it began: where they change it begins anew."""
    changed_detectors = models.JSONField(default=list, blank=True)
    """Those because of which it began anew at `began_at`; empty where it began with the promotion."""
    sums = models.JSONField(default=dict, blank=True)
    """By signal the state of its `ClaimWatch`, and under `known:` and the signal that of what its version is known to
    have answered."""
    sessions = models.PositiveIntegerField(default=0)
    """Watched since it began, or began anew."""
    broken = models.JSONField(default=dict, blank=True)
    """Claims that broke: by signal `{"session", "evidence", "at", "did"}`, and `known` where what the version is
    known to have answered broke them by itself. They are not watched any more, but for that."""
    read_to = models.DateTimeField()
    """Sessions that were silent before are read."""
    began_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "watches"
        indexes = [models.Index(fields=["agent"], name="watch_running", condition=models.Q(state="running"))]

    def __str__(self) -> str:
        return f"watch of {self.promotion}"


class WatchedSession(models.Model):
    """A session that the live version answered, and how it went."""

    watch = models.ForeignKey(Watch, on_delete=models.CASCADE, related_name="rows", db_index=False)
    name = models.CharField(max_length=200)
    """Its id, or the trace's where it has none."""
    number = models.PositiveIntegerField()
    """Of `Watch.sessions` when it was read."""
    parts = models.JSONField()
    """By signal the part that went wrong."""
    evidence = models.JSONField()
    """By signal after it."""
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["watch", "name"], name="watched_session_once")]
        indexes = [models.Index(fields=["watch", "-id"], name="watched_session_newest")]

    def __str__(self) -> str:
        return f"session {self.name}"
