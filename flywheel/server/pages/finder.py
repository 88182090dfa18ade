"""The palette's search: objects by name or number, pages by any of their names, guides."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.db.models import Q
from django.http import JsonResponse
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, Project
from flywheel.agents.models import Agent, Version
from flywheel.core.text.glossary import TERMS
from flywheel.edge.numbers import key
from flywheel.environments.models import Environment, Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.failures.models import Queue
from flywheel.promotions.models import Candidate
from flywheel.server.pages import guides
from flywheel.training.models import TrainingRun
from flywheel.trajectories.annotations.project_buckets import every

MOST = 20
EACH = 5
"""Objects of one kind."""
PAGES: dict[str, tuple[str, Permission]] = {
    "trajectories:connect": ("Connect an agent: OpenTelemetry, OpenAI SDK, key", Permission.VIEW),
    "trajectories:import": ("Import trajectories from a file", Permission.VIEW),
    "trajectories:metrics": ("Metrics of production: success, latency, cost", Permission.VIEW),
    "trajectories:quarantine": ("Quarantine: rejected spans and lines", Permission.VIEW),
    "failures:queue": ("Review failures: the desk", Permission.REVIEW),
    "failures:queues": ("Review queues", Permission.VIEW),
    "failures:detectors": ("Detectors", Permission.VIEW),
    "failures:similar": ("Similar failures: clusters", Permission.VIEW),
    "failures:agreement": ("Agreement of reviewers: κ", Permission.VIEW),
    "environments:create": ("New environment", Permission.BUILD),
    "environments:import_eval": ("Import an OpenAI eval", Permission.BUILD),
    "environments:reward_recipes": ("Reward recipes", Permission.VIEW),
    "environments:reward_models": ("Reward models: judges that were trained on pairs", Permission.VIEW),
    "environments:taskless": ("Failures without a task", Permission.VIEW),
    "evals:new": ("New eval: score a version", Permission.BUILD),
    "evals:reward_audits": ("Reward audits", Permission.VIEW),
    "training:launch": ("Launch a training run: SFT, DPO, GRPO", Permission.TRAIN),
    "training:pipelines": ("Pipelines: training in stages", Permission.VIEW),
    "training:fixes": ("Fixes without training: prompt, tools, examples", Permission.VIEW),
    "training:datasets": ("Datasets", Permission.VIEW),
    "agents:new": ("New agent", Permission.BUILD),
    "promotions:policy": ("Gate policy: margins, significance", Permission.ADMIN),
    "settings:index": ("Settings: members and roles", Permission.ADMIN),
    "settings:keys": ("Settings: API keys", Permission.ADMIN),
    "settings:gateway": ("Settings: gateway", Permission.ADMIN),
    "settings:providers": ("Settings: model providers", Permission.ADMIN),
    "settings:prices": ("Settings: prices of models", Permission.ADMIN),
    "settings:redaction": ("Settings: redaction of secrets", Permission.ADMIN),
    "settings:retention": ("Settings: retention, how long data is kept", Permission.ADMIN),
    "settings:audit": ("Settings: audit log", Permission.ADMIN),
}
"""Pages beside the rooms' own, each by the words that it is looked for by, and who may open it."""

Place = tuple[str, str, str]
"""Label, kind, address."""


@require_GET
@requires(Permission.VIEW)
def find(request: PageRequest) -> JsonResponse:
    """Return up to ``MOST`` places whose names have every word of `q`: `{"places": [{"label", "kind", "url"}]}`."""
    words = request.GET.get("q", "")[:100].lower().split()
    found = _places(request.project, request.permissions, words) if words else iter(())
    rows = [{"label": label, "kind": kind, "url": url} for label, kind, url in islice(found, MOST)]
    return JsonResponse({"places": rows})


def _places(project: Project, permissions: frozenset[str], words: list[str]) -> Iterator[Place]:
    yield from _objects(project, words)
    for view, (label, permission) in PAGES.items():
        if permission in permissions and _has(label, words):
            yield label, "page", reverse(view, args=[project.slug])
    for name, bucket in every(project).items():
        if _has(f"{bucket.label} {name}", words):
            yield bucket.label, "category", reverse("failures:bucket", args=[project.slug, name])
    if _has("glossary: what each term means help", words):
        yield "Glossary", "help", reverse("help:glossary")
    for names in guides.SHELF.values():
        for name in names:
            if _has(f"{guides.read('guides', name).title} {name} guide help", words):
                yield guides.read("guides", name).title, "guide", reverse("help:guide", args=[name])
    for term in TERMS:
        if _has(term, words):
            yield term, "glossary", f"{reverse('help:glossary')}#{slugify(term)}"


def _objects(project: Project, words: list[str]) -> Iterator[Place]:
    """Yield objects by name, with a version's number behind an @, or by their own number such as `r-12` or `t-118`."""

    def at(view: str, *rest: Any) -> str:
        return reverse(view, args=[project.slug, *rest])

    name, _, number = words[0].partition("@")
    if len(words) == 1 and (known := re.fullmatch(r"(?:(r|t)-|#)?([0-9]{1,9})", words[0])):
        yield from _numbered(project, known[1] or "", int(known[2]))
    named = Q()
    for word in [name, *words[1:]]:
        named &= Q(name__icontains=word)
    for agent in Agent.objects.filter(named, project=project)[:EACH]:
        yield agent.name, "agent", at("agents:agent", agent.name)
        versions = Version.objects.filter(agent=agent).order_by("-number")
        if number:
            versions = versions.filter(number=key(number) or 0)
        for version in versions[:EACH]:
            yield f"{agent.name}@{version.number}", "version", at("agents:version", agent.name, version.number)
    for environment in Environment.objects.filter(named, project=project)[:EACH]:
        yield environment.name, "environment", at("environments:environment", environment.name)
    for task_set in TaskSet.objects.filter(named, project=project).order_by("name", "-version")[:EACH]:
        yield str(task_set), "task set", at("environments:task_set", task_set.name, task_set.version)
    for queue in Queue.objects.filter(named, project=project)[:EACH]:
        yield queue.name, "queue", at("failures:queue_detail", queue.pk)


def _numbered(project: Project, kind: str, number: int) -> Iterator[Place]:
    """Yield what has this number: training runs (r), tasks (t); without a letter evals and candidates as well."""

    def at(view: str, *rest: Any) -> str:
        return reverse(view, args=[project.slug, *rest])

    if kind in ("", "r") and TrainingRun.objects.filter(project=project, pk=number).exists():
        yield f"r-{number}", "training run", at("training:run", number)
    if kind in ("", "t"):
        for task in Task.objects.filter(project=project, number=number).select_related("environment")[:EACH]:
            yield f"{task} of {task.environment.name}", "task", at("environments:task", task.environment.name, number)
    if not kind and EvalRun.objects.filter(project=project, pk=number).exists():
        yield f"Eval {number}", "eval", at("evals:run", number)
    if not kind and Candidate.objects.filter(project=project, pk=number).exists():
        yield f"Candidate {number}", "candidate", at("promotions:candidate", number)


def _has(label: str, words: list[str]) -> bool:
    return all(word in label.lower() for word in words)
