"""Logins that did not succeed."""

from django.db import models
from django.utils import timezone


class LoginAttempt(models.Model):
    """A login that did not succeed, or is being tried; `pages.login` counts them."""

    username = models.CharField(max_length=150)
    address = models.CharField(max_length=64)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [
            models.Index(fields=["username", "address"], name="attempt_by_name"),
            models.Index(fields=["address", "at"], name="attempt_by_address"),
        ]

    def __str__(self) -> str:
        return f"{self.username} from {self.address} at {self.at:%H:%M:%S}"
