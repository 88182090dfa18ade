"""The form of a queue, and what of the list of trajectories a new one begins with."""

import uuid
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import QueryDict

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.edge.paging import about
from flywheel.failures.buckets.bucket_definitions import offered
from flywheel.failures.models import Queue, Rule
from flywheel.failures.project_reviewers import reviewers
from flywheel.failures.queues.queue_definitions import AT_MOST, LONGEST, Wanted
from flywheel.templatetags.texts import safe_text
from flywheel.trajectories.import_export import trajectory_export
from flywheel.trajectories.operations.bulk_actions import BadBulk

RULES = {
    Rule.HAND: "By hand: only what people add",
    Rule.DETECTED: "New failures that detectors propose",
    Rule.SAMPLE: "A sample of the traffic, failed or not",
    Rule.DISAGREED: "Where reviewers of other queues disagree",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The trajectories of the list that a new queue begins with: those that were ticked, or all that match."""

    q: str
    ids: list[str]
    key: uuid.UUID
    number: int
    is_about: bool

    @classmethod
    def read(cls, project: Project, sent: QueryDict) -> "Chosen | None":
        """None where the form was not opened from there. Raises BadBulk."""
        if not sent.get("key"):
            return None
        q, ids = sent.get("q", ""), [] if sent.get("all") else sent.getlist("id")
        try:
            number, is_about = about(trajectory_export.selection(project.pk, q, ids))
            return cls(q, ids, uuid.UUID(sent.get("key", "")), number, is_about)
        except ValueError as error:  # a selection that is none, and a key that is none
            raise BadBulk(str(error)) from None


class QueueForm(forms.Form):
    name = forms.CharField(max_length=100)
    instructions = forms.CharField(
        required=False,
        max_length=10_000,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="The question for reviewers, and what to watch for. Shown next to every item.",
    )
    rule = forms.ChoiceField(label="Intake", choices=list(RULES.items()), initial=Rule.HAND)
    bucket = forms.ChoiceField(required=False)
    detector = forms.ChoiceField(
        required=False,
        choices=[("", "Any detector"), *((key, detector.description) for key, detector in DETECTORS.items())],
    )
    percent = forms.FloatField(
        label="Percent", required=False, min_value=0, max_value=100, widget=forms.NumberInput(attrs={"step": "any"})
    )
    with_existing = forms.BooleanField(label="Include existing trajectories", required=False)
    needed = forms.IntegerField(
        label="Reviewers per item",
        min_value=1,
        max_value=AT_MOST,
        initial=1,
        help_text="Two or more review blind, and more than half must agree.",
    )
    assignees = forms.MultipleChoiceField(
        label="Who reviews",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Leave empty for everyone who may label.",
    )
    minutes = forms.IntegerField(
        label="Reserved for, minutes",
        min_value=1,
        max_value=LONGEST,
        initial=15,
        help_text="Counted from the last activity of the reviewer's page.",
    )

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        people, bucket = self.fields["assignees"], self.fields["bucket"]
        assert isinstance(people, forms.MultipleChoiceField)
        assert isinstance(bucket, forms.ChoiceField)
        people.choices = [(user.username, user.username) for user in reviewers(project)]
        known = offered(project, str(self.initial.get("bucket", "")))
        bucket.choices = [("", "Any category"), *((each.key, safe_text(each.label)) for each in known)]

    @property
    def definition(self) -> Wanted:
        given = dict(self.cleaned_data)
        given.pop("with_existing")
        return Wanted(**given)


def as_written(queue: Queue) -> dict[str, Any]:
    """The form as the queue is."""
    names = ("name", "instructions", "rule", "bucket", "detector", "percent", "needed", "minutes")
    people = [person.username for person in queue.assignees.all()]
    return {name: getattr(queue, name) for name in names} | {"assignees": people}
