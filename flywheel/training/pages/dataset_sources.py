"""The pages that make datasets from elsewhere: of trajectories that are called good, and of files. Each shows what it
would make before anything is made."""

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, Project
from flywheel.agents.models import Version
from flywheel.agents.references import UnknownReference, find_version
from flywheel.edge.refusals import refusal_shown
from flywheel.training.datasets import dataset_uploads
from flywheel.training.datasets.dataset_uploads import CARD, MAX_BYTES, UNKNOWN
from flywheel.training.datasets.demonstrations import GOOD, MOST, Wanted, gather, write
from flywheel.training.models import Dataset
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.trajectory_export import IDS_MAX
from flywheel.trajectories.import_export.uploads import Upload

FIRST = 5
SHOWN = 50
"""Problems of a file that stand on the page."""
OFFERED = 200
NAME_HELP = "Small letters, digits, - and _. The same name again makes its next version."


class DemonstrationForm(forms.Form):
    """A choice of trajectories, and for whom they are written."""

    q = forms.CharField(
        required=False,
        max_length=2_000,
        label="Filter",
        help_text="As in the list of trajectories, such as version:6 after:30d; empty for all.",
    )
    ids = forms.CharField(required=False, max_length=65 * IDS_MAX, widget=forms.HiddenInput())
    good = forms.ChoiceField(
        choices=[("good", "that people or feedback call good"), ("filter", "that the filter finds")],
        label="Take those",
        help_text="Good is what a person labelled “nothing wrong”, or what has good feedback and no bad one.",
    )
    version = forms.CharField(
        max_length=120, label="Written for", help_text="Rows have this version’s prompt, tools and form of calls."
    )
    start = forms.IntegerField(
        min_value=1,
        max_value=10_000,
        initial=1,
        label="From the agent’s message",
        help_text="1 for the whole; what came before is shown to the model and not learnt.",
    )
    name = forms.SlugField(max_length=100, help_text=NAME_HELP)

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project = project
        self.fields["version"].widget.attrs["list"] = "versions"

    def clean_version(self) -> Version:
        try:
            return find_version(self.project, self.cleaned_data["version"])
        except UnknownReference as error:
            raise forms.ValidationError(str(error)) from None

    @property
    def chosen(self) -> list[str]:
        """Trace ids that were ticked; none where the filter chooses."""
        return str(self["ids"].value() or "").split()

    def wanted(self) -> Wanted:
        """The choice of a form that is valid."""
        names = ("q", "good", "version", "start")
        return Wanted(ids=self.chosen, **{name: self.cleaned_data[name] for name in names})


class UploadForm(forms.Form):
    """A file with its card; the file may be kept from the last look."""

    file = forms.FileField(
        required=False, help_text=f"JSON Lines, JSON, CSV or Parquet, of at most {MAX_BYTES // 1024**2} MiB."
    )
    kind = forms.ChoiceField(
        required=False,
        choices=[
            ("", "what the first good row is"),
            (Dataset.Kind.SFT, "conversations"),
            (Dataset.Kind.PAIRS, "preferences"),
            (Dataset.Kind.THUMBS, "answers with a thumb"),
            (Dataset.Kind.PROMPTS, "prompts"),
        ],
        label="Rows",
    )
    name = forms.SlugField(max_length=100, help_text=NAME_HELP)
    licence = forms.CharField(
        max_length=CARD["licence"], help_text=f"Such as CC-BY-4.0 or “own”; {UNKNOWN} where nobody knows."
    )
    description = forms.CharField(
        required=False, max_length=CARD["description"], widget=forms.Textarea(attrs={"rows": 3})
    )
    source = forms.CharField(required=False, max_length=CARD["source"], help_text="Where it comes from.")
    language = forms.CharField(required=False, max_length=CARD["language"])
    kept = forms.CharField(required=False, widget=forms.HiddenInput())

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        file = data.get("file")
        if isinstance(file, UploadedFile) and (file.size or 0) > MAX_BYTES:
            self.add_error("file", f"The file is larger than {MAX_BYTES // 1024**2} MiB.")
        if not file and not data.get("kept") and "file" not in self.errors:
            self.add_error("file", "Choose a file.")
        return data

    def upload(self, request: PageRequest) -> Upload | None:
        """The file that was sent now, or else that of the last look."""
        file = self.cleaned_data.get("file")
        if isinstance(file, UploadedFile):
            return uploads.keep(request.project, request.user, file.name or "file", file.file)  # type: ignore[arg-type]
        return uploads.find(request.project, self.cleaned_data["kept"])


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def demonstrations(request: PageRequest) -> HttpResponse:
    """Choose trajectories to imitate; the list's bulk bar begins here with what is ticked."""
    given = request.POST
    if request.method == "GET" or "begin" in given:
        data = request.GET if request.method == "GET" else given
        ids = " ".join(data.getlist("id")[:IDS_MAX]) if not data.get("all") else ""
        first = {"q": data.get("q", ""), "ids": ids, "version": _usual(request.project), "name": "good-answers"}
        form = DemonstrationForm(request.project, initial=first)
    else:
        form = DemonstrationForm(request.project, given)
    context: dict[str, Any] = {"form": form, "most": MOST, "tab": "datasets", "goods": GOOD}
    if form.is_bound and form.is_valid():
        with refusal_shown(form):
            if "make" in given:
                made = write(name=form.cleaned_data["name"], wanted=form.wanted(), actor=request.actor)
                return redirect("training:dataset", request.project.slug, made.name, made.version)
            found = gather(form.wanted())
            context |= {"found": found, "first": found.rows[:FIRST]}
    context["versions"] = Version.objects.filter(agent__project=request.project).order_by("-pk")[:OFFERED]
    return render(request, "training/demonstrations.html", context, status=422 if form.errors else 200)


def _usual(project: Project) -> str:
    """The newest version with weights, or the newest of all."""
    rows = Version.objects.filter(agent__project=project).select_related("agent")
    found = rows.exclude(weights=None).order_by("-pk").first() or rows.order_by("-pk").first()
    return str(found or "")


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def upload_dataset(request: PageRequest) -> HttpResponse:
    """Look at a file, as often as somebody likes; keep it as a dataset when that is asked for."""
    form = UploadForm(request.POST or None, request.FILES or None)
    context: dict[str, Any] = {"form": form, "tab": "datasets", "shown": SHOWN}
    if request.method == "POST" and form.is_valid():
        context["kept"] = upload = form.upload(request)
        if upload is None:
            form.add_error("file", "It was kept for a day and is gone; choose it again.")
        else:
            with refusal_shown(form):
                if made := _carry_out(request, form, upload, context):
                    upload.discard()
                    return redirect("training:dataset", request.project.slug, made.name, made.version)
    return render(request, "training/upload.html", context, status=422 if form.errors else 200)


def _carry_out(request: PageRequest, form: UploadForm, upload: Upload, context: dict[str, Any]) -> Dataset | None:
    """Make it where that is asked for, else look. Raises Refused."""
    asked = form.cleaned_data
    with upload.open() as file:
        if "make" not in request.POST:
            found = dataset_uploads.look(request.project, file, asked["kind"])
            context |= {"found": found, "first": found.rows[:FIRST]}
            return None
        card = {name: asked[name] for name in CARD}
        made, _ = dataset_uploads.take(
            request.project,
            name=asked["name"],
            source=file,
            card=card,
            actor=request.actor,
            kind=asked["kind"],
            file_name=upload.name,
        )
        return made
