"""The vLLM server that the supervisor keeps: which base it is to have, and how it is."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.agents.models import Version


class ChosenBase(models.Model):
    """The base that was chosen for this installation's vLLM server. There is one row; `evals.serving.chosen_base` makes
    it, and the keeper (`workers.policies.vllm_keeper`) says in it how the server is."""

    class State(models.TextChoices):
        WAITING = "waiting", "waiting for its keeper"
        STARTING = "starting"
        READY = "ready"
        DOWN = "down"

    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="+")
    """Whose weights are the base."""
    generation = models.PositiveIntegerField(default=1)
    """Changes with each choice; the keeper starts the server anew then."""
    chosen_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    chosen_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=16, choices=State, default=State.WAITING)
    state_at = models.DateTimeField(default=timezone.now)
    problem = models.TextField(blank=True)
    """Why it is down: its last words."""
    failures = models.PositiveIntegerField(default=0)
    """How often it ended lately; the pause before it starts again grows with it."""
    again_at = models.DateTimeField(null=True, blank=True)
    """When it starts again."""

    def __str__(self) -> str:
        return f"vLLM with the base of {self.version}"
