"""The page of this installation's vLLM servers: how each is, and which base it has."""

from typing import Any

from django import forms
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, Project
from flywheel.agents.models import ChosenBase
from flywheel.agents.references import find_version
from flywheel.agents.weights import chosen_bases
from flywheel.edge.htmx import answer
from flywheel.edge.refusals import Refused
from flywheel.evals.serving.loaded_adapters import base_name
from flywheel.system import env


class BaseForm(forms.Form):
    place = forms.TypedChoiceField(label="Server", coerce=int, empty_value="0", required=False)
    version = forms.ChoiceField(label="Base")
    anyway = forms.BooleanField(label="Replace anyway", required=False)

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows = chosen_bases.offered(project)
        bases = [(str(row), f"base of {row}, {_size(row.weights.size)}") for row in rows if row.weights]
        self.fields["version"].choices = bases  # type: ignore[attr-defined]
        servers = list(enumerate(env.vllm_urls()))
        empty = [place for place, _ in servers if chosen_bases.chosen(place) is None]
        names = [(at, f"Server {at + 1}, {url}{', no base yet' if at in empty else ''}") for at, url in servers]
        self.fields["place"].choices = names  # type: ignore[attr-defined]
        self.fields["place"].initial = empty[0] if empty else 0


@require_GET
@requires(Permission.VIEW)
def serving(request: PageRequest) -> HttpResponse:
    """The page on how the server is."""
    return _page(request, BaseForm(request.project))


@require_POST
@requires(Permission.ADMIN)
def choose(request: PageRequest) -> HttpResponse:
    """Have the server start with another base."""
    form = BaseForm(request.project, request.POST)
    if form.is_valid():
        version = find_version(request.project, form.cleaned_data["version"])
        try:
            place, anyway = int(form.cleaned_data["place"]), form.cleaned_data["anyway"]
            chosen_bases.choose(version=version, actor=request.actor, place=place, anyway=anyway)
            return redirect("evals:serving", request.project.slug)
        except Refused as refused:
            form.add_error(refused.field or None, str(refused))
    return _page(request, form, status=400)


def _page(request: PageRequest, form: BaseForm, status: int = 200) -> HttpResponse:
    urls, gpus = env.vllm_urls(), env.serve_gpus()
    context = {
        "form": form,
        "servers": [
            _server(request.project, url, gpus[place] if gpus else "", chosen_bases.chosen(place))
            for place, url in enumerate(urls)
        ],
        "is_kept": env.serve() == "vllm",
        "url": env.vllm_url(),
    }
    return answer(request, "evals/serving.html", "evals/_served_bases.html", context, status)


def _server(project: Project, url: str, gpu: str, row: ChosenBase | None) -> dict[str, Any]:
    return {
        "url": url,
        "gpu": gpu,
        "row": row,
        "name": base_name(row.version.weights.digest) if row and row.version.weights else "",
        "is_ours": row is not None and row.version.agent.project_id == project.pk,
    }


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
