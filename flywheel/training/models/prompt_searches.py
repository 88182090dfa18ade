"""Searches for a better prompt with a model's help: what each asks, its proposals, and the attempts with each."""

from django.db import models

from flywheel.agents.models import Version
from flywheel.edge.jobs import Job, JobEvent, StaleState
from flywheel.environments.models import Task, TaskSet
from flywheel.training.models.fix_trials import FixTrial


class PromptSearch(Job):
    """A model proposes system prompts, each is tried on train tasks. All that decides its course is frozen at submit.

    `fixes/draft_search.py` makes it; `done` counts proposals.
    """

    bucket = models.CharField(max_length=64)
    parent = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="prompt_searches")
    """Its prompt is where the search starts; all else of it stays."""
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="prompt_searches")
    tasks = models.JSONField()
    """Keys of the train tasks that are attempted, in the order in which the search counts them."""
    endpoint = models.JSONField()
    """The server of the model that proposes, as `Version.endpoint`."""
    seed = models.PositiveIntegerField(default=1)
    sampling = models.JSONField()
    """Of the attempts: the version's own."""
    verifier_digest = models.CharField(max_length=64)
    most_attempts = models.PositiveIntegerField()
    """With those of the trial afterwards."""
    most_proposals = models.PositiveSmallIntegerField()
    samples = models.PositiveSmallIntegerField(default=4)
    """Attempts per task in the trial afterwards."""
    judges = models.JSONField(default=dict, blank=True)
    """As in `EvalRun`."""
    trial = models.OneToOneField(FixTrial, on_delete=models.PROTECT, null=True, blank=True, related_name="search")
    """The trial of its best proposals, once somebody began it."""

    cancel_entry = "training.cancel_search"
    resume_entry = "training.resume_search"

    def __str__(self) -> str:
        return f"prompt search {self.pk}"

    def check_resume(self) -> None:
        """One whose judge passed a canary stays as it is, and so does one whose proposals are being tried."""
        if any(judge.get("void") for judge in self.judges.values()):
            raise StaleState(f"{self} is void; submit it anew with another version of the verifier")
        if self.trial_id is not None:
            raise StaleState(f"{self} is over: its best is tried already")


class PromptSearchEvent(JobEvent):
    job = models.ForeignKey(PromptSearch, on_delete=models.CASCADE, related_name="events")


class ProposalState(models.TextChoices):
    OPEN = "open", "not played to its end"
    DROPPED = "dropped", "no better on its first tasks"
    KEPT = "kept", "played on all tasks"
    REFUSED = "refused", "not usable"


class PromptProposal(models.Model):
    """A system prompt of a search, the version's own as place 0. Every proposal is kept, also one that is no use."""

    search = models.ForeignKey(PromptSearch, on_delete=models.CASCADE, related_name="proposals")
    place = models.PositiveSmallIntegerField()
    text = models.TextField(blank=True)
    parent = models.ForeignKey("self", on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    """The proposal that it was made from; None for the version's own prompt."""
    state = models.CharField(max_length=8, choices=ProposalState, default=ProposalState.OPEN)
    problem = models.TextField(blank=True)
    """Why it is refused."""
    question_digest = models.CharField(max_length=64, blank=True)
    """Of what the model was asked, by which a search that goes on knows that it takes the same course."""
    tokens_in = models.PositiveIntegerField(null=True)
    tokens_out = models.PositiveIntegerField(null=True)
    cost_usd = models.FloatField(null=True)

    class Meta:
        ordering = ["search", "place"]
        constraints = [models.UniqueConstraint(fields=["search", "place"], name="promptproposal_place_once")]

    def __str__(self) -> str:
        return f"proposal {self.place}"


class PromptAttempt(models.Model):
    """One attempt at one task with a proposal as the system prompt. `score` None means unscored; `reason` says why."""

    proposal = models.ForeignKey(PromptProposal, on_delete=models.CASCADE, related_name="attempts")
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="+")
    transcript = models.TextField(blank=True)
    """As the proposing model is shown it."""
    score = models.FloatField(null=True)
    success = models.BooleanField(null=True)
    parts = models.JSONField(default=dict)
    reason = models.TextField(blank=True)
    cause = models.CharField(max_length=16, blank=True)
    """Why it is unscored, as `core.verifiers.CAUSES` has it."""
    tokens_in = models.PositiveIntegerField(null=True)
    tokens_out = models.PositiveIntegerField(null=True)
    cost_usd = models.FloatField(null=True)

    class Meta:
        ordering = ["proposal", "task"]
        constraints = [models.UniqueConstraint(fields=["proposal", "task"], name="promptattempt_once")]

    def __str__(self) -> str:
        return f"{self.task} with {self.proposal}"
