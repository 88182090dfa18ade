"""The vLLM servers that the supervisor keeps: which base each is to have, and how it is."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.agents.models.versions import Version


class ChosenBase(models.Model):
    """The base that was chosen for one of this installation's vLLM servers. `agents.weights.chosen_bases` makes the
    row, and the server's keeper (`workers.policies.vllm_keeper`) says in it how the server is."""

    class State(models.TextChoices):
        WAITING = "waiting", "waiting for its keeper"
        STARTING = "starting"
        READY = "ready"
        DOWN = "down"

    place = models.PositiveSmallIntegerField(unique=True, default=0)
    """Which server: its address and its GPU are those of `env.vllm_urls` and `env.serve_gpus` there."""
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
