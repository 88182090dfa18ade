"""One's own account, and the choice of a project."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import signed_in
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.accounts.pages.forms import ChangePassword, MailedNotices


@require_GET
@signed_in
def home(request: HttpRequest) -> HttpResponse:
    """The project, when there is one; else a choice of them."""
    user = _person(request)
    if user.must_change_password:
        return redirect("accounts:profile")
    projects = list(user.projects())
    if len(projects) == 1:
        return redirect("overview:index", project=projects[0].slug)
    roles: dict[int, list[str]] = {}
    for project_id, role in user.memberships.order_by("role").values_list("project_id", "role"):
        roles.setdefault(project_id, []).append(role)
    chosen = [{"project": project, "roles": roles[project.pk]} for project in projects]
    return render(request, "accounts/home.html", {"chosen": chosen})


@sensitive_post_parameters()
@require_http_methods(["GET", "POST"])
@signed_in
def profile(request: HttpRequest) -> HttpResponse:
    """One's own account: memberships, notices by e-mail, and a new password."""
    user = _person(request)
    form = ChangePassword(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            form.save()
            User.objects.filter(pk=user.pk).update(must_change_password=False)
            Actor(user).record(project=None, action="accounts.change_password", subject=user)
        update_session_auth_hash(request, user)
        messages.success(request, "Password changed. Your other browsers are signed out.")
        return redirect("home" if user.must_change_password else "accounts:profile")
    return render(request, "accounts/profile.html", _profile(user, form), status=422 if form.errors else 200)


@signed_in
@require_POST
def mailed_notices(request: HttpRequest) -> HttpResponse:
    """Whether one's notices also come by e-mail, and where to."""
    user = _person(request)
    if user.must_change_password:
        return redirect("accounts:profile")
    form = MailedNotices(request.POST)
    if not form.is_valid():
        return render(request, "accounts/profile.html", _profile(user, ChangePassword(user), form), status=422)
    with transaction.atomic():
        User.objects.filter(pk=user.pk).update(**form.cleaned_data)
        is_on = form.cleaned_data["is_mailed_notices"]
        Actor(user).record(project=None, action="accounts.mail_notices", subject=user, is_on=is_on)
    where = f"are sent to {form.cleaned_data['email']}" if is_on else "are not sent by e-mail"
    messages.success(request, f"Your notices {where}.")
    return redirect("accounts:profile")


def _profile(user: User, form: ChangePassword, mail: MailedNotices | None = None) -> dict[str, Any]:
    return {
        "form": form,
        "mail": mail or MailedNotices(initial=vars(user)),
        "has_mail": bool(settings.EMAIL_HOST),
        "memberships": user.memberships.select_related("project").order_by("project__name", "role"),
    }


def _person(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
