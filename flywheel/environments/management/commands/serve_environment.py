"""`manage.py serve_environment NAME@VERSION --project demo`: an environment over NeMo Gym's protocol."""

import signal
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from flywheel.accounts.models import Project
from flywheel.core.verifiers import VerifierError
from flywheel.environments.export import CannotExport, chosen, find, splits_of
from flywheel.environments.serve import server, write_rows


class Command(BaseCommand):
    help = (
        "Serve an environment as a NeMo Gym resources server (/seed_session, a POST for each tool, /verify; /reset and "
        "/step), with the tasks of a task set. Callers send the token that is printed, as a bearer or as the password "
        "of the address."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", help="environment@version")
        parser.add_argument("--project", required=True, help="the project's slug")
        parser.add_argument("--task-set", default="", help="set@version; the newest of this environment's version")
        parser.add_argument("--held-out", action="store_true", help="held-out tasks too; it is noted in the ledger")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=0, help="any that is free")
        parser.add_argument("--token", help="one of your own; made up and printed without it")
        parser.add_argument("--no-token", action="store_true", help="let in whoever is on this machine")
        parser.add_argument("--rows", type=Path, help="write the tasks as NeMo Gym's JSONL there before serving")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"there is no project {options['project']!r}")
        splits = splits_of(held_out=options["held_out"])
        try:
            task_set = chosen(find(project, options["environment"]), options["task_set"])
            if options["rows"]:
                written = write_rows(task_set, splits, options["rows"])
                self.stdout.write(f"{written} rows in {options['rows']}")
            token = "" if options["no_token"] else options["token"]
            made = server(task_set=task_set, splits=splits, host=options["host"], port=options["port"], token=token)
        except (CannotExport, VerifierError, ValueError) as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{options['host']}:{options['port']}: {error.strerror}") from None
        connections.close_all()  # from here on nothing is read
        self.stdout.write(
            f"Serving {options['environment']} with {len(made.gym.tasks)} tasks of {task_set}: {made.url}"
        )
        if made.token:
            self.stdout.write(f"Authorization: Bearer {made.token}")
        self.stdout.flush()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with made:
            try:
                made.serve_forever()
            except KeyboardInterrupt:
                self.stdout.write("stopped")
