"""`manage.py import_tasks ENVIRONMENT FILE --project demo`: other people's tasks, as far as they fit."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.envs.replay.wanted_items import MATCHES
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.task_files import import_tasks
from flywheel.environments.versions.environment_versions import latest


class Command(BaseCommand):
    help = (
        "Make tasks of NeMo Gym's JSONL, rows of a verifiers dataset, questions with answers, or tasks exported here."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", help="its name; of kind episode, tool_call or workplace")
        parser.add_argument("file", type=Path, help="JSON Lines, JSON, CSV or Parquet")
        parser.add_argument("--match", default="words", choices=MATCHES, help="when an answer in words is right")
        parser.add_argument("--project", required=True, help="the project's slug")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        found = project.environments.filter(name=options["environment"]).first() if project else None
        if found is None:
            raise CommandError(f"there is no environment {options['environment']!r} in {options['project']!r}")
        try:
            with options["file"].open("rb") as lines:
                actor = Actor(latest(found).created_by, "manage.py import_tasks")
                report = import_tasks(environment=found, lines=lines, actor=actor, match=options["match"])
        except Refused as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from None
        for problem in report.problems:
            self.stderr.write(str(problem))
        self.stdout.write(str(report))
