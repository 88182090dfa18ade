"""Before anything else: a home of the test run's own, and one PostgreSQL for all its processes.

pytest loads this plugin before Django reads its settings. The first process starts the server and stops it at the end;
xdist's workers inherit its URL. With DATABASE_URL set, that server is used instead.

Where FLYWHEEL_TEST_COUNTS names a file, the run's counts are appended to it, for `.ci/run`.
"""

import gc
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest
from hypothesis import HealthCheck, settings

_BEGUN = time.monotonic()
gc.disable()  # until everything is collected: what is made until then stays
_OWNER = "FLYWHEEL_TEST_HOME" not in os.environ
if _OWNER:
    os.environ["FLYWHEEL_TEST_HOME"] = tempfile.mkdtemp(prefix="flywheel-tests-")
HOME = Path(os.environ["FLYWHEEL_TEST_HOME"])
os.environ["FLYWHEEL_HOME"] = str(HOME / os.environ.get("PYTEST_XDIST_WORKER", "main"))
os.environ["FLYWHEEL_LEASE_SECONDS"] = "2"
for variable in (
    "CELERY_BROKER_URL",
    "FLYWHEEL_HTTPS",
    "FLYWHEEL_DEBUG",
    "FLYWHEEL_BIND",
    "FLYWHEEL_PORT",
    "FLYWHEEL_GRPC_PORT",
):
    os.environ.pop(variable, None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred processes would each compile everything anew
sys.dont_write_bytecode = False
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright's loop runs beside the ORM in browser tests
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")  # a busy machine takes its time, also over a property (tests/waiting.py)

TEMPLATE = "test_flywheel_template"
"""The migrated database that those of xdist's processes are copies of."""
_started = False
if _OWNER and "DATABASE_URL" not in os.environ:
    from flywheel.system import postgres

    with patch.dict(postgres.SETTINGS, fsync="off", full_page_writes="off"):  # nothing here is to outlive the machine
        os.environ["DATABASE_URL"] = postgres.start(HOME / "postgres").url
    _started = True


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and not among the tests and libraries themselves: it took an eighth of the CPU."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if _OWNER and "FLYWHEEL_TEST_COUNTS" in os.environ:
        counts, _ = config.pluginmanager.getplugin("terminalreporter").build_summary_stats_line()
        with open(os.environ["FLYWHEEL_TEST_COUNTS"], "a") as file:
            words = ", ".join(text for text, _ in counts)
            file.write(f"==== {words} in {time.monotonic() - _BEGUN:.2f}s ====\n")
    if _started:
        from flywheel.system import postgres

        postgres.stop(HOME / "postgres")
    elif _OWNER:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as session:
            session.execute(f"DROP DATABASE IF EXISTS {TEMPLATE}")
    if _OWNER:
        shutil.rmtree(HOME, ignore_errors=True)
