"""`manage.py export_environment NAME@VERSION --project demo --format verifiers --out DIR`."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.interop.environment_exports import FORMATS, CannotExport
from flywheel.environments.exchange.environment_packages import chosen, find, take, write


class Command(BaseCommand):
    help = "Write an environment with the tasks of a task set as a package for other people's tools."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", help="environment@version")
        parser.add_argument("--project", required=True, help="the project's slug")
        parser.add_argument("--format", required=True, choices=[*FORMATS])
        parser.add_argument("--out", type=Path, required=True, help="a folder that is new or empty")
        parser.add_argument("--task-set", default="", help="set@version; the newest of this environment's version")
        parser.add_argument("--held-out", action="store_true", help="held-out tasks too; it is noted in the ledger")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"there is no project {options['project']!r}")
        out: Path = options["out"]
        try:
            if out.exists() and any(out.iterdir()):
                raise CannotExport(f"{out} is not empty")
            task_set = chosen(find(project, options["environment"]), options["task_set"])
            _, files = take(
                task_set=task_set,
                format=options["format"],
                held_out=options["held_out"],
                actor=Actor(task_set.created_by, "manage.py export_environment"),
                tasks_max=None,
            )
            count = write(files, out)
        except CannotExport as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{out}: {error.strerror}") from None
        self.stdout.write(f"{count} files in {out}")
