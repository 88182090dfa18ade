"""Views of the list: a filter and columns under a name, personal or shared; and what each person wants to see first.

The address holds the filter and the columns themselves, never the view's name: a link shows the same to everybody, and
goes on to do so when the view is changed or deleted.
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django.db import transaction
from django.db.models import Q, QuerySet
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project, User
from flywheel.edge.prepared_queries import PreparedQuery
from flywheel.edge.refusals import Refused
from flywheel.trajectories.models import Taste, View
from flywheel.trajectories.search import list_columns
from flywheel.trajectories.search.query import parse

VIEWS_MAX = 200
"""Of one person in one project."""


def seen_by(project: Project, user: User) -> QuerySet[View]:
    """Their own and those that others share."""
    rows = View.objects.filter(Q(owner=user) | Q(is_shared=True), project=project).select_related("owner", "project")
    # A view needs little of either.
    return rows.only(*(field.name for field in View._meta.concrete_fields), "owner__username", "project__slug")


def deletable_by(project: Project, user: User, *, is_admin: bool) -> QuerySet[View]:
    """Their own; for admins also what is shared, whose owner may have left."""
    whose = Q(owner=user) | Q(is_shared=True) if is_admin else Q(owner=user)
    return View.objects.filter(whose, project=project)


_SEEN = PreparedQuery(lambda project, user: seen_by(project, user)[:VIEWS_MAX])
_TASTE = PreparedQuery(lambda project, user: Taste.objects.filter(project=project, user=user))


def menu_of(project: Project, user: User) -> list[View]:
    """As many of `seen_by` as a menu shows."""
    return _SEEN(project.pk, user.pk)


def taste_of(project: Project, user: User) -> Taste:
    return _TASTE.first(project.pk, user.pk) or Taste(project=project, user=user)


def opens_with(taste: Taste) -> View | None:
    """The view that the list opens with, unless its owner shares it no longer."""
    view = taste.view
    return view if view is not None and (view.is_shared or view.owner_id == taste.user_id) else None


def address(view: View) -> str:
    """The list as this view shows it."""
    shown = {"q": view.q, **({"cols": ",".join(view.columns)} if view.columns else {})}
    return f"{reverse('trajectories:index', args=[view.project.slug])}?{urlencode(shown)}"


@transaction.atomic
def save(
    *,
    project: Project,
    actor: Actor,
    name: str,
    q: str = "",
    wanted: Iterable[str] = (),
    is_shared: bool = False,
    is_first: bool = False,
) -> View:
    """Keep the filter and the columns under the name, in place of the actor's view of that name. Raises Refused."""
    name, query = " ".join(name.replace("\0", "").split()), parse(q)
    if not name or len(name) > 100:
        raise Refused("name: expected between 1 and 100 characters")
    if query.problems:
        raise Refused(f"q: {' '.join(query.problems)}")
    mine = View.objects.filter(project=project, owner=actor.user)
    if not mine.filter(name=name).exists() and mine.count() >= VIEWS_MAX:
        raise Refused(f"there are {VIEWS_MAX} views of yours already; delete one first")
    if is_shared and Permission.REVIEW not in actor.user.permissions(project):
        raise Refused("is_shared: viewers keep views for themselves; reviewers and all other roles share them")
    kept: dict[str, Any] = {"q": query.text, "columns": list_columns.existing(wanted), "is_shared": is_shared}
    view, _ = View.objects.update_or_create(project=project, owner=actor.user, name=name, defaults=kept)
    if is_first:
        open_with(project=project, actor=actor, view=view)
    actor.record(project=project, action="trajectories.save_view", subject=_subject(view), **kept)
    return view


@transaction.atomic
def delete(*, view: View, actor: Actor) -> None:
    """Forget it; who opened the list with it sees all again."""
    actor.record(project=view.project, action="trajectories.delete_view", subject=_subject(view))
    view.delete()


def open_with(*, project: Project, actor: Actor, view: View | None) -> None:
    """Let the list open with this view for the actor, or with everything. It is theirs alone: not in the audit log."""
    Taste.objects.update_or_create(project=project, user=actor.user, defaults={"view": view})


def choose(*, project: Project, actor: Actor, wanted: Iterable[str]) -> list[str]:
    """Show these columns to the actor from now on; none of them means the usual ones."""
    chosen = list_columns.existing(wanted)
    kept = [] if chosen == list_columns.USUAL else chosen
    Taste.objects.update_or_create(project=project, user=actor.user, defaults={"columns": kept})
    return chosen or list_columns.USUAL


def _subject(view: View) -> str:
    return f"view {view.name}"
