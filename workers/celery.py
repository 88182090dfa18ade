"""The Celery application of the workers: `celery -A workers.celery worker` and `celery -A workers.celery beat`.

By default the broker is the database itself (pgmq); any other by CELERY_BROKER_URL.

- A worker carries out jobs and says every few seconds that it lives. Asked to stop (SIGTERM), it puts the jobs in its
  hands back into the queue, to go on from where they stood; killed, its leases run out to the same effect.
- Beat does the housekeeping itself rather than send messages about it: a pool that is busy with hours of training
  cannot starve the sweeper.
"""

import logging
import os
import signal
import threading
import warnings
from typing import Any

from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import WorkerTerminate
from celery.signals import worker_ready
from django.db import connection

from flywheel.broker import app as broker_app

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
# The checks import every page; a worker needs none of them. `manage.py check` is where they belong.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

# Celery warns of root because pickles from a broker would run as root; ours accepts JSON alone.
warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

log = logging.getLogger(__name__)
PULSE_EVERY_S = 5.0

app = broker_app()
app.autodiscover_tasks(["workers"])


class Housekeeper(Scheduler):  # type: ignore[misc]
    """Runs what is due here and now, each in a thread of its own, and needs no broker for it.

    What is still at it when it is due again is not started twice; it does not hold up the others.
    """

    producer = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.threads: dict[str, threading.Thread] = {}
        super().__init__(*args, **kwargs)

    def apply_async(self, entry: ScheduleEntry, producer: Any = None, advance: bool = True, **_: Any) -> None:
        before = self.threads.get(entry.name)
        if before is None or not before.is_alive():
            self.threads[entry.name] = threading.Thread(target=self._run, args=[entry], name=entry.name, daemon=True)
            self.threads[entry.name].start()

    def _run(self, entry: ScheduleEntry) -> None:
        try:
            self.app.tasks[entry.task]()
        except Exception:
            log.exception("%s failed; it is tried again in %s", entry.name, entry.schedule)
        finally:
            connection.close()

    def setup_schedule(self) -> None:
        self.app.loader.import_default_modules()
        self.merge_inplace(self.app.conf.beat_schedule)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _stop_on_sigterm(**_: Any) -> None:
    """Celery would wait for the end of every running job, which may be hours away. This ends the pool at once; a job
    in hand sees SystemExit and is given back."""

    def stop(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise WorkerTerminate(os.EX_OK)

    signal.signal(signal.SIGTERM, stop)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _say_that_the_worker_lives(sender: Any, **_: Any) -> None:
    from workers.tasks import report

    def pulse() -> None:
        try:
            report("worker")
        finally:
            connection.close()

    pulse()
    sender.timer.call_repeatedly(PULSE_EVERY_S, pulse)
