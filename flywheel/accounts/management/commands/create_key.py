"""`manage.py create_key --project demo --scope ingest`: one API key on stdout, and nothing else."""

from typing import Any

from django.contrib.auth.hashers import make_password
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from flywheel.accounts.access import SCOPE_NEEDS
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import GRANTS, Membership, Project, Role, Scope, User
from flywheel.accounts.project_settings import api_keys
from flywheel.edge.refusals import Refused

SYSTEM = "system"
"""The machine account that keys belong to when no person is named: it has no password, and gets the roles it needs."""


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = (
        "Print a new API key. Without --user it belongs to the machine account `system`, which gets the roles it needs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", required=True, help="slug of the project")
        parser.add_argument("--scope", action="append", required=True, choices=Scope.values, help="repeat for several")
        parser.add_argument("--name", default="command line", help="what will use it")
        parser.add_argument("--user", help="user whose permissions it has")
        parser.add_argument("--days", type=int, help="expires after this many days; without it, when revoked")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            known = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True)) or "none yet"
            raise CommandError(f"there is no project {options['project']!r}; there is {known}")
        actor = _person(options["user"]) if options["user"] else system_account(project, options["scope"])
        try:
            made = api_keys.make(
                project=project,
                actor=Actor(actor, "manage.py create_key"),
                name=options["name"],
                scopes=options["scope"],
                days=options["days"],
            )
        except Refused as error:
            raise CommandError(str(error)) from None
        self.stdout.write(made.text)


def _person(username: str) -> User:
    user = User.objects.filter(username=username).first()
    if user is None:
        raise CommandError(f"there is no user {username!r}")
    return user


def system_account(project: Project, scopes: list[str]) -> User:
    """The machine account, with the smallest roles that the scopes need."""
    user, _ = User.objects.get_or_create(username=SYSTEM, defaults={"password": make_password(None)})
    for scope in scopes:
        needed = SCOPE_NEEDS[Scope(scope)]
        if needed not in user.permissions(project):
            role = min((role for role in Role if needed in GRANTS[role]), key=lambda role: len(GRANTS[role]))
            Membership.objects.get_or_create(user=user, project=project, role=role)
    return user
