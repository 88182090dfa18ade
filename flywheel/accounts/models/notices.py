"""Notices: changes that people want to hear of, who has read them, and where else they are sent."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models.people import Project, User
from flywheel.accounts.models.permissions import Permission
from flywheel.accounts.models.seals import CannotUnseal, seal, unseal

PURPOSE = "notice targets"


class NoticeEvent(models.TextChoices):
    """Everything that a notice may tell of. The value is the `type` that webhooks carry."""

    CANDIDATE_WAITS = "candidate.waits", "a candidate waits for approval"
    RAMP_STAGE = "ramp.stage_reached", "a ramp reaches a stage"
    RAMP_HELD = "ramp.held", "a ramp is held"
    RAMP_TAKEN_BACK = "ramp.taken_back", "a ramp is taken back"
    RAMP_FINISHED = "ramp.finished", "a ramp is finished"
    RECURRENCE = "bucket.recurred", "a fixed category reopens"
    CLAIM_BROKEN = "promotion.claim_broken", "a promotion's claim is broken"
    RUN_ENDED = "run.ended", "a training run succeeds"
    RUN_FAILED = "run.failed", "a training run or an eval fails"
    MENTION = "comment.mention", "a comment mentions somebody"
    QUEUE_ASSIGNED = "queue.assigned", "a queue is assigned to somebody"


TOLD_BY_DEFAULT: dict[NoticeEvent, Permission | None] = {
    NoticeEvent.CANDIDATE_WAITS: Permission.APPROVE,
    NoticeEvent.RAMP_STAGE: Permission.APPROVE,
    NoticeEvent.RAMP_HELD: Permission.APPROVE,
    NoticeEvent.RAMP_TAKEN_BACK: Permission.APPROVE,
    NoticeEvent.RAMP_FINISHED: Permission.APPROVE,
    NoticeEvent.RECURRENCE: Permission.REVIEW,
    NoticeEvent.CLAIM_BROKEN: Permission.APPROVE,
    NoticeEvent.RUN_ENDED: Permission.TRAIN,
    NoticeEvent.RUN_FAILED: Permission.TRAIN,
    NoticeEvent.MENTION: None,
    NoticeEvent.QUEUE_ASSIGNED: None,
}
"""Of each event, whose inboxes it goes to where nobody is named; None where it concerns only those who are."""


class Notice(models.Model):
    """One change that is told of, written in the transaction of the change. It quotes nothing that an agent wrote."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="notices")
    uuid = models.UUIDField(default=uuid.uuid4, unique=True)
    """Of the message, for those who may receive it twice."""
    at = models.DateTimeField(default=timezone.now)
    event = models.CharField(max_length=32, choices=NoticeEvent)
    subject = models.CharField(max_length=200)
    """The thing it is about, such as `candidate 12`; notices of one subject are sent in their order."""
    title = models.CharField(max_length=300)
    text = models.TextField(blank=True)
    url = models.CharField(max_length=500, blank=True)
    """The subject's page, from the first `/` on."""

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(event__in=NoticeEvent.values), name="notice_event_is_known")]
        indexes = [models.Index(fields=["at"], name="notice_oldest")]

    def __str__(self) -> str:
        return self.title


class InboxEntry(models.Model):
    """A notice in one person's inbox."""

    notice = models.ForeignKey(Notice, on_delete=models.CASCADE, related_name="entries", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="inbox", db_index=False)
    read_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "inbox entries"
        constraints = [models.UniqueConstraint(fields=["notice", "user"], name="inbox_entry_once")]
        indexes = [
            models.Index(fields=["user", "project", "-id"], name="inbox_newest"),
            models.Index(fields=["user", "project"], name="inbox_unread", condition=Q(read_at=None)),
            models.Index(fields=["project"], name="inbox_of_project"),
        ]

    def __str__(self) -> str:
        return f"{self.notice} for {self.user}"


class NoticeTarget(models.Model):
    """A place outside that a project's notices are sent to: a Slack channel, or somebody's webhook."""

    class Kind(models.TextChoices):
        SLACK = "slack", "Slack"
        WEBHOOK = "webhook", "Webhook"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="notice_targets")
    name = models.CharField(max_length=60)
    kind = models.CharField(max_length=8, choices=Kind)
    host = models.CharField(max_length=260)
    """The part of the address that is no secret, `hooks.slack.com`."""
    sealed_url = models.TextField()
    """Who knows a Slack webhook's address may write into its channel."""
    sealed_secret = models.TextField(blank=True)
    """Signs what a webhook is sent; Slack takes none."""
    events = models.JSONField(default=list)
    """Values of `NoticeEvent`."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["project", "name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="notice_target_once"),
            models.CheckConstraint(condition=Q(kind__in=["slack", "webhook"]), name="notice_target_kind_is_known"),
        ]

    def __str__(self) -> str:
        return self.name

    def seal(self, url: str, secret: str) -> None:
        self.sealed_url = seal(url, PURPOSE)
        self.sealed_secret = seal(secret, PURPOSE) if secret else ""

    def unseal(self) -> tuple[str, str]:
        """The address and the secret, which is empty where there is none. Raises CannotUnseal."""
        try:
            return unseal(self.sealed_url, PURPOSE), unseal(self.sealed_secret, PURPOSE) if self.sealed_secret else ""
        except CannotUnseal as error:
            raise CannotUnseal(f"{self.name}: {error}; an admin must enter it again under Settings › Notices") from None


class NoticeDelivery(models.Model):
    """A notice on its way to one target, or by e-mail to one person. `notices.deliveries` sends it."""

    class State(models.TextChoices):
        WAITING = "waiting"
        SENT = "sent"
        DEAD = "dead"

    notice = models.ForeignKey(Notice, on_delete=models.CASCADE, related_name="deliveries")
    target = models.ForeignKey(NoticeTarget, on_delete=models.CASCADE, related_name="deliveries", null=True)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", null=True)
    """Who is written to by e-mail, where it goes to no target."""
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    subject = models.CharField(max_length=200)
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now)
    """When it is tried next; while it is tried, when somebody else may."""
    give_up_at = models.DateTimeField()
    error = models.TextField(blank=True)
    """Why the last try failed."""
    sent_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "notice deliveries"
        constraints = [
            models.CheckConstraint(
                condition=Q(target=None, user__isnull=False) | Q(target__isnull=False, user=None),
                name="notice_delivery_goes_to_one",
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], name="notice_delivery_due", condition=Q(state="waiting")),
            models.Index(fields=["subject", "id"], name="notice_delivery_order", condition=Q(state="waiting")),
            models.Index(fields=["project", "-id"], name="notice_delivery_dead", condition=Q(state="dead")),
        ]

    def __str__(self) -> str:
        return f"{self.notice} to {self.target or self.user}"
