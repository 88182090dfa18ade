"""The Celery application of the workers: `celery -A workers.celery worker` and `celery -A workers.celery beat`.

By default the broker is the database itself (pgmq); any other by CELERY_BROKER_URL.

- A worker carries out jobs and says every few seconds that it lives. Asked to stop (SIGTERM), it puts the jobs in its
  hands back into the queue, to go on from where they stood; killed, its leases run out to the same effect.
- Beat does the housekeeping itself rather than send messages about it: a pool that is busy with hours of training
  cannot starve the sweeper.
"""

import os
import signal
from typing import Any

from celery.beat import ScheduleEntry, Scheduler
from celery.signals import worker_process_init, worker_ready

from flywheel.broker import app as broker_app

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
# SIGTERM would wait for the end of every running job, which may be hours away.
os.environ.setdefault("REMAP_SIGTERM", "SIGQUIT")

PULSE_EVERY_S = 5.0

app = broker_app()
app.autodiscover_tasks(["workers"])


class Housekeeper(Scheduler):  # type: ignore[misc]
    """Runs what is due here and now, in beat's own process, and needs no broker for it."""

    producer = None

    def apply_async(self, entry: ScheduleEntry, producer: Any = None, advance: bool = True, **_: Any) -> None:
        from django.db import close_old_connections

        close_old_connections()
        try:
            self.app.tasks[entry.task]()
        finally:
            close_old_connections()

    def setup_schedule(self) -> None:
        import django

        django.setup()
        self.app.loader.import_default_modules()
        self.merge_inplace(self.app.conf.beat_schedule)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _say_that_the_worker_lives(sender: Any, **_: Any) -> None:
    from workers.tasks import report

    def pulse() -> None:
        from django.db import connection

        try:
            report("worker")
        finally:
            connection.close()

    pulse()
    sender.timer.call_repeatedly(PULSE_EVERY_S, pulse)


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _end_in_order(**_: Any) -> None:
    """A stopping worker terminates its pool; the job in hand is to be given back, not found dead."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(f"the worker is told to stop ({signal.Signals(number).name})")

    signal.signal(signal.SIGTERM, stop)
