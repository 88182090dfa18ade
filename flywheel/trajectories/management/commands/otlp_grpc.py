"""`manage.py otlp_grpc`: take OTLP over gRPC, until SIGTERM or Ctrl-C."""

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from flywheel.system import env

GRACE_S = 10.0
"""How long calls that are under way may take when the process is told to end."""


class Command(BaseCommand):
    help = "Take OTLP over gRPC (TLS is for the proxy in front). Needs the extra `grpc`."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=env.grpc_port() or 4317, help="default: %(default)s")
        parser.add_argument("--host", default=env.bind(), help="address to listen on (default: %(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from flywheel.trajectories.ingest import otlp_grpc
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(("grpc", "google")):
                raise
            raise CommandError(
                f"the library {error.name} is missing: install Flywheel with its extra `grpc`,"
                " pip install -c constraints.txt -e '.[train,grpc]'"
            ) from None
        try:
            server, port = otlp_grpc.serve(options["host"], options["port"])
        except otlp_grpc.PortInUse as error:
            raise CommandError(str(error)) from None
        asked = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: asked.set())
        self.stdout.write(f"OTLP over gRPC at {options['host']}:{port}")
        self.stdout.flush()
        asked.wait()
        server.stop(GRACE_S).wait()
