"""The page that makes one dataset of several."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.refusals import Refused
from flywheel.training.datasets import dataset_mix
from flywheel.training.models import Dataset

OFFERED = 200


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def mix_page(request: PageRequest) -> HttpResponse:
    """Weights beside the project's datasets: looked at with GET, written with POST."""
    given = (request.POST if request.method == "POST" else request.GET).dict()
    kind = given.get("kind", "")
    kind = kind if kind in Dataset.Kind.values else _usual(request)
    offered = _offered(request, kind)
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
            _preview(context, parts)
    except Refused as error:
        context["problem"] = error.problem
    return render(request, "training/mix.html", context, status=422 if "problem" in context else 200)


def _usual(request: PageRequest) -> str:
    """The kind of the project's newest dataset, so that there is something to mix."""
    newest = Dataset.objects.filter(project=request.project).order_by("-pk").values_list("kind", flat=True).first()
    return newest or Dataset.Kind.TASKS


def _offered(request: PageRequest, kind: str) -> list[Dataset]:
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
            problem = f"the weight of {row['dataset']} is {row['weight'][:20]!r}; a number above 0 is wanted"
            raise Refused(problem, field="parts") from None
    return parts


def _preview(context: dict[str, Any], parts: list[dataset_mix.Part]) -> None:
    """Add the rows that each part would give to the context."""
    dataset_mix.check(parts)
    counts = dataset_mix.shares([part.rows for part, _ in parts], [weight for _, weight in parts])
    gives = {part.pk: count for (part, _), count in zip(parts, counts, strict=True)}
    for row in context["rows"]:
        row["given"] = gives.get(row["dataset"].pk)
    context |= {"total": sum(counts), "compared": parts[0][0].task_set}
