from django import forms

from flywheel.trajectories.formats import FORMATS


class ImportForm(forms.Form):
    file = forms.FileField(
        label="File", help_text="JSON Lines: one trajectory a line.", widget=forms.FileInput(attrs={"accept": ".jsonl"})
    )
    format = forms.ChoiceField(
        choices=[
            ("auto", "Detect for each line"),
            *((name, f"{entry.label}: {entry.description}") for name, entry in FORMATS.items()),
        ]
    )
