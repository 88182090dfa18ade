"""`manage.py import_tasks ENVIRONMENT FILE --project demo`: other people's tasks, as far as they fit."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.task_files import import_tasks
from flywheel.environments.versions.environment_versions import latest


class Command(BaseCommand):
    help = "Make tasks of NeMo Gym's JSONL, of rows of a verifiers dataset, of WorkBench, or of tasks exported here."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", help="its name; of kind tool_call or workplace")
        parser.add_argument("file", type=Path, help="JSON Lines")
        parser.add_argument("--project", required=True, help="the project's slug")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        found = project.environments.filter(name=options["environment"]).first() if project else None
        if found is None:
            raise CommandError(f"there is no environment {options['environment']!r} in {options['project']!r}")
        try:
            with options["file"].open("rb") as lines:
                report = import_tasks(
                    environment=found, lines=lines, actor=Actor(latest(found).created_by, "manage.py import_tasks")
                )
        except Refused as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from None
        for problem in report.problems:
            self.stderr.write(str(problem))
        self.stdout.write(str(report))
