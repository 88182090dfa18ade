"""Reward models: what scores answers and never acts, so that it is no version of an agent."""

from typing import Any

from django.db import models, transaction
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models.artifacts import Artifact
from flywheel.agents.models.versions import Version
from flywheel.core.verifiers import reward_model_rules


class RewardModel(models.Model):
    """A trained reward model, which never changes: parts of verifiers name it as `name@number`."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="reward_models")
    name = models.SlugField(max_length=120)
    number = models.PositiveIntegerField()
    weights = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    """A whole model with one output."""
    canaries = models.JSONField()
    """As `workers.trainers.objectives.reward_canaries` measured them at the end of its training, with the mean raw
    score that others are compared with."""
    base = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="reward_models")
    """The version whose weights it began with."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name", "number"], name="rewardmodel_number_once"),
            models.UniqueConstraint(fields=["project", "weights"], name="rewardmodel_weights_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"

    @property
    def problems(self) -> list[str]:
        """Why it may not be a part of a verifier, with the numbers; empty when it may."""
        return reward_model_rules.problems(self.canaries)

    @property
    def kinds(self) -> list[dict[str, Any]]:
        """Return what its canaries say of each kind of answer that nobody wants, with the median as a score."""
        reference = self.canaries["reference"]
        return [
            {
                "label": reward_model_rules.KINDS[kind],
                "score": reward_model_rules.probability(row["median"], reference),
                **row,
            }
            for kind, row in self.canaries["degenerate"].items()
        ]

    @classmethod
    def make(cls, base: Version, weights: Artifact, canaries: dict[str, Any], by: User) -> "RewardModel":
        """The project's reward model of these weights: the existing one, else the next of the base's agent."""
        project, name = base.agent.project, f"{base.agent.name}-reward"
        with transaction.atomic():
            Project.objects.select_for_update(no_key=True).get(pk=project.pk)
            if existing := cls.objects.filter(project=project, weights=weights).first():
                return existing
            last = cls.objects.filter(project=project, name=name).aggregate(last=models.Max("number"))["last"] or 0
            return cls.objects.create(
                project=project,
                name=name,
                number=last + 1,
                weights=weights,
                canaries=canaries,
                base=base,
                created_by=by,
            )
