"""The pages that make datasets of something else: of trajectories that are called good, of files, of other datasets.
Each shows what it would make before anything is made."""

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
from flywheel.edge.numbers import form_key
from flywheel.edge.refusals import Refused, refusal_shown
from flywheel.training.datasets import build_jobs, dataset_mix, dataset_uploads
from flywheel.training.datasets.dataset_uploads import CARD, MAX_BYTES, UNKNOWN
from flywheel.training.datasets.demonstrations import Wanted, look
from flywheel.training.models import Dataset, DatasetBuild
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.trajectory_export import IDS_MAX
from flywheel.trajectories.import_export.uploads import Upload

OFFERED = 200
NAME_HELP = "Lower-case letters, digits, - and _. An existing name gets its next version."


class DemonstrationForm(forms.Form):
    """A choice of trajectories, and for whom they are written."""

    q = forms.CharField(
        required=False,
        max_length=2_000,
        label="Filter",
        help_text="As in the list of trajectories, for example version:6 after:30d; leave empty for all.",
    )
    ids = forms.CharField(required=False, max_length=65 * IDS_MAX, widget=forms.HiddenInput())
    good = forms.ChoiceField(
        choices=[
            ("good", "that people or feedback call good"),
            ("filter", "that the filter finds"),
            ("thumbs", "that people or feedback call good or bad, each answer with its thumb"),
            ("scores", "that people or feedback score, each answer with the score of the whole"),
        ],
        label="Take those",
        help_text="Good is what a person labelled “nothing wrong”, or what has good feedback and no bad one. With a "
        "thumb, a failure counts at its marked step, and bad feedback at the last answer.",
    )
    version = forms.CharField(
        max_length=120, label="Written for", help_text="Rows have this version’s prompt, tools and form of calls."
    )
    step = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput())
    whole = forms.ChoiceField(
        choices=[("", "from this step on"), ("1", "the whole trajectory")],
        required=False,
        label="Learn",
        help_text="Earlier steps are context for the model, without loss.",
    )
    start = forms.IntegerField(
        min_value=1,
        max_value=10_000,
        initial=1,
        label="From the agent’s message",
        help_text="1 for the whole; earlier messages are context for the model, without loss.",
    )
    name = forms.SlugField(max_length=100, help_text=NAME_HELP)

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project = project
        self.fields["version"].widget.attrs["list"] = "versions"
        if len(self.chosen) != 1 or not self["step"].value():
            del self.fields["step"], self.fields["whole"]
        else:
            del self.fields["start"]

    def clean_version(self) -> Version:
        try:
            return find_version(self.project, self.cleaned_data["version"])
        except UnknownReference as error:
            raise forms.ValidationError(str(error)) from None

    @property
    def chosen(self) -> list[str]:
        """Trace ids that were ticked; none where the filter chooses."""
        return str(self["ids"].value() or "").split()

    def choice(self) -> Wanted:
        """The choice of a form that is valid."""
        names = ("q", "good", "version", "start")
        fields = {name: self.cleaned_data[name] for name in names if name in self.fields}
        if "step" in self.fields and not self.cleaned_data["whole"]:
            fields["steps"] = {self.chosen[0]: self.cleaned_data["step"]}
        return Wanted(ids=self.chosen, **fields)


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
            (Dataset.Kind.SCORED, "scored attempts"),
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
        if step := data.get("step", ""):  # somebody looks at it and takes it, whatever others say
            first |= {"step": step, "good": "filter"}
        form = DemonstrationForm(request.project, initial=first)
    else:
        form = DemonstrationForm(request.project, given)
    context: dict[str, Any] = {"form": form, "tab": "datasets", "key": form_key(request.POST.get("key", ""))}
    if form.is_bound and form.is_valid():
        with refusal_shown(form):
            if "make" in given:
                key = form_key(given.get("key", ""))
                job = build_jobs.submit_choice(
                    name=form.cleaned_data["name"], wanted=form.choice(), actor=request.actor, key=key
                )
                return redirect("training:build", request.project.slug, job.pk)
            context["found"], context["first"] = look(form.choice())
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
    context: dict[str, Any] = {"form": form, "tab": "datasets", "key": form_key(request.POST.get("key", ""))}
    if request.method == "POST" and form.is_valid():
        context["kept"] = upload = form.upload(request)
        if upload is None:
            builds = DatasetBuild.objects.filter(project=request.project, idempotency_key=context["key"])
            if made := builds.first():  # a second click, after a worker was done with the file
                return redirect("training:build", request.project.slug, made.pk)
            form.add_error("file", "It expired after a day; choose it again.")
        else:
            with refusal_shown(form):
                if "make" in request.POST:
                    asked = form.cleaned_data
                    job = build_jobs.submit_upload(
                        project=request.project,
                        name=asked["name"],
                        upload=upload,
                        card={name: asked[name] for name in CARD},
                        actor=request.actor,
                        key=context["key"],
                        kind=asked["kind"],
                    )
                    return redirect("training:build", request.project.slug, job.pk)
                with upload.open() as file:
                    kind = form.cleaned_data["kind"]
                    context["found"], context["first"] = dataset_uploads.look(request.project, file, kind)
    return render(request, "training/upload.html", context, status=422 if form.errors else 200)


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def mix_page(request: PageRequest) -> HttpResponse:
    """Weights beside the project's datasets: looked at with GET, written with POST."""
    given = (request.POST if request.method == "POST" else request.GET).dict()
    kind = given.get("kind", "")
    kind = kind if kind in Dataset.Kind.values else _usual_kind(request)
    offered = _mixable(request, kind)
    asked = {name.removeprefix("w"): weight.strip() for name, weight in given.items() if name.startswith("w")}
    context: dict[str, Any] = {
        "tab": "datasets",
        "kinds": Dataset.Kind.choices,
        "kind": kind,
        "name": given.get("name", "").strip(),
        "first": given.get("first", ""),
        "rows": [{"dataset": row, "weight": asked.get(str(row.pk), ""), "given": None} for row in offered],
    }
    try:
        parts = _parts(context["rows"], context["first"])
        if request.method == "POST":
            made = dataset_mix.mix(name=context["name"], parts=parts, actor=request.actor)
            return redirect("training:dataset", request.project.slug, made.name, made.version)
        if parts:
            _preview_mix(context, parts)
    except Refused as error:
        context["problem"] = error.problem
    return render(request, "training/mix.html", context, status=422 if "problem" in context else 200)


def _usual_kind(request: PageRequest) -> str:
    """The kind of the project's newest dataset, so that there is something to mix."""
    newest = Dataset.objects.filter(project=request.project).order_by("-pk").values_list("kind", flat=True).first()
    return newest or Dataset.Kind.TASKS


def _mixable(request: PageRequest, kind: str) -> list[Dataset]:
    """The newest version of each dataset of the kind that is no mix."""
    rows = Dataset.objects.filter(project=request.project, kind=kind, recipe__mix__isnull=True)
    newest = rows.order_by("name", "-version").distinct("name")
    return list(newest.select_related("task_set__environment_version__environment")[:OFFERED])


def _parts(rows: list[dict[str, Any]], first: str) -> list[dataset_mix.Part]:
    """Those with a weight, the one to compare by first. Raises Refused for a weight that is no number."""
    parts = []
    for row in sorted((row for row in rows if row["weight"]), key=lambda row: str(row["dataset"].pk) != first):
        try:
            parts.append((row["dataset"], float(row["weight"].replace(",", "."))))
        except ValueError:
            problem = f"the weight of {row['dataset']} is {row['weight'][:20]!r}; expected a number above 0"
            raise Refused(problem, field="parts") from None
    return parts


def _preview_mix(context: dict[str, Any], parts: list[dataset_mix.Part]) -> None:
    """Add the rows that each part would give to the context."""
    dataset_mix.check(parts)
    counts = dataset_mix.shares([part.rows for part, _ in parts], [weight for _, weight in parts])
    gives = {part.pk: count for (part, _), count in zip(parts, counts, strict=True)}
    for row in context["rows"]:
        row["given"] = gives.get(row["dataset"].pk)
    context |= {"total": sum(counts), "compared": parts[0][0].task_set}
