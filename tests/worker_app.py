"""The workers' Celery application with the handlers of `tests/plays.py` added, for `celery -A tests.worker_app`."""

import django

from workers.celery import app as app

django.setup()

from tests import plays as plays  # noqa: E402 - the rows' models exist only after setup
