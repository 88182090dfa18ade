"""Settings › Notices: where they are sent outside, and what could not be sent."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import NoticeTarget, Permission
from flywheel.accounts.notices import notice_targets
from flywheel.accounts.pages.forms import NoticeTargetForm
from flywheel.accounts.pages.settings import SHOW_ONCE
from flywheel.edge.numbers import key
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import refusal_shown


@never_cache
@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def notice_settings(request: PageRequest) -> HttpResponse:
    """The project's targets, a form for another or for a changed one, and the notices that were given up."""
    form = NoticeTargetForm(request.POST) if request.method == "POST" else NoticeTargetForm(initial=_edited(request))
    if request.method == "POST" and form.is_valid():
        with refusal_shown(form):
            done = notice_targets.put(project=request.project, actor=request.actor, **form.cleaned_data)
            if done.secret:
                request.session[SHOW_ONCE] = {"target": done.target.name, "secret": done.secret}
            messages.success(request, f"{done.target.name} saved. Notices go to {done.target.host} from now on.")
            return redirect("settings:notices", project=request.project.slug)
    return render(request, "accounts/notices.html", _context(request, form), status=422 if form.errors else 200)


@require_POST
@requires(Permission.ADMIN)
def try_notice_target(request: PageRequest, pk: int) -> HttpResponse:
    target = get_object_or_404(NoticeTarget, pk=pk, project=request.project)
    if problem := notice_targets.try_target(target):
        messages.error(request, f"{target.name} did not take the test message: {problem}")
    else:
        messages.success(request, f"{target.name} took the test message.")
    return redirect("settings:notices", project=request.project.slug)


@require_POST
@requires(Permission.ADMIN)
def remove_notice_target(request: PageRequest, pk: int) -> HttpResponse:
    target = get_object_or_404(NoticeTarget, pk=pk, project=request.project)
    notice_targets.remove(target=target, actor=request.actor)
    messages.success(request, f"{target.name} removed.")
    return redirect("settings:notices", project=request.project.slug)


@require_POST
@requires(Permission.ADMIN)
def send_notices_again(request: PageRequest) -> HttpResponse:
    """Try one dead letter again, or all of them."""
    one = key(request.POST.get("delivery", ""))
    count = notice_targets.send_again(
        project=request.project, actor=request.actor, letters=None if one is None else [one]
    )
    messages.success(request, f"{count} notice{'' if count == 1 else 's'} will be sent again.")
    return redirect("settings:notices", project=request.project.slug)


def _edited(request: PageRequest) -> dict[str, Any]:
    target = NoticeTarget.objects.filter(project=request.project, pk=key(request.GET.get("edit", "")) or 0).first()
    return {"name": target.name, "kind": target.kind, "events": target.events} if target else {}


def _context(request: PageRequest, form: NoticeTargetForm) -> dict[str, Any]:
    return {
        "form": form,
        "targets": list(notice_targets.targets(request.project)),
        "page": page_at(request, notice_targets.dead_letters(request.project)),
        "once": request.session.pop(SHOW_ONCE, None),
        "has_mail": bool(settings.EMAIL_HOST),
    }
