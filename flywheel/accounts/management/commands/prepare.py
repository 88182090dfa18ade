"""`manage.py prepare`: everything that must be there before the first page. May run any number of times.

The tables, the broker's tables, the project `default` and its admin, whose password is printed once, when it is made.
With `--demo` also the demo's projects and their logins; their passwords are made at first start and kept in
`FLYWHEEL_HOME/demo_logins.json`, which only its owner reads, so that they can be printed at every start (`--logins`).
"""

import contextlib
import gc
import json
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, transaction
from django.urls import reverse

from flywheel.accounts import demo_accounts
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, Project, Role, User
from flywheel.accounts.project_settings import members
from flywheel.system import broker, demo_switch, env
from flywheel.system.migration_history import UnfinishedHistory, adopt

LOCK = 0x464C590001
DEMOS = {"demo": "Demo", "agent": "Lamp shop (scripted model)", demo_switch.PROJECT: "Releases by steps"}
THROUGH = "manage.py prepare"


@contextlib.contextmanager
def _seldom_looking_for_garbage() -> Iterator[None]:
    """Let migrations make their thousands of short-lived classes: looking for them as usual takes a third of it all."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = "Make the tables, the broker's tables, the first project and its admin. May run any number of times."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", default="default", help="slug of the first project (default: %(default)s)")
        parser.add_argument("--demo", action="store_true", help="make the demo's projects and their logins as well")
        parser.add_argument("--logins", action="store_true", help="only print the demo's logins, if there is a demo")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["logins"]:
            self._print_logins()
            return
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
            try:
                adopt()
                with _seldom_looking_for_garbage():
                    call_command("migrate", verbosity=0, interactive=False)
                broker.install()
                self._first_project(options["project"])
                if options["demo"]:
                    _demo()
            except UnfinishedHistory as error:
                raise CommandError(str(error)) from None
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])

    @transaction.atomic
    def _first_project(self, slug: str) -> None:
        """The project, and an admin unless somebody has that role already."""
        project, _ = Project.objects.get_or_create(slug=slug, defaults={"name": slug.capitalize()})
        if Membership.objects.filter(project=project, role=Role.ADMIN).exists():
            return
        admin, password = members.account("admin")
        Membership.objects.create(user=admin, project=project, role=Role.ADMIN)
        Actor(admin, THROUGH).record(project=project, action="accounts.create_project", subject=project)
        if password:
            self.stdout.write(f"Admin of project {slug}: username admin, password {password} (shown this once)")

    def _print_logins(self) -> None:
        """The link that signs a visitor on this machine in, and the passwords that still fit; who changed theirs knows
        it."""
        for username, password in _read(_file()).items():
            user = User.objects.filter(username=username).first()
            if user and user.check_password(password):
                held = user.memberships.filter(project__slug="demo").order_by("role")
                roles = ", ".join(held.values_list("role", flat=True))
                self.stdout.write(f"Demo login: username {username}, password {password} ({roles})")
        if demo_accounts.is_local(env.bind()) and Project.objects.filter(slug=demo_accounts.PROJECT).exists():
            link = reverse("accounts:demo", args=[demo_accounts.link_token()])
            self.stdout.write(f"Open the demo, signed in: http://{env.bind()}:{env.port()}{link}")


@transaction.atomic
def _demo() -> None:
    made = [
        Project.objects.get_or_create(slug=slug, defaults={"name": name, "is_demo": True})[0]
        for slug, name in DEMOS.items()
    ]
    logins = _read(_file())
    for username, roles in demo_accounts.ROLES.items():
        user, password = members.account(username, logins.get(username, ""))
        if password:
            logins[username] = password
        for project, role in product(made, roles):
            Membership.objects.get_or_create(user=user, project=project, role=role)
    if admin := User.objects.filter(username="admin").first():
        for project in made:
            Membership.objects.get_or_create(user=admin, project=project, role=Role.ADMIN)
    _write(_file(), logins)


def _file() -> Path:
    return Path(settings.HOME) / "demo_logins.json"


def _read(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _write(path: Path, logins: dict[str, str]) -> None:
    """Aside, readable by its owner from the first byte on, then in place."""
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(logins, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
