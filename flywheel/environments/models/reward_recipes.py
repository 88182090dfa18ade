"""Named rewards that runs learn from."""

from functools import cached_property
from typing import Any

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.core import digests, verifiers
from flywheel.core.verifiers import rubric


class RewardRecipe(models.Model):
    """One version of a project's reward recipe (`core.verifiers.rubric`), immutable: a trigger refuses every change."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="reward_recipes")
    name = models.SlugField(max_length=100)
    number = models.PositiveIntegerField()
    parts = models.JSONField()
    digest = models.CharField(max_length=64)
    """Of the parts."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = "reward recipe"
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name", "number"], name="reward_recipe_once")]

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"

    @property
    def spec(self) -> dict[str, Any]:
        """As a run directory has it."""
        return {"kind": rubric.REWARD, "parts": self.parts}

    @cached_property
    def rubric(self) -> rubric.Rubric:
        return rubric.read(self.spec)

    def judged_by(self, verifier: dict[str, Any]) -> str:
        """The digest of what calls an attempt a pass where this stands on a verifier: the verifier's own, where it
        only adds to what that says."""
        own = verifiers.digest(verifier)
        return own if self.rubric.is_own_verdict else digests.digest([own, verifiers.digest(self.spec)])
