"""`manage.py serve_environment NAME@VERSION --project demo`: an environment over NeMo Gym's protocol."""

import json
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

OPTIONS = ("environment", "project", "task_set", "held_out", "host", "port", "token", "rows")


class Command(BaseCommand):
    help = (
        "Serve an environment as a NeMo Gym resources server (/seed_session, a POST for each tool, /verify; /reset and "
        "/step), with the tasks of a task set. Callers send the token that is printed, as a bearer or as the password "
        "of the address. Its verifier runs here, Python in the sandbox and LLM judges too: their keys are wanted in "
        "this command's environment, and what they took is told on stderr."
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
        parser.add_argument("--rows", help="write the tasks as NeMo Gym's JSONL there before serving")

    def handle(self, *args: Any, **options: Any) -> None:
        """Become the worker's program that serves: judging is the workers' affair."""
        asked = {name: options[name] for name in OPTIONS}
        if options["no_token"]:
            asked["token"] = ""
        program = [sys.executable, "-m", "workers.programs.environment_server", json.dumps(asked)]
        os.execv(sys.executable, program)  # noqa: S606
