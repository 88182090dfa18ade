"""Metrics of finished days of production, added up beforehand. `daily_metrics.py` writes and reads them."""

from django.db import models

from flywheel.accounts.models import Project


class MetricsDay(models.Model):
    """The figures of one day: of all trajectories, or of those of one version, tool, environment or bucket."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    day = models.DateField()
    """UTC."""
    kind = models.CharField(max_length=8)
    """`all`, which every day has that was added up, `version`, `tool`, `env` or `bucket`."""
    key = models.TextField(blank=True)
    count = models.PositiveIntegerField(default=0)
    scored = models.PositiveIntegerField(default=0)
    succeeded = models.PositiveIntegerField(default=0)
    confirmed = models.PositiveIntegerField(default=0)
    proposed = models.PositiveIntegerField(default=0)
    intervened = models.PositiveIntegerField(default=0)
    costed = models.PositiveIntegerField(default=0)
    counted = models.PositiveIntegerField(default=0)
    tokens_in = models.BigIntegerField(null=True)
    tokens_out = models.BigIntegerField(null=True)
    cost = models.FloatField(null=True)
    latencies = models.BinaryField(default=bytes)
    """Every latency that is known, as doubles: percentiles of a period cannot be made of percentiles of its days."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "kind", "day", "key"], name="metrics_day_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.key} on {self.day}"


class MetricsStale(models.Model):
    """A day of which a trajectory came, changed or went since it was over. Triggers (migration 0101) append it with the
    change, so that nobody waits for anybody; as long as a day stands here, its sums are not believed."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_constraint=False)
    """Without a constraint: trajectories that go with their project are still told."""
    day = models.DateField()

    def __str__(self) -> str:
        return f"{self.day}"
