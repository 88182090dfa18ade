from django import forms

from flywheel.trajectories.formats.files.file_formats import FORMATS, TABLE
from flywheel.trajectories.import_export.trajectory_import import MAX_BYTES

KINDS = ".jsonl,.ndjson,.json,.eval,.parquet,.csv,.tsv,.gz"


class ImportForm(forms.Form):
    file = forms.FileField(
        label="File",
        help_text="JSON Lines, JSON, an Inspect .eval archive, Parquet or CSV, also compressed with gzip; at most "
        f"{MAX_BYTES // 1024**2} MiB.",
        widget=forms.FileInput(attrs={"accept": KINDS}),
    )
    format = forms.ChoiceField(
        help_text="Tables with unknown columns are shown first, so that you can map them.",
        choices=[
            ("auto", "Detect"),
            *((name, f"{entry.label}: {entry.description}") for name, entry in FORMATS.items()),
            (TABLE, "A table: choose its columns"),
        ],
    )
