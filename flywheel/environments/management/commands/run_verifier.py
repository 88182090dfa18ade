"""`manage.py run_verifier FILE.py --trace TRACE.json [--target TARGET.json]`: one JSON line with the verdict."""

import json
import math
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from flywheel.environments.sandbox_machines import SandboxError, score


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = (
        "Run a Python verifier on a trace, in the sandbox, and print its verdict as one JSON line: status (ok, or why "
        "there is no score), score, reason, parts, printed, seconds, peak_bytes. "
        "A trace that is left unscored is an answer too, and ends with status 0."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="Python with verify(trace, target)")
        parser.add_argument("--trace", type=Path, required=True, help="JSON, as GET /api/v1/trajectories/… gives it")
        parser.add_argument("--target", type=Path, help="JSON; None without it")
        parser.add_argument("--low", type=float, default=0.0, help="lower end of the verifier's declared range")
        parser.add_argument("--high", type=float, default=1.0, help="its upper end")

    def handle(self, *args: Any, **options: Any) -> None:
        low, high = options["low"], options["high"]
        if not -math.inf < low < high < math.inf:
            raise CommandError(f"--low {low:g} --high {high:g}: expected a range, --low below --high, both finite")
        code = _text(options["file"])
        trace = _json(options["trace"])
        target = _json(options["target"]) if options["target"] else None
        try:
            found = score(code, trace, target, low=low, high=high)
        except SandboxError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(json.dumps(found, ensure_ascii=False))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path}: it must be UTF-8") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: it is no JSON: {error}") from None
