"""Prices that a project pays: of models by the token, of its own devices by the hour."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models.people import Project, User


class ModelPrice(models.Model):
    """The price of a model's tokens from a day on. A row is never changed: another takes its place, so that a cost
    which was derived from it can still be explained."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="prices")
    model = models.CharField(max_length=200)
    """Its name, or the beginning of names when it ends in `*`."""
    price_in = models.FloatField()
    """Dollars for a million tokens, as the others."""
    price_out = models.FloatField()
    price_cached = models.FloatField(null=True, blank=True)
    """Of tokens read from the provider's cache; as `price_in` when empty."""
    valid_from = models.DateField(null=True, blank=True)
    """The first day (UTC) of calls that it is for; of all calls when empty."""
    source = models.CharField(max_length=500, blank=True)
    set_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    """Empty for what was moved here from an older setting."""
    set_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["project", "model", "-valid_from", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "model", "valid_from"],
                name="model_price_once",
                condition=models.Q(removed_at=None),
                nulls_distinct=False,
            )
        ]

    def __str__(self) -> str:
        return self.model


class DevicePrice(models.Model):
    """Price of an hour of the device that answers as the project's own weights."""

    project = models.OneToOneField(Project, on_delete=models.CASCADE, related_name="device_price")
    usd_per_hour = models.FloatField()
    source = models.CharField(max_length=500, blank=True)
    set_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    set_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"${self.usd_per_hour:g} an hour"
