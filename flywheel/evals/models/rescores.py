"""Old rollouts under another verifier, or a reward recipe: scores of their own, beside those that the run was judged
with."""

from django.db import models

from flywheel.edge.jobs import Job, JobEvent, StaleState
from flywheel.environments.models import EnvironmentVersion, RewardRecipe


class Rescore(Job):
    """A run's rollouts, judged again without asking the policy anything: by another version's verifier, or by a reward
    recipe that stands on what the run's own verifier said."""

    run = models.ForeignKey("evals.EvalRun", on_delete=models.CASCADE, related_name="rescores")
    environment_version = models.ForeignKey(EnvironmentVersion, on_delete=models.PROTECT, related_name="rescores")
    recipe = models.ForeignKey(RewardRecipe, on_delete=models.PROTECT, null=True, blank=True, related_name="rescores")
    verifier_digest = models.CharField(max_length=64)
    """Of the verifier that judges: settings and code revision; `RewardRecipe.judged_by` where a recipe does."""
    judges = models.JSONField(default=dict, blank=True)
    """As in `EvalRun`."""

    cancel_entry = "evals.cancel_rescore"
    resume_entry = "evals.resume_rescore"

    @property
    def judge_label(self) -> str:
        """Who judges, for people."""
        return f"reward recipe {self.recipe}" if self.recipe else f"verifier of {self.environment_version}"

    def check_resume(self) -> None:
        """One whose judge passed a canary stays as it is: another go might hide it."""
        if any(judge.get("void") for judge in self.judges.values()):
            raise StaleState(f"{self} is void; have the rollouts judged by another version of the verifier")


class RescoreEvent(JobEvent):
    job = models.ForeignKey(Rescore, on_delete=models.CASCADE, related_name="events")


class Rescored(models.Model):
    """The other verifier's verdict on one attempt; the attempt's own `Result` stays as it is."""

    rescore = models.ForeignKey(Rescore, on_delete=models.CASCADE, related_name="scores")
    result = models.ForeignKey("evals.Result", on_delete=models.CASCADE, related_name="rescored")
    score = models.FloatField(null=True)
    success = models.BooleanField(null=True)
    parts = models.JSONField(default=dict)
    reason = models.TextField(blank=True)
    cause = models.CharField(max_length=16, blank=True)
    """Why there is no score, as `core.verifiers.CAUSES` has it."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rescore", "result"], name="rescored_once")]

    def __str__(self) -> str:
        return f"{self.result} under {self.rescore}"
