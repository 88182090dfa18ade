#!/usr/bin/env python
"""Django's command line, on the embedded PostgreSQL when no DATABASE_URL is set."""

import os
import sys

WITHOUT_DATABASE = {
    "check",
    "makemigrations",
    "help",
    "version",
    "--help",
    "--version",
    "diffsettings",
    "shell_plus",
    "run_verifier",
}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    from flywheel.system import env, postgres
    from flywheel.system.data_directory import PostgresError

    try:
        command = sys.argv[1] if len(sys.argv) > 1 else "help"
        if command not in WITHOUT_DATABASE:
            home = env.prepare_home()
            if not env.database_url():
                os.environ["DATABASE_URL"] = postgres.start(home / "postgres").url
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    except (env.BadSetting, PostgresError) as error:
        sys.exit(f"flywheel: {error}")


if __name__ == "__main__":
    main()
