"""One's own account, and the choice of a project."""

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods

from flywheel.accounts.access import signed_in
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.accounts.pages.forms import ChangePassword


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
    """One's own account: memberships, and a new password."""
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
    memberships = user.memberships.select_related("project").order_by("project__name", "role")
    context = {"form": form, "memberships": memberships}
    return render(request, "accounts/profile.html", context, status=422 if form.errors else 200)


def _person(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user
