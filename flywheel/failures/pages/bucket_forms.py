"""The form of a bucket that a project defines."""

from django import forms
from django.forms import model_to_dict
from django.http import QueryDict

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.failures.buckets.bucket_definitions import DESCRIPTION_LIMIT, SHORTCUTS, Wanted, of_project
from flywheel.failures.models import ProjectBucket


class BucketForm(forms.Form):
    label = forms.CharField(label="Name", max_length=60, help_text="What went wrong, in two or three words.")
    description = forms.CharField(
        label="When a failure belongs here",
        required=False,
        max_length=DESCRIPTION_LIMIT,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="One sentence on how it differs from the others. Reviewers see it when they choose.",
    )
    parent = forms.ChoiceField(
        label="A kind of",
        choices=[("", "Choose one"), *((key, bucket.label) for key, bucket in BUCKETS.items())],
        help_text="The fix recommended for that category is recommended for this one too.",
    )
    shortcut = forms.ChoiceField(label="Key", required=False, help_text="Key that selects it while labelling.")

    def __init__(self, project: Project, bucket: ProjectBucket | None, sent: QueryDict | None) -> None:
        """The form as the bucket is, or empty."""
        super().__init__(sent, initial=model_to_dict(bucket) if bucket else {})
        own = bucket.shortcut if bucket else ""
        taken = {other.shortcut for other in of_project(project).values()} - {own}
        field = self.fields["shortcut"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", "None"), *((key, key) for key in SHORTCUTS if key not in taken)]

    @property
    def definition(self) -> Wanted:
        return Wanted(**self.cleaned_data)
