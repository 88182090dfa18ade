"""Settings › Models: keys for the servers of models, entered here or set by the operator."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, ProviderKey
from flywheel.accounts.pages.forms import NewProviderKey
from flywheel.accounts.project_settings import provider_connection, provider_keys
from flywheel.edge.refusals import refusal_shown


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def provider_index(request: PageRequest) -> HttpResponse:
    """The project's keys, those of the operator, and a form for another."""
    form = NewProviderKey(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with refusal_shown(form):
            key = provider_keys.enter(project=request.project, actor=request.actor, **form.cleaned_data)
            messages.success(request, f"{key.name} saved. It is sent to {key.base_url} only.")
            return redirect("settings:providers", project=request.project.slug)
    return render(request, "accounts/providers.html", _context(request, form), status=422 if form.errors else 200)


@require_POST
@requires(Permission.ADMIN)
def try_provider(request: PageRequest, pk: int) -> HttpResponse:
    """Ask the key's server which models it has."""
    key = get_object_or_404(ProviderKey, pk=pk, project=request.project)
    tried = provider_connection.try_connection(key)
    say = messages.success if tried.works else messages.error
    say(request, f"{key.name}: {tried.words}")
    return redirect("settings:providers", project=request.project.slug)


@require_POST
@requires(Permission.ADMIN)
def remove_provider(request: PageRequest, pk: int) -> HttpResponse:
    key = get_object_or_404(ProviderKey, pk=pk, project=request.project)
    provider_keys.remove(key=key, actor=request.actor)
    messages.success(request, f"{key.name} removed.")
    return redirect("settings:providers", project=request.project.slug)


def _context(request: PageRequest, form: NewProviderKey) -> dict[str, Any]:
    keys = ProviderKey.objects.filter(project=request.project).select_related("created_by")
    return {"form": form, "keys": list(keys), "operators": provider_keys.operators()}
