"""`manage.py import_trajectories FILE --project demo`: read a JSONL file of trajectories, `-` for standard input."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flywheel.accounts.models import Project
from flywheel.trajectories.formats import FORMATS
from flywheel.trajectories.importing import Report, import_lines

PROBLEMS_TOLD = 20


class Command(BaseCommand):
    help = "Import trajectories from a JSONL file; lines that cannot be read are named and the others are kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="a JSONL file, or - for standard input")
        parser.add_argument("--project", required=True, help="the project's slug")
        parser.add_argument("--format", default="auto", choices=["auto", *FORMATS])

    def handle(self, *args: Any, file: str, project: str, format: str, **options: Any) -> None:
        found = Project.objects.filter(slug=project).first()
        if found is None:
            raise CommandError(f"there is no project {project!r}")
        try:
            if file == "-":
                report = import_lines(found, sys.stdin.buffer, format=format)
            else:
                with Path(file).open("rb") as lines:
                    report = import_lines(found, lines, format=format)
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from None
        self._tell(report)

    def _tell(self, report: Report) -> None:
        for problem in report.problems[:PROBLEMS_TOLD]:
            self.stderr.write(f"{problem['at']}: {problem['reason']}")
        if len(report.problems) > PROBLEMS_TOLD:
            self.stderr.write(f"and {len(report.problems) - PROBLEMS_TOLD} more")
        steps = report.steps
        self.stdout.write(
            f"{report.trajectories} trajectories kept, {len(report.problems)} lines left out; steps: "
            f"{steps['inserted']} new, {steps['updated']} updated, {steps['duplicate']} there already"
        )
        if report.problems and not report.trajectories:
            raise CommandError("nothing could be read")
