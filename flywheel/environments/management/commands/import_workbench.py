"""`manage.py import_workbench FOLDER --project demo --by ines`: WorkBench's databases and tasks as an environment."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project, User
from flywheel.core.envs.workplace import workbench
from flywheel.core.errors import FieldError
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.task_files import Taken, import_tasks
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment

KIND = "workplace"
THROUGH = "manage.py import_workbench"
DESCRIPTION = "Tasks and databases of WorkBench (Styles et al. 2024, arXiv 2405.00823)."


class Command(BaseCommand):
    help = "Make a workplace with WorkBench's databases, and tasks of all its *-tasks.jsonl."

    def add_arguments(self, parser: CommandParser) -> None:
        files = ", ".join([*workbench.FILES.values(), "*-tasks.jsonl"])
        parser.add_argument("folder", type=Path, help=f"it holds {files}")
        parser.add_argument("--project", required=True, help="the project's slug")
        parser.add_argument("--by", required=True, help="user name of the member in whose name it is made")
        parser.add_argument("--environment", default="workbench", help="its name; made where there is none")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"there is no project {options['project']!r}")
        actor = User.objects.filter(username=options["by"], memberships__project=project).first()
        if actor is None:
            raise CommandError(f"the project has no member {options['by']!r}")
        try:
            report = _taken(project, options["environment"], options["folder"], Actor(actor, THROUGH))
        except FieldError as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from None
        for problem in report.problems:
            self.stderr.write(str(problem))
        self.stdout.write(str(report))


@transaction.atomic
def _taken(project: Project, name: str, folder: Path, actor: Actor) -> Taken:
    config = {"database": workbench.database(folder)}
    found = project.environments.filter(name=name).first() or environment(
        project=project,
        name=name,
        actor=actor,
        config=config,
        verifier={"kind": KIND},
        terms=Terms(KIND),
        description=DESCRIPTION,
    )
    if found.kind != KIND or found.latest.config.get("database") != config["database"]:
        raise Refused(f"the environment {name!r} has another database; name a new one with --environment")
    return import_tasks(environment=found, lines=workbench.rows(folder), actor=actor)
