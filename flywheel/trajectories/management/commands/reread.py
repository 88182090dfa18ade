"""`manage.py reread`: bring the columns of stored spans up to date with what is read today."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flywheel.accounts.models import Project
from flywheel.trajectories.operations.rereads import Progress, reread
from flywheel.trajectories.store import detector_wakeup


class Command(BaseCommand):
    help = "Read every stored span again, for the columns that lists and filters use. It may be stopped and repeated."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--project", help="the project's slug; all projects without it")

    def handle(self, *args: Any, project: str | None, **options: Any) -> None:
        projects = Project.objects.order_by("pk")
        if project is not None:
            projects = projects.filter(slug=project)
            if not projects:
                raise CommandError(f"there is no project {project!r}")
        for each in projects:
            last = Progress()
            for last in reread(each):
                self.stderr.write(f"{each.slug}: {last.done} trajectories", ending="\r")
            self.stdout.write(f"{each.slug}: {last.done} trajectories, {last.changed} of them read differently")
            if last.changed:
                detector_wakeup.now(each.pk)
