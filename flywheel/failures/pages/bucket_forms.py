"""The form of a bucket that a project defines."""

from typing import Any

from django import forms

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.failures.buckets.bucket_definitions import DESCRIPTION_LIMIT, EDITABLE, SHORTCUTS, Wanted, of_project
from flywheel.failures.models import ProjectBucket


class BucketForm(forms.Form):
    label = forms.CharField(label="Name", max_length=60, help_text="What went wrong, in two or three words.")
    description = forms.CharField(
        label="When a failure belongs here",
        required=False,
        max_length=DESCRIPTION_LIMIT,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="One sentence that tells it from the others. Reviewers see it where they choose.",
    )
    parent = forms.ChoiceField(
        label="A kind of",
        choices=[("", "Choose one"), *((key, bucket.label) for key, bucket in BUCKETS.items())],
        help_text="What usually helps against failures of that kind is what is recommended against these.",
    )
    shortcut = forms.ChoiceField(label="Key", required=False, help_text="Chooses it while labelling.")

    def __init__(self, project: Project, bucket: ProjectBucket | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = bucket.shortcut if bucket else ""
        taken = {other.shortcut for other in of_project(project).values()} - {own}
        field = self.fields["shortcut"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", "None"), *((key, key) for key in SHORTCUTS if key not in taken)]

    @property
    def definition(self) -> Wanted:
        return Wanted(**self.cleaned_data)


def as_written(bucket: ProjectBucket) -> dict[str, Any]:
    """The form as the bucket is."""
    return {name: getattr(bucket, name) for name in EDITABLE}
