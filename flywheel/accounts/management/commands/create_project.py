"""`manage.py create_project mail --name "Mail agent" --admin ada`: a project, and who looks after it."""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.validators import validate_slug
from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, Project, Role
from flywheel.accounts.project_settings import members


class Command(BaseCommand):
    help = "Create a project with an admin. An admin without an account gets one; the password is printed once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug", help="the name in URLs: letters, digits, - and _")
        parser.add_argument("--name", help="the name on pages; the slug when left out")
        parser.add_argument("--admin", required=True, help="username of its first admin")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        slug = options["slug"]
        try:
            validate_slug(slug)
        except ValidationError:
            raise CommandError(f"{slug!r} cannot be used in a URL: use letters, digits, - and _") from None
        if Project.objects.filter(slug=slug).exists():
            raise CommandError(f"a project {slug!r} already exists")
        project = Project.objects.create(slug=slug, name=options["name"] or slug)
        admin, password = members.account(options["admin"], must_change_password=True)
        Membership.objects.create(user=admin, project=project, role=Role.ADMIN)
        Actor(admin, "manage.py create_project").record(
            project=project, action="accounts.create_project", subject=project
        )
        self.stdout.write(f"project {slug}, admin {admin}" + (f", password {password}" if password else ""))
