"""The workers' Celery application with the handlers of `tests/plays.py` added, for `celery -A tests.worker_app`."""

import django

from workers.celery import app as app

django.setup()

from flywheel import urls as urls  # noqa: E402 - who writes a notice names an address, and each fork would read them
from tests import plays as plays  # noqa: E402 - the rows' models exist only after setup
