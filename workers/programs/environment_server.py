"""`python -m workers.programs.environment_server OPTIONS`: what `manage.py serve_environment` becomes, with its options
as JSON.

The package of the web, which has the command, knows nothing of the workers; they have what verifiers want.
"""

import contextlib
import json
import os
import signal
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from django.db import connections

    from flywheel.core.interop.environment_exports import CannotExport
    from workers.judging.llm_judge import JudgeError
    from workers.programs import environment_hosting

    asked = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a judge may take minutes to its canaries, and nothing is served yet
    try:
        made = environment_hosting.opened(**asked)
    except (CannotExport, JudgeError, ValueError) as error:
        sys.exit(f"flywheel: {error}")
    except OSError as error:
        where = error.filename or f"{asked['host']}:{asked['port']}"
        sys.exit(f"flywheel: {where}: {error.strerror}")
    connections.close_all()  # from here on nothing is read
    if asked["rows"]:
        print(f"{len(made.gym.tasks)} rows in {asked['rows']}")
    print(f"Serving {asked['environment']} with {len(made.gym.tasks)} tasks of {made.task_set}: {made.url}")
    if made.token:
        print(f"Authorization: Bearer {made.token}")
    sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with made, contextlib.suppress(KeyboardInterrupt):
        made.serve_forever()
    made.tell()
    with contextlib.suppress(OSError):
        print("stopped", flush=True)
    os._exit(0)  # what still waits for a judge, perhaps for minutes, has nobody to tell


if __name__ == "__main__":
    main()
