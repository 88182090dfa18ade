"""The playground: an episode that a person plays by hand, or lets a version play turn by turn."""

from dataclasses import dataclass

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version
from flywheel.edge.jobs import Job, JobEvent


@dataclass(frozen=True, slots=True)
class Move:
    """One message of the policy: who made it, and what that took."""

    by: str = ""
    """`agent@number`, or empty for a person."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    """None for a person's, and where the server does not say."""
    ended: str = ""
    """Why the episode was broken off after it, though the environment had not ended it."""


class Play(models.Model):
    """One episode of a task. Written by `episode_moves` alone; its row is locked for each move."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="plays")
    task = models.ForeignKey("environments.Task", on_delete=models.CASCADE, related_name="plays")
    environment_version = models.ForeignKey(
        "environments.EnvironmentVersion", on_delete=models.CASCADE, related_name="plays"
    )
    seed = models.PositiveIntegerField(default=0)
    messages = models.JSONField()
    """The conversation so far, each as `Message.to_json`."""
    moves = models.JSONField(default=list)
    """A `Move` for each message of the assistant, as a dict; its `by` alone in those of before tokens were counted."""
    world = models.JSONField(null=True, blank=True)
    """Of a world that a worker plays: its state as JSON in the `beginning`, `before` the last move, and `now`.

    Of a tool server also how many moves there were `at` that time, and the `session` in which the next one is made.
    """
    is_over = models.BooleanField(default=False)
    verdict = models.JSONField(null=True, blank=True)
    """`{"score", "reason", "cause", "parts"}` of the whole episode, once it is over and judged."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"play {self.pk}"

    @property
    def made(self) -> list[Move]:
        return [Move(**row) if isinstance(row, dict) else Move(row) for row in self.moves]

    @property
    def ended(self) -> str:
        """Why it was broken off, to be judged as it stands; empty where it was not."""
        return self.made[-1].ended if self.moves else ""

    @property
    def tokens_in(self) -> int | None:
        """Tokens that its versions read; None where one does not say."""
        return _sum([move.tokens_in for move in self.made if move.by])

    @property
    def tokens_out(self) -> int | None:
        """Tokens that its versions wrote; None where one does not say."""
        return _sum([move.tokens_out for move in self.made if move.by])


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class PlayTurn(Job):
    """A worker's job in an episode: a version's next move or all that are left, and the verdict of a verifier that runs
    elsewhere."""

    play = models.ForeignKey(Play, on_delete=models.CASCADE, related_name="turns")
    version = models.ForeignKey(Version, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    """Who is asked; nobody where only the verdict is wanted."""
    temperature = models.FloatField(default=0.0)
    at = models.PositiveIntegerField()
    """Moves that were made when it was asked for."""
    to_the_end = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"turn {self.pk}"


class PlayTurnEvent(JobEvent):
    job = models.ForeignKey(PlayTurn, on_delete=models.CASCADE, related_name="events")
