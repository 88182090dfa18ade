"""`manage.py replay --since 2026-11-01`: send the raw requests that are kept through decoding and storing again."""

import datetime
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from flywheel.accounts.models import Project
from flywheel.trajectories.operations.replays import replay


class Command(BaseCommand):
    help = "Replay raw requests: what is stored already is a duplicate, what was lost or could not be read is added."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", required=True, help="a date or a time: 2026-11-01, 2026-11-01T12:00Z")
        parser.add_argument("--project", help="the project's slug; all projects without it")

    def handle(self, *args: Any, since: str, project: str | None, **options: Any) -> None:
        moment = _moment(since)
        projects = Project.objects.order_by("pk")
        if project is not None:
            projects = projects.filter(slug=project)
            if not projects:
                raise CommandError(f"there is no project {project!r}")
        for each in projects:
            report = replay(each, moment)
            self.stdout.write(
                f"{each.slug}: {report.requests} requests; steps: {report.inserted} new, {report.updated} updated, "
                f"{report.duplicate} there already, {report.rejected} rejected; {report.unread} requests cannot be read"
            )


def _moment(text: str) -> datetime.datetime:
    try:
        day, moment = parse_date(text), parse_datetime(text)
    except ValueError as error:
        raise CommandError(f"--since {text!r}: {error}") from None
    if day is not None:
        moment = datetime.datetime.combine(day, datetime.time())
    if moment is None:
        raise CommandError(f"--since {text!r} is neither a date nor a time; expected 2026-11-01 or 2026-11-01T12:00Z")
    return moment if moment.tzinfo else timezone.make_aware(moment)
