"""`manage.py redact --project demo`: what today's redaction policy finds in what is stored; `--apply` takes it out."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project, User
from flywheel.accounts.project_settings.redaction_policy import redactor_of
from flywheel.trajectories.operations.redaction_scan import apply, scan


class Command(BaseCommand):
    help = "Look for secrets in what is stored, with the project's redaction policy. Changes nothing without --apply."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", required=True, help="slug of the project")
        parser.add_argument("--newest", type=int, help="only so many of the newest trajectories; without it, all")
        parser.add_argument("--apply", action="store_true", help="rewrite what is found; it cannot be brought back")
        parser.add_argument("--user", help="with --apply: which admin of the project does this, for the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"there is no project {options['project']!r}")
        redactor = redactor_of(project)
        if options["apply"]:
            actor = User.objects.filter(username=options["user"] or "").first()
            if actor is None or Permission.ADMIN not in actor.permissions(project):
                raise CommandError("--apply needs --user, an admin of the project: the audit log says who did it")
            report = apply(project, redactor, Actor(actor, "manage.py redact"), options["newest"])
        else:
            report = scan(project, redactor, options["newest"])
        for kind, count in report.counts.most_common():
            self.stdout.write(f"{count:8}  {kind}")
        for place in report.by_count():
            self.stdout.write(f"{place.count:8}  {place.kind:14} {place.step:12} {place.path}  {place.shown}")
        done = "taken out" if options["apply"] else "found; nothing is changed"
        self.stdout.write(
            f"{sum(report.counts.values())} {done}, in {report.touched} of {report.trajectories} trajectories"
            f" ({report.steps} steps) and {report.beside} rows beside them, with {redactor.version}"
        )
