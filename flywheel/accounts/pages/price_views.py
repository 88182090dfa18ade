"""Settings › Prices: what models cost by the token, and own weights by the hour."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import DevicePrice, ModelPrice, Permission
from flywheel.accounts.pages.forms import DeviceHour, NewPrice
from flywheel.accounts.project_settings import model_prices
from flywheel.edge.refusals import refusal_shown


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def prices(request: PageRequest) -> HttpResponse:
    """The project's prices, those that ship, and a form for another."""
    form = NewPrice(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with refusal_shown(form):
            row = model_prices.set_price(project=request.project, actor=request.actor, **form.cleaned_data)
            messages.success(request, f"{row.model} has this price from now on. For past calls, derive costs again.")
            return redirect("settings:prices", project=request.project.slug)
    return _page(request, form, _hour_form(request))


@require_POST
@requires(Permission.ADMIN)
def set_device_hour(request: PageRequest) -> HttpResponse:
    form = DeviceHour(request.POST)
    if form.is_valid():
        with refusal_shown(form):
            model_prices.set_hour(project=request.project, actor=request.actor, **form.cleaned_data)
            messages.success(request, "Saved. Evals use it from their next attempt on.")
            return redirect("settings:prices", project=request.project.slug)
    return _page(request, NewPrice(), form)


@require_POST
@requires(Permission.ADMIN)
def end_price(request: PageRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(ModelPrice, pk=pk, project=request.project)
    model_prices.remove_price(row=row, actor=request.actor)
    messages.success(
        request, f"{row.model} no longer has this price. Costs derived from it stay until you derive them again."
    )
    return redirect("settings:prices", project=request.project.slug)


def _hour_form(request: PageRequest) -> DeviceHour:
    row = DevicePrice.objects.filter(project=request.project).first()
    return DeviceHour(initial={"usd_per_hour": row.usd_per_hour, "source": row.source} if row else None)


def _page(request: PageRequest, form: NewPrice, hour_form: DeviceHour) -> HttpResponse:
    context = {
        "form": form,
        "hour_form": hour_form,
        "hour": DevicePrice.objects.filter(project=request.project).select_related("set_by").first(),
        "own": ModelPrice.objects.filter(project=request.project, removed_at=None).select_related("set_by"),
        "listed": model_prices.listed(),
    }
    return render(request, "accounts/prices.html", context, status=422 if form.errors or hour_form.errors else 200)
