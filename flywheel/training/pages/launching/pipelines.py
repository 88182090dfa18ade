"""Pages of pipelines: all of them, and one with its stages side by side and what a person can do next."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import job_pages
from flywheel.edge.jobs import State
from flywheel.edge.paging import page_at
from flywheel.edge.polling import loaded_anew
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun
from flywheel.training.launch import reward_lock
from flywheel.training.launch.fix_recommendation import baseline_of
from flywheel.training.models import Pipeline, PipelineStage, TrainingRun
from flywheel.training.pipelines import pipeline_control, prompt_stages, stage_gates

VERBS = {
    "stop": pipeline_control.stop,
    "resume": pipeline_control.resume,
    "retry": pipeline_control.retry,
    "end": pipeline_control.end,
}


@require_GET
@requires(Permission.VIEW)
def pipelines(request: PageRequest) -> HttpResponse:
    """List the pipelines, newest first."""
    rows = Pipeline.objects.filter(project=request.project).select_related("base__agent", "created_by")
    page = page_at(request, rows.prefetch_related("stages__task_set"), is_counted=True)
    return render(request, "training/pipelines.html", {"page": page, "tab": "pipelines"})


@require_GET
@requires(Permission.VIEW)
def pipeline_page(request: PageRequest, pipeline: int) -> HttpResponse:
    return render(request, "training/pipeline.html", _context(_pipeline(request, pipeline)))


@require_GET
@requires(Permission.VIEW)
def pipeline_live(request: PageRequest, pipeline: int) -> HttpResponse:
    """Fragment: the stages. The page is loaded anew once the pipeline goes on no more, for what can be done then."""
    found = _pipeline(request, pipeline)
    if found.state != Pipeline.State.RUNNING:
        return loaded_anew()
    return render(request, "training/_stages.html", _context(found))


@require_POST
@requires(Permission.TRAIN)
def move_pipeline(request: PageRequest, pipeline: int, verb: str) -> HttpResponse:
    """Stop it, resume it, retry its stage, or end it."""
    with job_pages.refusal_told(request, "Nothing was changed"):
        VERBS[verb](_pipeline(request, pipeline), request.actor)
    return redirect("training:pipeline", request.project.slug, pipeline)


@require_POST
@requires(Permission.TRAIN)
def let_pipeline_on(request: PageRequest, pipeline: int) -> HttpResponse:
    """Let it go on though the gate was not passed, for a reason."""
    with job_pages.refusal_told(request, "Nothing was changed"):
        pipeline_control.let_on(_pipeline(request, pipeline), request.actor, request.POST.get("reason", ""))
    return redirect("training:pipeline", request.project.slug, pipeline)


def _pipeline(request: PageRequest, pk: int) -> Pipeline:
    rows = Pipeline.objects.filter(project=request.project).select_related("base__agent", "created_by", "project")
    return get_object_or_404(rows, pk=pk)


def _context(pipeline: Pipeline) -> dict[str, Any]:
    rows = pipeline.stages.select_related("task_set", "dataset", "draft__agent", "draft__parent__agent")
    stages = list(rows.select_related("draft_eval__version__agent", "base_eval__version__agent").order_by("number"))
    every = TrainingRun.objects.filter(stage__in=stages).order_by("pk")
    runs = list(every.select_related("base__agent", "produced__agent", "evaluation", "stage", "audit_override"))
    steps: list[dict[str, Any]] = []
    for stage in stages:
        before = steps[-1] if steps else None
        steps.append(_step(pipeline, stage, [run for run in runs if run.stage_id == stage.pk], before))
    return {"pipeline": pipeline, "steps": steps, "tab": "pipelines", **_outlook(pipeline, steps)}


def _step(
    pipeline: Pipeline, stage: PipelineStage, runs: list[TrainingRun], before: dict[str, Any] | None
) -> dict[str, Any]:
    """A stage with the run of its present attempt or its draft's evals, the runs of earlier ones, and what the stage
    before came to at its gate."""
    stage.pipeline = pipeline
    run = next((each for each in runs if each.idempotency_key == stage.run_key), None)
    is_judged = before is not None and before["judged"] in [(name, stage.entry.get(name)) for name in ("run", "eval")]
    made = ("eval", stage.draft_eval_id) if stage.draft else ("run", run.pk if run else None)
    evals = prompt_stages.evals_of(stage)
    return {
        "stage": stage,
        "run": run,
        "evals": evals,
        "broken": next((each for each in evals if each.state in (State.FAILED, State.CANCELLED)), None),
        "prompt": prompt_stages.results_of(stage),
        "judged": made if made[1] else None,
        "version": stage.draft or (run.produced if run else None),
        "earlier": [each for each in runs if each != run],
        "limits": stage.entry["checks"] if is_judged else stage_gates.limits_of(stage.gate),
        "let_on": stage.entry.get("let_on") if is_judged else None,
        "moved": reward_lock.moved_from(run) if run else None,
        "unrenewed": reward_lock.unrenewed(run) if run and stage.number > 1 else None,
    }


def _outlook(pipeline: Pipeline, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The eval that it waits for, and the comparison of what the last stage made with its base."""
    now, last = steps[pipeline.at - 1], steps[-1]["run"]
    waits_for = compared = None
    if pipeline.state == Pipeline.State.RUNNING and now["judged"] is None and pipeline.at > 1:
        base = steps[pipeline.at - 2]["version"]
        runs = EvalRun.objects.filter(version=base, task_set=now["stage"].task_set, split=Split.HELD_OUT)
        waits_for = runs.order_by("-pk").first()
    if last and last.evaluation and last.evaluation.is_finished:
        first = baseline_of(pipeline.base, last.evaluation.task_set)
        compared = (last.evaluation, first) if first else None
    return {"waits_for": waits_for, "compared": compared}
