"""The pages that every project has whatever it does: members, keys, the gateway, the audit log."""

from contextlib import suppress
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import ApiKey, Permission, User
from flywheel.accounts.pages.forms import NewKey, NewMember, Roles, Upstream
from flywheel.accounts.project_settings import api_keys, gateway_upstream, members
from flywheel.accounts.project_settings.audit_log import entries
from flywheel.accounts.project_settings.server_addresses import host_of
from flywheel.edge.numbers import key
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import refusal_shown

SHOW_ONCE = "accounts.show_once"
"""Where the session keeps a secret between the click that made it and the page that shows it."""
ROOMS_AUDITED = ["accounts", "agents", "trajectories", "failures", "environments", "evals", "training", "promotions"]


@never_cache
@require_GET
@requires(Permission.ADMIN)
def settings_index(request: PageRequest) -> HttpResponse:
    """Members and their roles, and what there is to know about the project."""
    return render(request, "accounts/members.html", _members(request))


@require_POST
@requires(Permission.ADMIN)
def add_member(request: PageRequest) -> HttpResponse:
    form = NewMember(request.POST)
    if form.is_valid():
        with refusal_shown(form):
            added = members.add(project=request.project, actor=request.actor, **form.cleaned_data)
            if added.password:
                request.session[SHOW_ONCE] = {"user": added.user.username, "password": added.password}
            else:
                messages.success(request, f"{added.user} is now a member and signs in with their existing password.")
            return redirect("settings:index", project=request.project.slug)
    if SHOW_ONCE in request.session:  # the same click twice: the first one's password still waits to be shown
        return redirect("settings:index", project=request.project.slug)
    return render(request, "accounts/members.html", _members(request, form), status=422)


@require_POST
@requires(Permission.ADMIN)
def set_roles(request: PageRequest, pk: int) -> HttpResponse:
    user = get_object_or_404(User.objects.filter(memberships__project=request.project).distinct(), pk=pk)
    form = Roles(request.POST)
    roles = [] if "remove" in request.POST else form.cleaned_data.get("roles", []) if form.is_valid() else None
    if roles is None:
        messages.error(request, f"Nothing was changed: {form.errors['roles'].as_text()}")
    else:
        changed = members.set_roles(project=request.project, actor=request.actor, user=user, roles=roles)
        if changed:
            messages.success(request, f"{user} {'is ' + ' and '.join(roles) if roles else 'is no longer a member'}.")
    if user == request.actor.user and Permission.ADMIN not in user.permissions(request.project):
        return redirect("home")
    return redirect("settings:index", project=request.project.slug)


@require_POST
@requires(Permission.ADMIN)
def become_approver(request: PageRequest) -> HttpResponse:
    """Take the approver role where nobody has it, and go back to where that was offered."""
    members.become_approver(project=request.project, actor=request.actor)
    messages.success(request, "You are now an approver and can promote versions. This is in the audit log.")
    back = request.POST.get("next", "")
    is_ours = back.startswith(f"/p/{request.project.slug}/") and url_has_allowed_host_and_scheme(back, None)
    return redirect(back) if is_ours else redirect("settings:index", project=request.project.slug)


@never_cache
@require_GET
@requires(Permission.ADMIN)
def keys_index(request: PageRequest) -> HttpResponse:
    """API keys: make, look, revoke."""
    return render(request, "accounts/keys.html", _keys(request))


@require_POST
@requires(Permission.ADMIN)
def make_key(request: PageRequest) -> HttpResponse:
    form = NewKey(request.POST, permissions=request.permissions)
    if form.is_valid():
        with refusal_shown(form):
            with suppress(api_keys.SentTwice):
                made = api_keys.make(project=request.project, actor=request.actor, **form.cleaned_data)
                request.session[SHOW_ONCE] = {"key": made.key.name, "text": made.text, "scopes": made.key.scopes}
            return redirect("settings:keys", project=request.project.slug)
    return render(request, "accounts/keys.html", _keys(request, form), status=422)


@require_POST
@requires(Permission.ADMIN)
def revoke_key(request: PageRequest, pk: int) -> HttpResponse:
    key = get_object_or_404(ApiKey, pk=pk, project=request.project)
    if api_keys.revoke(key=key, actor=request.actor):
        messages.success(request, f"The key {key.name} is revoked. Its users get 401 from now on.")
    return redirect("settings:keys", project=request.project.slug)


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def gateway(request: PageRequest) -> HttpResponse:
    """Where model calls that come to the gateway are sent on to."""
    chosen = request.project.upstream
    form = Upstream(request.POST if request.method == "POST" else None, initial=chosen)
    if request.method == "POST" and form.is_valid():
        with refusal_shown(form):
            chosen = gateway_upstream.set_upstream(project=request.project, actor=request.actor, **form.cleaned_data)
            where = host_of(chosen["base_url"]) if chosen else ""
            messages.success(
                request,
                f"Model calls go to {where} from now on." if chosen else "The gateway no longer has an upstream.",
            )
            return redirect("settings:gateway", project=request.project.slug)
    return render(request, "accounts/gateway.html", _gateway(request, form), status=422 if form.errors else 200)


@require_GET
@requires(Permission.ADMIN)
def audit_log(request: PageRequest) -> HttpResponse:
    """Who changed what, newest first; filters and the place in the list are in the address."""
    action, actor, text = (request.GET.get(name, "") for name in ("action", "actor", "q"))
    rows = entries(request.project, action=action, actor=actor, text=text)
    context = {
        "page": page_at(request, rows, is_counted=True),
        "filters": {"action": action, "actor": actor, "q": text},
        "actors": User.objects.filter(memberships__project=request.project).distinct().order_by("username"),
        "rooms_audited": ROOMS_AUDITED,
    }
    return render(request, "accounts/audit.html", context)


def _members(request: PageRequest, form: NewMember | None = None) -> dict[str, Any]:
    people = User.objects.filter(memberships__project=request.project).distinct().order_by("username")
    roles: dict[int, list[str]] = {}
    for user_id, role in request.project.memberships.order_by("role").values_list("user_id", "role"):
        roles.setdefault(user_id, []).append(role)
    edited = people.filter(pk=key(request.GET.get("edit", "")) or 0).first()
    return {
        "members": [{"user": user, "roles": roles[user.pk]} for user in people],
        "edited": edited and {"user": edited, "form": Roles(initial={"roles": roles[edited.pk]})},
        "form": form or NewMember(initial={"roles": ["viewer"]}),
        "once": request.session.pop(SHOW_ONCE, None),
    }


def _gateway(request: PageRequest, form: Upstream) -> dict[str, Any]:
    chosen = request.project.upstream
    return {
        "form": form,
        "host": host_of(chosen["base_url"]) if chosen else "",
        "is_plain": chosen.get("base_url", "").startswith("http:"),
        "variable": chosen.get("api_key_env", ""),
        "key_problem": gateway_upstream.key_problem(request.project),
        "waiting": sum(map(gateway_upstream.is_left, settings.GATEWAY_DIR.glob("*.exchange"))),
        "origin": request.build_absolute_uri("/").rstrip("/"),
    }


def _keys(request: PageRequest, form: NewKey | None = None) -> dict[str, Any]:
    return {
        "keys": ApiKey.objects.filter(project=request.project).select_related("created_by").order_by("-id"),
        "form": form or NewKey(permissions=request.permissions, initial={"scopes": ["ingest"]}),
        "once": request.session.pop(SHOW_ONCE, None),
        "origin": request.build_absolute_uri("/").rstrip("/"),
        "command": f".venv/bin/python manage.py create_key --project {request.project.slug} --scope ingest",
    }
