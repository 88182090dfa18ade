"""The inbox: what a person is told of, each with the way to what it is about."""

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import URLPattern, URLResolver, path
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import NoticeEvent, Permission
from flywheel.accounts.notices.inbox import inbox, mark_read
from flywheel.edge.paging import page_at


@require_GET
@requires(Permission.VIEW)
def inbox_index(request: PageRequest) -> HttpResponse:
    """The notices, the newest first; `?unread=1` for those alone that are not read, `?event=` for those of one kind."""
    rows = inbox(request.project, request.user)
    has_unread = rows.filter(read_at=None).exists()
    is_unread, event = request.GET.get("unread") == "1", request.GET.get("event", "")
    event = event if event in NoticeEvent.values else ""
    rows = rows.filter(notice__event=event) if event else rows
    page = page_at(request, rows.filter(read_at=None) if is_unread else rows)
    context = {"page": page, "is_unread": is_unread, "has_unread": has_unread}
    context["event"] = NoticeEvent(event).label if event else ""
    return render(request, "accounts/inbox.html", context)


@require_POST
@requires(Permission.VIEW)
def read_all(request: PageRequest) -> HttpResponse:
    mark_read(project=request.project, user=request.user)
    return redirect("notices:index", request.project.slug)


@require_POST
@requires(Permission.VIEW)
def read_one(request: PageRequest, pk: int) -> HttpResponse:
    """Mark it read, and go where it leads, or with `stay` back to the list."""
    entry = get_object_or_404(inbox(request.project, request.user), pk=pk)
    mark_read(project=request.project, user=request.user, entries=[pk])
    leads = entry.notice.url
    if "stay" in request.POST or not leads.startswith("/") or not url_has_allowed_host_and_scheme(leads, None):
        return redirect("notices:index", request.project.slug)
    return redirect(leads)


app_name = "notices"
# /p/<project>/notices/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", inbox_index, name="index"),
    path("read/", read_all, name="read_all"),
    path("<int:pk>/read/", read_one, name="read"),
]
