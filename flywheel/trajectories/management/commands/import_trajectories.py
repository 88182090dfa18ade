"""`manage.py import_trajectories FILE --project demo`: read a file of trajectories, `-` for standard input."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flywheel.accounts.models import Project
from flywheel.trajectories.formats.files.file_formats import FORMATS, TABLE
from flywheel.trajectories.formats.values.hostile_json import FormatError
from flywheel.trajectories.import_export.trajectory_import import Report, import_file, kept_aside

PROBLEMS_TOLD = 20


class Command(BaseCommand):
    help = "Import trajectories from a file; parts that cannot be read are named and the others are kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="JSON Lines, JSON, .eval, Parquet or CSV, or - for standard input")
        parser.add_argument("--project", required=True, help="the project's slug")
        parser.add_argument("--format", default="auto", choices=["auto", *FORMATS, TABLE])
        parser.add_argument("--mapping", help='of a table: {"input": "question", "output": "answer", "metadata": "*"}')

    def handle(self, *args: Any, file: str, project: str, format: str, mapping: str | None, **options: Any) -> None:
        found = Project.objects.filter(slug=project).first()
        if found is None:
            raise CommandError(f"there is no project {project!r}")
        try:
            if file == "-":
                with kept_aside(sys.stdin.buffer, is_limited=False) as source:
                    report = import_file(found, source, format=format, mapping=mapping)
            else:
                with Path(file).open("rb") as source:
                    report = import_file(found, source, format=format, mapping=mapping)
        except FormatError as error:
            raise CommandError(f"{file}: {error}") from None
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from None
        self._tell(report)

    def _tell(self, report: Report) -> None:
        for problem in report.problems[:PROBLEMS_TOLD]:
            self.stderr.write(f"{problem.at}: {problem.reason}")
        if report.left_out > PROBLEMS_TOLD:
            self.stderr.write(f"and {report.left_out - PROBLEMS_TOLD} more")
        if report.formats:
            self.stdout.write(f"read as {report.detected}")
        steps = report.steps
        self.stdout.write(
            f"{report.trajectories} trajectories kept, {report.left_out} lines left out; steps: "
            f"{steps['inserted']} new, {steps['updated']} updated, {steps['duplicate']} there already"
        )
        if report.left_out and not report.trajectories and not report.notes:
            raise CommandError("nothing could be read")
