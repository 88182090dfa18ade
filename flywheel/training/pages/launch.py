"""From what should change to a run: what the fix ladder said, and launching."""

import json
from dataclasses import replace
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_http_methods
from django_htmx.http import HttpResponseClientRedirect

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.agents.version_content import OPENAI
from flywheel.core.recipes import ALGORITHMS, offered
from flywheel.edge.htmx import answer, wants_fragment
from flywheel.edge.jobs import State
from flywheel.edge.numbers import key, number
from flywheel.edge.paging import page_at
from flywheel.environments import ledger
from flywheel.environments.models import RewardRecipe, Split, TaskSet
from flywheel.environments.task_sets.set_power import set_power
from flywheel.evals.models import EvalRun
from flywheel.training.launch import (
    launch_estimate,
    memory_estimate,
    preview_jobs,
    reward_lock,
    run_control,
    run_sweeps,
    teacher_choice,
    validation_split,
)
from flywheel.training.launch.fix_recommendation import baseline_of, buckets_of, inherited_of, lightest
from flywheel.training.models import Dataset, Pipeline, Recommendation, TokenPreview, TrainingRun
from flywheel.training.pages import launch_form
from flywheel.training.pages.launching import hosted_training, stage_forms
from flywheel.training.pages.runs import run_of
from flywheel.training.runs import device_queue
from flywheel.trajectories.annotations.project_buckets import name_of

OFFERED = 50
"""References that a list in the form offers; any other can be in the address."""


@require_GET
@requires(Permission.VIEW)
def recommendations(request: PageRequest) -> HttpResponse:
    """List the fix ladder's recommendations, newest first."""
    rows = Recommendation.objects.filter(project=request.project).select_related(
        "version__agent", "task_set", "eval_run"
    )
    context = {"page": page_at(request, rows, is_counted=True), "tab": "recommendations"}
    return render(request, "training/recommendations.html", context)


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def launch_page(request: PageRequest) -> HttpResponse:
    """One page from what should change to the run. htmx asks it again at each choice and gets the form alone."""
    data = (request.POST if request.method == "POST" else request.GET).dict()
    if "like" in request.GET:
        data = launch_form.as_data(run_of(request, key(request.GET["like"]) or 0))
    form = launch_form.LaunchForm(request.project, data)
    shown = form
    made: list[TrainingRun] | Pipeline | TokenPreview | None = None
    if "back" in data and (prompt := stage_forms.prompt_before(form)):
        return redirect(f"{reverse('training:prompt_stage', args=[request.project.slug])}?{prompt}")
    if "back" in data:
        shown = stage_forms.before(form)
    elif request.method == "POST" and "then" in data:
        shown = stage_forms.following(form, request.actor) or form
    elif request.method == "POST":
        made = _preview(request, form) if "preview" in data else _launch(request, form)
    if made:
        address = _address(request, made)
        return HttpResponseClientRedirect(address) if request.htmx else redirect(address)
    status = 422 if request.method == "POST" and shown is form else 200
    context = _launch_context(request, shown)
    response = answer(request, "training/launch.html", "training/_launch.html", context, status)
    if request.method == "GET" and wants_fragment(request):
        response["HX-Replace-Url"] = f"{request.path}?{_chosen(shown)}"
    return response


def _address(request: PageRequest, made: list[TrainingRun] | Pipeline | TokenPreview) -> str:
    """The page of what was made: of several runs, the one that compares them."""
    slug = request.project.slug
    if isinstance(made, Pipeline):
        return reverse("training:pipeline", args=[slug, made.pk])
    if isinstance(made, TokenPreview):
        return reverse("training:preview", args=[slug, made.pk])
    if len(made) == 1:
        return reverse("training:run", args=[slug, made[0].pk])
    chosen = urlencode({"run": [run.pk for run in made]}, doseq=True)
    return f"{reverse('training:compare', args=[slug])}?{chosen}"


def _launch(request: PageRequest, form: launch_form.LaunchForm) -> list[TrainingRun] | Pipeline | None:
    """The run, those of the sweep, or the pipeline; None with everything that is wrong noted in the form."""
    if form.earlier:
        return stage_forms.launch(form, request.actor)
    if wanted := form.request():
        with form.refusals():
            if form.grid:
                return run_sweeps.launch_sweep(wanted, form.grid, request.actor)[0]
            return [run_control.launch(wanted, request.actor)[0]]
    return None


def _preview(request: PageRequest, form: launch_form.LaunchForm) -> TokenPreview | None:
    """A preview of the dataset that the run would have; None with everything that is wrong noted."""
    if wanted := form.request():
        with form.refusals():
            speaker = stage_forms.speaker(form)
            wanted = replace(wanted, speaker=speaker)
            made, _ = preview_jobs.preview(
                base=speaker or wanted.base,
                dataset=run_control.find_data(wanted, form.known, request.actor),
                actor=request.actor,
                task_set=wanted.task_set,
                algorithm=wanted.algorithm,
                settings=wanted.settings,
            )
            return made
    return None


def _launch_context(request: PageRequest, form: launch_form.LaunchForm) -> dict[str, Any]:
    chosen, base, task_set, recommendation = form.cleaned_data, form.base, form.task_set, form.recommendation
    rollouts, dataset = chosen.get("rollouts"), chosen.get("dataset")
    context: dict[str, Any] = {
        "form": form,
        "chosen": chosen,
        "versions": _offered(
            Version.objects.filter(agent__project=request.project)
            .select_related("agent")
            .order_by(ExpressionWrapper(Q(weights=None), BooleanField()), "-pk"),
            form.refs["base"],
        ),
        "task_sets": _offered(TaskSet.objects.filter(project=request.project).order_by("-pk"), form.refs["task_set"]),
        "algorithms": ALGORITHMS.values(),
        "recommendation": recommendation,
        "earlier": stage_forms.outline(form),
        "gate_fields": stage_forms.gate_fields(form),
    }
    if base is None or task_set is None or recommendation is None:
        return context
    context |= {
        "buckets": [
            {"key": key, "label": name_of(request.project, key), "count": count}
            for key, count in buckets_of(base, task_set).items()
        ],
        "inherited": inherited_of(base, task_set),
        "ladder": recommendation.ladder,
        "first": lightest(recommendation),
    }
    if run_control.untrainable(base):
        return context | {"roads": hosted_training.roads(base, task_set)}
    baseline = baseline_of(base, task_set)
    data = launch_estimate.data_of(task_set, form.known.data, rollouts, baseline, form.left_out, dataset)
    recipe = data.draft.recipe if data.draft else {}
    planned, reward = Dataset(task_set=task_set, recipe=recipe), chosen.get("reward")
    judged, holds = reward_lock.standing_of(form.known.name, base, planned, recipe=reward) or (None, None)
    return context | {
        "why_reason": "" if form.earlier else run_control.needs_reason(form.known.name, recommendation),
        "baseline": baseline,
        "wants_baseline": baseline is None and form.known.makes_policy,
        "success": launch_estimate.success_of(baseline),
        "data": data,
        "judged": judged,
        "standing": holds,
        "solved": reward_lock.solved(form.known.name, base, task_set, chosen.get("leave_out")),
        "openings": ledger.openings(task_set),
        "datasets": _datasets(task_set, form.known.data),
        "replays": _datasets(task_set, Dataset.Kind.SFT) if form.known.practises else [],
        "rollout_runs": _rollout_runs(task_set, rollouts),
        "can_show": set_power(task_set, base.pk) if form.known.makes_policy else None,
        "validation": _validation(form, task_set),
        **(forecast := _forecast(form, base, task_set, baseline, data)),
        **_reinforced(form, base, forecast["duration"]),
        "teachers": _teachers(base, chosen.get("teacher"), form.stage) if form.known.has_teacher else [],
        "recipes": _offered(RewardRecipe.objects.filter(project=request.project), form["reward"].data or "")
        if form.known.is_reinforced
        else [],
        "places": device_queue.places(task_set.project),
    }


def _forecast(
    form: launch_form.LaunchForm,
    base: Version,
    task_set: TaskSet,
    baseline: EvalRun | None,
    data: launch_estimate.Data,
) -> dict[str, Any]:
    """The part of the page's context that is about memory, time, and what is asked of others."""
    dataset = form.cleaned_data.get("dataset")
    memory, problem = memory_estimate.expected_memory(
        base=base,
        algorithm=form.known.name,
        settings=form.settings_now,
        tuning=form.tuning_now,
        dataset=dataset,
        task_set=task_set,
        teacher=form.cleaned_data.get("teacher"),
        rows=data.draft.rows if data.draft else (),
    )
    operations = memory.forecast.operations if memory else None
    return {
        "memory": memory,
        "memory_problem": problem,
        "forecast": memory.to_json() if memory else {},
        "fitting": _fitting(memory),
        "proposed": [
            {"row": each, "fields": json.dumps({launch_form.PREFIX + each.setting: launch_form.write(each.value)})}
            for each in launch_estimate.proposed_lengths(form.known.name, form.settings_now, task_set, baseline, memory)
        ],
        "duration": launch_estimate.expected_duration(base, form.settings_now, form.known.name, operations),
        "asked": launch_estimate.expected_questions(
            form.known.name,
            form.settings_now,
            (dataset.task_sets if dataset else []) or [task_set],
            baseline,
            form.cleaned_data.get("reward"),
        ),
        "readings": teacher_choice.expected_readings(
            form.cleaned_data.get("teacher"),
            form.settings_now,
            memory.lengths.longest if memory else None,
            (dataset.task_sets if dataset else []) or [task_set],
        ),
    }


def _reinforced(
    form: launch_form.LaunchForm, base: Version, duration: launch_estimate.Duration | None
) -> dict[str, Any]:
    """The time that the ladder's reinforcement would take with its usual settings, as far as earlier runs tell."""
    algorithm = offered(fix="rlvr")
    if form.known != algorithm:
        usual = run_control.default_settings(algorithm.name, base, run_control.usual_mode(base))
        duration = launch_estimate.expected_duration(base, usual, algorithm.name)
    return {"rl_algorithm": algorithm, "rl_time": duration}


def _fitting(memory: memory_estimate.Memory | None) -> str:
    """The form's fields in JSON, as a proposal that fits would fill them; empty where there is nothing to propose."""
    if memory is None or memory.proposal is None:
        return ""
    fields = {launch_form.PREFIX + name: launch_form.write(value) for name, value in memory.proposal.settings.items()}
    return json.dumps(fields | ({"mode": memory.proposal.mode} if memory.proposal.mode else {}))


def _validation(form: launch_form.LaunchForm, task_set: TaskSet) -> dict[str, Any] | None:
    """Count the train tasks that a run would keep to validate on, or say why there are none; None where it wants
    none, and for a reward model, which keeps pairs aside."""
    share = form.settings_now.get("validation_share")
    if not share or not form.known.makes_policy:
        return None
    dataset, seed = form.cleaned_data.get("dataset"), number(form["seed"].data or "") or 0
    sets = (dataset.task_sets if dataset else []) or [task_set]
    kept = sum(len(validation_split.choose_tasks(each, share, seed)) for each in sets)
    return {"tasks": kept, "problem": "" if kept else "its train tasks come from a single source"}


def _offered(rows: QuerySet[Any], chosen: str) -> list[str]:
    """References for a list, the chosen one among them even when it is none of the newest, or none at all."""
    refs = [str(row) for row in rows[:OFFERED]]
    return refs if chosen in refs or not chosen else [chosen, *refs]


def _teachers(base: Version, chosen: Version | None, stage: int) -> list[str]:
    """Versions whose probabilities may be read: with weights here, others than the base, which only a later stage can
    learn from; and hosted models, whose endpoint proves that it gives them when the run begins."""
    rows = Version.objects.filter(agent__project=base.agent.project_id)
    rows = rows.filter(Q(weights__isnull=False) | Q(endpoint__kind=OPENAI))
    rows = rows.exclude(pk=base.pk) if stage == 1 else rows
    return _offered(rows.select_related("agent").order_by("-pk"), str(chosen or ""))


def _datasets(task_set: TaskSet, kind: str) -> QuerySet[Dataset]:
    """Those of the set, and those from elsewhere, with rows that the algorithm can learn from."""
    rows = Dataset.objects.filter(Q(task_set=task_set) | Q(task_set=None), project=task_set.project, kind=kind)
    return rows.select_related("task_set")[:OFFERED]


def _rollout_runs(task_set: TaskSet, chosen: EvalRun | None) -> list[EvalRun]:
    """Eval runs whose attempts can become rows, and the chosen one even when its cannot."""
    runs = EvalRun.objects.filter(task_set=task_set, split=Split.TRAIN, state=State.SUCCEEDED)
    found = list(runs.select_related("version__agent")[:OFFERED])
    return found if chosen is None or chosen in found else [chosen, *found]


def _chosen(form: launch_form.LaunchForm) -> str:
    """Return the query string that keeps the form's references, not its fields."""
    kept_rows = ("dataset", "rollouts", "leave_out", "teacher", "reward", "replay")
    rows = {name: form.cleaned_data.get(name) for name in kept_rows}
    kept = {
        **form.refs,
        "algorithm": form.known.name,
        **{name: str(row.pk if isinstance(row, EvalRun) else row) for name, row in rows.items() if row},
        "earlier": form.earlier_text,
    }
    return urlencode({name: value for name, value in kept.items() if value})
