"""Trying a world of a team's own Python before anybody saves it."""

from django.db import models

from flywheel.edge.jobs import Job, JobEvent


class WorldTrial(Job):
    """A world's beginning and one call, twice. Kept for a while only: it is a look at a draft."""

    config = models.JSONField()
    """As `core.envs.worlds.own_world` has it; of a tool server as `server_world` has it, with or without tools."""
    seed = models.PositiveIntegerField(default=0)
    tool = models.CharField(max_length=200, blank=True)
    """Which one is called; empty for none."""
    arguments = models.JSONField(default=dict)
    report = models.JSONField(default=dict, blank=True)
    """`{"beginning", "state", "answer", "fault", "trace": [{"line", "function"}], "is_same", "ms"}`; of a tool server
    with its `tools`."""

    def __str__(self) -> str:
        return f"trial of a world {self.pk}"


class WorldTrialEvent(JobEvent):
    job = models.ForeignKey(WorldTrial, on_delete=models.CASCADE, related_name="events")
