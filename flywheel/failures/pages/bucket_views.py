"""One bucket: what is in it, how far it is, whose it is; defining and archiving those of the project's own."""

from typing import Any

from django.apps import apps
from django.db.models import F
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import AuditEntry, Permission, Project
from flywheel.accounts.project_settings import audit_log
from flywheel.core.detectors.standard_buckets import BUCKETS, Bucket
from flywheel.core.evidence.statistics.estimates import proportion
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Refused, show_at_field
from flywheel.failures.buckets import bucket_counts, bucket_definitions, bucket_lifecycle
from flywheel.failures.detectors import detector_settings
from flywheel.failures.models import Decision, Failure, Priority, ProjectBucket, Severity
from flywheel.failures.pages import bucket_forms
from flywheel.failures.project_reviewers import reviewers
from flywheel.failures.queues import open_queue
from flywheel.trajectories.models import Trajectory

EXAMPLES = 10
HISTORY = 30
LOWEST = 1e-5
"""Evidence of less than this part of its bound is drawn at the lower edge."""


@require_GET
@requires(Permission.VIEW)
def bucket(request: PageRequest, key: str) -> HttpResponse:
    return _page(request, key)


@require_POST
@requires(Permission.REVIEW)
def steer(request: PageRequest, key: str) -> HttpResponse:
    """Change whose it is, how urgent or how bad: each its own small form."""
    said = {name: request.POST[name] for name in ("owner", "priority", "severity") if name in request.POST}
    bucket_lifecycle.steer(project=request.project, key=_bucket(request, key).key, actor=request.actor, **said)
    return redirect("failures:bucket", request.project.slug, key)


@require_POST
@requires(Permission.REVIEW)
def close(request: PageRequest, key: str) -> HttpResponse:
    return _turn(request, key, bucket_lifecycle.close)


@require_POST
@requires(Permission.REVIEW)
def reopen(request: PageRequest, key: str) -> HttpResponse:
    return _turn(request, key, bucket_lifecycle.reopen)


@require_POST
@requires(Permission.REVIEW)
def answer_recurrence(request: PageRequest, pk: int) -> HttpResponse:
    """Say whether what the watch saw is the failure that was mended."""
    row = get_object_or_404(request.project.recurrences, pk=pk)
    reason, is_same = request.POST.get("reason", ""), request.POST.get("same") == "yes"
    try:
        bucket_lifecycle.answer(recurrence=row, actor=request.actor, is_same=is_same, reason=reason)
    except Refused as error:
        return _page(request, row.bucket, problem=f"Nothing was changed. {error}.", reason=reason)
    return redirect("failures:bucket", request.project.slug, row.bucket)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def define(request: PageRequest) -> HttpResponse:
    return _edit(request, None)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def edit(request: PageRequest, key: str) -> HttpResponse:
    return _edit(request, get_object_or_404(request.project.buckets, key=key))


@require_POST
@requires(Permission.BUILD)
def archive(request: PageRequest, key: str) -> HttpResponse:
    row = get_object_or_404(request.project.buckets, key=key)
    bucket_definitions.archive(bucket=row, actor=request.actor, is_archived=request.POST.get("archived") != "0")
    return redirect("failures:bucket", request.project.slug, key)


def days_of(request: PageRequest) -> int:
    days = number(request.GET.get("days", ""))
    return days if days in bucket_counts.PERIODS else 14


def _page(request: PageRequest, key: str, problem: str = "", reason: str = "") -> HttpResponse:
    project, known = request.project, _bucket(request, key)
    days = bucket_counts.period(project, days_of(request))
    figures = bucket_counts.of_bucket(project, known, days)
    found = bucket_lifecycle.of(project, key)
    labelled = Failure.objects.filter(project=project, current=True, bucket=key).exclude(decision=Decision.REJECTED)
    waiting = open_queue.waiting(project, open_queue.Filters(bucket=key, order="newest"))
    tasks = project.tasks.filter(bucket=key)
    history = audit_log.entries(project).filter(subject=f"bucket {key}")
    candidates, confirmed_count = _candidates(project, key), labelled.count()
    return render(
        request,
        "failures/bucket.html",
        {
            "bucket": known,
            "parent": BUCKETS.get(known.parent),
            "detectors": detector_settings.proposing(project, key),
            "life": found,
            "chain": _chain(request, key, found, confirmed_count, candidates),
            "back": _back(project, found),
            "recurrence_chart": _recurrence_chart(found),
            "since_closing": bucket_lifecycle.since_closing(found) if found.row.is_closed else 0,
            "people": [user.username for user in reviewers(project)],
            "priorities": Priority.choices,
            "severities": Severity.choices,
            "problem": problem,
            "reason": reason,
            "figures": figures,
            "days": len(days),
            "periods": bucket_counts.PERIODS,
            "share": proportion(sum(figures["daily"].values()), sum(figures["traffic"].values())),
            "in_period": sum(figures["daily"].values()),
            "chart": bucket_counts.share_chart(figures, days),
            "waiting": waiting[:EXAMPLES],
            "waiting_count": waiting.count(),
            "confirmed": labelled.select_related("trajectory", "labelled_by").prefetch_related(
                "tasks__environment", "also_tasks__environment"
            )[:EXAMPLES],
            "confirmed_count": confirmed_count,
            "tasks": tasks.select_related("environment")[:EXAMPLES],
            "task_count": tasks.filter(retired_at=None).count(),
            "runs": _runs(project, key),
            "candidates": candidates,
            "history": [(entry, _words(entry)) for entry in history.order_by("-id")[:HISTORY]],
        },
        status=422 if problem else 200,
    )


def _back(project: Project, life: bucket_lifecycle.Life) -> list[Trajectory]:
    """Trajectories by which the bucket came back and of which no person has decided, the newest first."""
    recurrence = life.row.reopened_by_watch
    if recurrence is None or recurrence.answer:
        return []
    rows = Trajectory.objects.filter(project=project, pk__in=recurrence.trajectories, label="")
    return list(rows.order_by("-started_at").only("trace_id", "title", "started_at")[:EXAMPLES])


def _recurrence_chart(life: bucket_lifecycle.Life) -> dict[str, Any] | None:
    """The evidence by which the watch reopened it, as the wealth of a ramp is drawn: a part of what it had to reach."""
    recurrence = life.row.reopened_by_watch
    if recurrence is None or not recurrence.bound or not recurrence.points:
        return None
    parts = [max(LOWEST, evidence / recurrence.bound) for _, evidence in recurrence.points]
    return {
        "kind": "line",
        "title": "Evidence against the claim",
        "key": f"recurrence-{recurrence.pk}",
        "note": "as a part of its bound; at 1 the claim is broken",
        "x": {"title": "watched sessions"},
        "y": {"title": "part of the bound", "log": True, "range": [LOWEST, 3 * max([1.0, *parts])]},
        "height": "short",
        "baseline": 1,
        "baseline_label": "broken",
        "series": [{"name": "evidence", "role": "plain", "x": [at for at, _ in recurrence.points], "y": parts}],
    }


def _turn(request: PageRequest, key: str, verb: Any) -> HttpResponse:
    """Close it, or open it again."""
    reason = request.POST.get("reason", "")
    try:
        verb(project=request.project, key=_bucket(request, key).key, actor=request.actor, reason=reason)
    except Refused as error:
        return _page(request, key, problem=f"Nothing was changed. {error}.", reason=reason)
    return redirect("failures:bucket", request.project.slug, key)


def _edit(request: PageRequest, row: ProjectBucket | None) -> HttpResponse:
    form = bucket_forms.BucketForm(request.project, row, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            if row is None:
                row = bucket_definitions.define(project=request.project, actor=request.actor, wanted=form.definition)
            else:
                bucket_definitions.change(bucket=row, actor=request.actor, wanted=form.definition)
            return redirect("failures:bucket", request.project.slug, row.key)
        except Refused as error:
            show_at_field(form, error)
    status = 422 if form.errors else 200
    return render(request, "failures/edit_bucket.html", {"form": form, "bucket": row}, status=status)


def _chain(
    request: PageRequest, key: str, found: bucket_lifecycle.Life, labels: int, candidates: list[Any]
) -> list[dict[str, Any]]:
    """label → tasks → runs → prompt search → fix trial → candidate → live: as far as it has come."""
    slug = request.project.slug
    page = reverse("failures:bucket", args=[slug, key])
    chain = [{"label": _counted(labels, "label"), "url": f"{page}#confirmed" if labels else ""}]
    for count, word in ((found.tasks, "task"), (found.runs, "run")):
        if count:
            chain.append({"label": _counted(count, word), "url": f"{page}#{word}s"})
    searches = apps.get_model("training.PromptSearch").objects.filter(project=request.project, bucket=key)
    if search := searches.order_by("-pk").first():
        chain.append({"label": str(search), "url": reverse("training:search", args=[slug, search.pk])})
    if trial := request.project.fix_trials.filter(bucket=key).order_by("-pk").first():
        chain.append({"label": str(trial), "url": reverse("training:fix_trial", args=[slug, trial.pk])})
    if candidates:
        url = reverse("promotions:candidate", args=[slug, candidates[0].pk])
        chain.append({"label": f"candidate {candidates[0].pk}", "url": url})
    if fix := next((each for each in found.fixes if each.stands), None):
        url = reverse("agents:version", args=[slug, fix.version.agent.name, fix.version.number])
        chain.append({"label": f"{fix.version} live", "url": url})
    return chain


def _runs(project: Project, key: str) -> list[Any]:
    """The latest training runs on a task set that has tasks of the bucket."""
    sets = project.task_sets.filter(tasks__bucket=key, training_runs__isnull=False).distinct()
    found = [run for each in sets.prefetch_related("training_runs__base__agent") for run in each.training_runs.all()]
    return sorted(found, key=lambda run: -run.pk)[:EXAMPLES]


def _candidates(project: Project, key: str) -> list[Any]:
    """The latest versions that were compared on its tasks, each with what the comparison says of them (`slice`)."""
    compared = project.candidates.filter(version_eval__task_set__tasks__bucket=key).values("pk")
    rows = project.candidates.filter(pk__in=compared).select_related("version__agent").defer("report").order_by("-pk")
    found = list(rows.annotate(slices=F("report__comparison__slices"))[:EXAMPLES])
    for row in found:
        row.slice = next((each for each in row.slices or [] if each["name"] == key), None)  # type: ignore[attr-defined]
    return found


def _words(entry: AuditEntry) -> str:
    """Put the action in words: `closed it`, `set priority to high`."""
    plain = {
        "failures.define_bucket": "defined it",
        "failures.archive_bucket": "archived it",
        "failures.unarchive_bucket": "restored it",
        "failures.close_bucket": "closed it",
        "failures.reopen_bucket": "reopened it by confirming a failure" if "failure" in entry.data else "reopened it",
    }
    changed = "; ".join(f"set {name} to {value or 'nothing'}" for name, value in entry.data.items())
    return plain.get(entry.action) or changed or entry.action


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _bucket(request: PageRequest, key: str) -> Bucket:
    known = bucket_definitions.every(request.project).get(key)
    if known is None:
        raise Http404
    return known
