"""The training room: its runs, launching one, watching one, and what it learns from."""

from typing import Any

from django.contrib import messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import FileResponse, Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.core.recipes import ALGORITHMS
from flywheel.environments import leaks, ledger
from flywheel.environments.models import Opening, Split, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.jobs import StaleState, State
from flywheel.paging import BadCursor, Page, about, keyset
from flywheel.training import charts, contamination, dataset, forms, launch, mix, plan, reward, show
from flywheel.training.models import Dataset, Point, Recommendation, TrainingRun
from flywheel.training.recommend import baseline_of, buckets_of, lightest, recommendation_for
from flywheel.trajectories.buckets import name_of

PAGE = 50
OFFERED = 50
"""References that a list in the form offers; any other can be in the address."""
DONE = 286
"""htmx stops to poll on this status."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """The runs, newest first, under the filters of the address."""
    runs = TrainingRun.objects.filter(project=request.project)
    wanted = {name: request.GET.get(name, "") for name in ("state", "algorithm")}
    found = runs.filter(**{name: value for name, value in wanted.items() if value})
    evals = Point.objects.filter(run=OuterRef("pk"), kind=Point.Kind.EVAL)
    shown = found.select_related(
        "base__agent", "produced__agent", "task_set", "created_by", "baseline", "evaluation"
    ).annotate(
        eval_step=Subquery(evals.order_by("-step").values("step")[:1]),
        eval_values=Subquery(evals.order_by("-step").values("values")[:1]),
        start_values=Subquery(evals.filter(step=0).values("values")[:1]),
    )
    page = _page(request, shown)
    if page is None:
        return redirect(request.path)
    for each in page.items:
        if each.state == State.RUNNING:  # at most one a slot
            each.progress = show.progress(each)
    return render(
        request,
        "training/index.html",
        {
            "page": page,
            "is_moving": any(not each.is_finished for each in page.items),
            "tab": "runs",
            "filters": wanted,
            "states": State.choices,
            "algorithms": ALGORITHMS.values(),
            "is_empty": not runs.exists(),
        },
    )


@require_GET
@requires(Permission.VIEW)
def datasets(request: PageRequest) -> HttpResponse:
    rows = Dataset.objects.filter(project=request.project).select_related("task_set", "created_by")
    return _list(request, "training/datasets.html", rows, tab="datasets")


@require_GET
@requires(Permission.VIEW)
def recommendations(request: PageRequest) -> HttpResponse:
    """What the fix ladder said, newest first."""
    rows = Recommendation.objects.filter(project=request.project).select_related(
        "version__agent", "task_set", "eval_run"
    )
    return _list(request, "training/recommendations.html", rows, tab="recommendations")


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def launch_page(request: PageRequest) -> HttpResponse:
    """One page from what should change to the run. htmx asks it again at each choice and gets the form alone."""
    data = (request.POST if request.method == "POST" else request.GET).dict()
    if "like" in request.GET:
        data = forms.as_data(_run(request, _number(request.GET["like"])))
    form = forms.LaunchForm.read(request.project, data)
    recommendation = recommendation_for(form.base, form.task_set) if form.base and form.task_set else None
    form.choose(recommendation)
    if request.method == "POST" and (run := _launch(request, form, recommendation)):
        return _to_run(request, run)
    context = _launch_context(request, form, recommendation)
    status = 422 if request.method == "POST" else 200
    if not request.htmx:
        return render(request, "training/launch.html", context, status=status)
    response = render(request, "training/_launch.html", context, status=status)
    if request.method == "GET":
        response["HX-Replace-Url"] = f"{request.path}?{_chosen(form)}"
    return response


def _launch(request: PageRequest, form: forms.LaunchForm, recommendation: Recommendation | None) -> TrainingRun | None:
    """The run, or None with everything that is wrong noted in the form."""
    chosen = form.check()
    for name, found in (("base", form.base), ("task_set", form.task_set)):
        if found is None:
            form.errors.setdefault(name, "is missing")
    if form.errors or form.base is None or form.task_set is None:
        return None
    try:
        run, _ = launch.launch(
            key=form.uuid,
            base=form.base,
            algorithm=form.algorithm,
            task_set=form.task_set,
            dataset=form.dataset,
            rollouts=form.rollouts,
            actor=request.actor,
            recommendation=recommendation,
            **chosen,
        )
    except (launch.CannotLaunch, dataset.CannotBuild) as error:
        form.refuse(error.field, error.problem)
        return None
    return run


def _launch_context(
    request: PageRequest, form: forms.LaunchForm, recommendation: Recommendation | None
) -> dict[str, Any]:
    base, task_set = form.base, form.task_set
    context: dict[str, Any] = {
        "form": form,
        "versions": _offered(
            Version.objects.filter(agent__project=request.project, weights__isnull=False)
            .select_related("agent")
            .order_by("-pk"),
            form.base_ref,
        ),
        "task_sets": _offered(TaskSet.objects.filter(project=request.project).order_by("-pk"), form.task_set_ref),
        "algorithms": ALGORITHMS.values(),
        "recommendation": recommendation,
    }
    if base is None or task_set is None or recommendation is None:
        return context
    baseline = baseline_of(base, task_set)
    smallest, assumed = plan.detectable(baseline) if baseline else (None, "")
    data = plan.data_of(task_set, form.known.data, form.rollouts, baseline, form.left_out, form.dataset)
    recipe = data.draft.recipe if data.draft else {}
    judged, holds = reward.standing_of(form.algorithm, base, Dataset(task_set=task_set, recipe=recipe)) or (None, None)
    return context | {
        "buckets": [
            {"key": key, "label": name_of(request.project, key), "count": count}
            for key, count in buckets_of(base, task_set).items()
        ],
        "ladder": recommendation.ladder,
        "first": lightest(recommendation),
        "why_reason": launch.needs_reason(form.algorithm, recommendation),
        "untrainable": launch.untrainable(base),
        "baseline": baseline,
        "success": plan.success_of(baseline),
        "data": data,
        "judged": judged,
        "standing": holds,
        "solved": reward.solved(form.algorithm, base, task_set, form.leave_out),
        "openings": ledger.openings(task_set),
        "datasets": Dataset.objects.filter(task_set=task_set, kind=form.known.data)[:OFFERED],
        "rollout_runs": _rollout_runs(task_set, form.rollouts),
        "smallest": None if smallest is None else smallest * 100,
        "assumed": assumed,
        "duration": plan.expected_duration(base, form.settings_now, form.algorithm),
        "running": TrainingRun.objects.filter(state=State.RUNNING, slot="local-0").exists(),
    }


@require_GET
@requires(Permission.VIEW)
def run(request: PageRequest, pk: int) -> HttpResponse:
    found = _run(request, pk)
    if found.points.filter(kind=Point.Kind.SAMPLES).exists():
        for task_set in found.dataset.task_sets:
            ledger.opened(task_set=task_set, kind=Opening.Kind.PAGE, subject=found, actor=request.actor)
    defaults = {
        "settings": show.settings_rows(found),
        "algorithm": ALGORITHMS[found.algorithm],
        "overridden": launch.needs_reason(found.algorithm, found.recommendation) if found.recommendation else "",
        "reward": reward.kept(found),
    }
    return render(request, "training/run.html", {**_live(found), **defaults})


@require_GET
@requires(Permission.VIEW)
def live(request: PageRequest, pk: int) -> HttpResponse:
    """Fragment: everything that moves. Nothing new answers 204; 286 ends the asking once the gate has spoken."""
    found = _run(request, pk)
    if request.GET.get("seen") == show.fingerprint(found):
        return HttpResponse(status=DONE if show.is_settled(found) else 204)
    context = _live(found)
    response = render(request, "training/_live.html", context, status=DONE if context["is_settled"] else 200)
    if found.is_finished:  # what only a finished run has stands outside of the fragment
        response["HX-Refresh"] = "true"
    return response


def _live(found: TrainingRun) -> dict[str, Any]:
    steps, stride = charts.step_points(found)
    return {
        "run": found,
        "others": show.others(found),
        "lineage": show.lineage(found),
        "progress": show.progress(found),
        "fingerprint": show.fingerprint(found),
        "is_settled": show.is_settled(found),
        "alerts": show.alerts(found, steps),
        "charts": charts.charts(found, steps, stride),
        "samples": show.samples(found),
        "log": show.log(found),
        "advice": show.failed_advice(found) if found.state == State.FAILED else "",
        "waits_for": _holder(found),
        "candidate": found.candidates.first(),
    }


@require_POST
@requires(Permission.TRAIN)
def cancel(request: PageRequest, pk: int) -> HttpResponse:
    found = _run(request, pk)
    try:
        launch.cancel(run=found, actor=request.actor)
    except StaleState as error:
        messages.info(request, f"Nothing was cancelled: {error}.")
    return redirect("training:run", request.project.slug, found.pk)


@require_POST
@requires(Permission.TRAIN)
def resume(request: PageRequest, pk: int) -> HttpResponse:
    found = _run(request, pk)
    try:
        launch.resume(run=found, actor=request.actor)
    except StaleState as error:
        messages.info(request, f"Nothing was resumed: {error}.")
    return redirect("training:run", request.project.slug, found.pk)


@require_GET
@requires(Permission.VIEW)
def dataset_page(request: PageRequest, name: str, version: int) -> HttpResponse:
    """What one dataset is made of, and its first rows."""
    found = _dataset(request, name, version)
    rows, problem = show.dataset_rows(found)
    context = {
        "dataset": found,
        "rows": rows,
        "problem": problem,
        "rollouts": EvalRun.objects.filter(project=request.project, pk=found.recipe.get("eval_run") or 0).first(),
        "beside": leaks.beside(contamination.shown(found)),
        "runs": found.training_runs.select_related("base__agent", "produced__agent").order_by("-pk")[:PAGE],
        "lineage": show.dataset_lineage(found),
        "mix": mix.parts_of(found),
    }
    return render(request, "training/dataset.html", context)


@require_GET
@requires(Permission.VIEW)
def download(request: PageRequest, name: str, version: int) -> FileResponse:
    """The rows as JSON Lines. Agents wrote them: they come as a file, never as a page."""
    found = _dataset(request, name, version)
    try:
        content = dataset.open_rows(found)
    except FileNotFoundError:
        raise Http404("the storage has lost this dataset's rows") from None
    filename = f"{found.name}-{found.version}.jsonl"
    return FileResponse(content, as_attachment=True, filename=filename, content_type="application/x-ndjson")


def _list(request: PageRequest, template: str, rows: QuerySet[Any], tab: str) -> HttpResponse:
    page = _page(request, rows)
    return redirect(request.path) if page is None else render(request, template, {"page": page, "tab": tab})


def _page(request: PageRequest, rows: QuerySet[Any]) -> Page[Any] | None:
    """The page that the address asks for; None when its cursor is none of ours."""
    try:
        page: Page[Any] = keyset(rows, cursor=request.GET.get("cursor", ""), limit=PAGE, query=request.GET)
    except BadCursor:
        return None
    page.total, page.about = about(rows)
    return page


def _run(request: PageRequest, pk: int) -> TrainingRun:
    rows = TrainingRun.objects.select_related(
        "project",
        "base__agent",
        "dataset",
        "task_set__environment_version__environment",
        "baseline",
        "produced__agent",
        "evaluation",
        "recommendation",
        "created_by",
        "reward_audit",
        "audit_override__created_by",
    )
    return get_object_or_404(rows, project=request.project, pk=pk)


def _dataset(request: PageRequest, name: str, version: int) -> Dataset:
    rows = Dataset.objects.select_related("task_set__environment_version__environment", "created_by", "project")
    return get_object_or_404(rows, project=request.project, name=name, version=version)


def _to_run(request: PageRequest, run: TrainingRun) -> HttpResponse:
    address = reverse("training:run", args=[request.project.slug, run.pk])
    if not request.htmx:
        return redirect(address)
    return HttpResponse(headers={"HX-Redirect": address})


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


def _offered(rows: QuerySet[Any], chosen: str) -> list[str]:
    """References for a list, the chosen one among them even when it is none of the newest, or none at all."""
    refs = [str(row) for row in rows[:OFFERED]]
    return refs if chosen in refs or not chosen else [chosen, *refs]


def _rollout_runs(task_set: TaskSet, chosen: EvalRun | None) -> list[EvalRun]:
    """Eval runs whose attempts can become rows, and the chosen one even when its cannot."""
    runs = EvalRun.objects.filter(task_set=task_set, split=Split.TRAIN, state=State.SUCCEEDED)
    found = list(runs.select_related("version__agent")[:OFFERED])
    return found if chosen is None or chosen in found else [chosen, *found]


def _chosen(form: forms.LaunchForm) -> str:
    """What the address keeps of the form: its references, not its fields."""
    kept = {
        "base": form.base_ref,
        "task_set": form.task_set_ref,
        "algorithm": form.algorithm,
        "dataset": str(form.dataset) if form.dataset else "",
        "rollouts": str(form.rollouts.pk) if form.rollouts else "",
        "leave_out": str(form.leave_out.pk) if form.leave_out else "",
    }
    return urlencode({name: value for name, value in kept.items() if value})


def _holder(run: TrainingRun) -> TrainingRun | None:
    """Who has the slot that a queued run waits for, when this project may know."""
    if run.state != State.QUEUED:
        return None
    return TrainingRun.objects.filter(project=run.project, slot=run.slot, state=State.RUNNING).first()
