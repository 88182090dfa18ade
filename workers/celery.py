"""The Celery application of the workers: `celery -A workers.celery worker` and `celery -A workers.celery beat`.

By default the broker is the database itself (pgmq); any other by CELERY_BROKER_URL.

- A worker carries out jobs and says every few seconds that it lives. Asked to stop (SIGTERM), it puts the jobs in its
  hands back into the queue, to go on from where they stood; killed, its leases run out to the same effect.
- A process of the pool that is killed (out of memory, `kill -9`) ends the worker, and the supervisor starts it anew:
  the processes of billiard's pool take turns at one pipe, and who dies in its turn blocks the others for ever.
- Beat does the housekeeping itself rather than send messages about it: a pool that is busy with hours of training
  cannot starve the sweeper.
"""

import logging
import os
import signal
import socket
import threading
import time
import warnings
from typing import Any

from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import WorkerTerminate
from celery.signals import beat_init, worker_init, worker_ready
from celery.worker import consumer
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from flywheel.system import broker, devices, env

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
# The checks import every page; a worker needs none of them. `manage.py check` is where they belong.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

# Celery warns of root because pickles from a broker would run as root; ours accepts JSON alone.
warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")

log = logging.getLogger(__name__)
PULSE_EVERY_S = 5.0
STAND_BY_S = 1.0
SANDBOX_AFTER_S, SANDBOX_EVERY_S = 5.0, 3600.0
"""A worker that starts first takes what waits."""
IDLE_FOR_S = 120
"""Of silence inside a transaction. An owner's writes of its job have a lease of it (`Lease.guard`)."""
GIVE_BACK_S = 10.0
"""What the processes of a pool have to give back their jobs before the worker ends without them."""
NICENESS = 5
"""Of the worker and of the trainers that it starts."""

app = broker.app()
app.autodiscover_tasks(["workers"])


class Consumer(consumer.Consumer):  # type: ignore[misc]
    """Announces nothing to other workers or monitors. Nobody listens, and pgmq (1.1.4) lacks the function that would
    carry it: each announcement, every 2 s, would be an error in the database's log."""

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **more: Any) -> None:
        quiet = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat"), True)
        super().__init__(*args, worker_options={**(worker_options or {}), **quiet}, **more)


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


@beat_init.connect  # type: ignore[untyped-decorator]
@worker_init.connect  # type: ignore[untyped-decorator]
def _write_privately(**_: Any) -> None:
    """The processes of the pool, trainers and models inherit it."""
    env.prepare_home()


@beat_init.connect  # type: ignore[untyped-decorator]
@worker_init.connect  # type: ignore[untyped-decorator]
def _hold_no_lock_while_stopped(**_: Any) -> None:
    connection_created.connect(end_when_idle)


def end_when_idle(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Let PostgreSQL end a session that stands still in a transaction: a process that was stopped there would hold its
    locks for as long, and whoever waits for them would hang without a word."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", [f"{IDLE_FOR_S}s"])


@worker_init.connect  # type: ignore[untyped-decorator]
def _listen_for_work_on_our_devices(**_: Any) -> None:
    for label in devices.offered():
        app.amqp.queues.select_add(broker.queue_of(label))


@worker_init.connect  # type: ignore[untyped-decorator]
def _let_the_web_go_first(**_: Any) -> None:
    """Reading what arrived, evaluating and training can wait a moment; who sends or looks at something should not."""
    os.nice(NICENESS)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _stop_on_sigterm(**_: Any) -> None:
    """Celery would wait for the end of every running job, which may be hours away. This ends the pool at once; a job
    in hand sees SystemExit and is given back."""

    def stop(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise WorkerTerminate(os.EX_OK)

    signal.signal(signal.SIGTERM, stop)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_anew_after_a_kill(sender: Any, **_: Any) -> None:
    """The others give back what they hold first. Celery's own way to stop would wait for the turn that never ends."""
    pool = sender.pool._pool
    if not hasattr(pool, "on_process_down") or pool.on_process_down is not None:
        return  # no processes, or those of a broker with an event loop, which have a pipe each

    def end(process: Any) -> None:
        if process.exitcode >= 0:
            return
        log.error("process %s was killed by signal %s: the worker starts anew", process.pid, -process.exitcode)
        others = [other for other in pool._pool if other is not process]
        for other in others:
            other.terminate()
        deadline = time.monotonic() + GIVE_BACK_S
        while any(other.exitcode is None for other in others) and time.monotonic() < deadline:
            time.sleep(0.05)
        os._exit(os.EX_SOFTWARE)

    pool.on_process_down = end


@worker_ready.connect  # type: ignore[untyped-decorator]
def _say_what_the_sandbox_has_here(sender: Any, **_: Any) -> None:
    """Untrusted code runs on this machine, so it is this one whose layers are tried, and not the web's."""
    from flywheel.environments.sandbox_machines import keep
    from workers.sandbox import host
    from workers.sandbox.report import report

    def tell() -> None:
        try:
            keep(socket.gethostname(), report().to_json())
        except Exception:
            log.exception("the sandbox was not tried; it is tried again in an hour")
        finally:
            host.close()
            connection.close()

    def begin() -> None:
        threading.Thread(target=tell, name="sandbox report", daemon=True).start()

    sender.timer.call_after(SANDBOX_AFTER_S, begin)
    sender.timer.call_repeatedly(SANDBOX_EVERY_S, begin)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _stand_in_for_beats_judge(**_: Any) -> None:
    """The way back of a ramp does not wait until a killed beat has started anew."""
    from workers.tasks import stand_in

    def stand_by() -> None:
        while True:
            time.sleep(STAND_BY_S)
            try:
                stand_in()
            except Exception as error:
                log.warning("no stand-in for the judge: %s", error)
                connection.close()

    threading.Thread(target=stand_by, name="stand-in", daemon=True).start()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _say_that_the_worker_lives(sender: Any, **_: Any) -> None:
    from workers.tasks import report, report_devices

    def pulse() -> None:
        try:
            report("worker")
            report_devices()
        finally:
            connection.close()

    pulse()
    sender.timer.call_repeatedly(PULSE_EVERY_S, pulse)
