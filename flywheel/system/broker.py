"""Which broker carries wake-ups, and the Celery application that the web sends through and the workers listen with."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import psycopg
from django.conf import settings
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from celery import Celery

QUEUE = "flywheel"
"""What any worker may take; what wants a device has a queue of its label (`queue_of`)."""
EXPIRE_EVERY_S = 300.0
ADD_UP_EVERY_S = 60.0
SWEEP_EVERY_S = 5.0
JUDGE_EVERY_S = 1.0


@lru_cache(maxsize=1)
def app() -> "Celery":
    """The one Celery application of this process. Its settings are read at its first use."""
    from celery import Celery

    made = Celery("flywheel")
    made.add_defaults(celery_settings)
    return made


def celery_settings() -> dict[str, Any]:
    """Celery's configuration."""
    common = {
        "task_default_queue": QUEUE,
        "task_ignore_result": True,
        # A wake-up is acknowledged when it is taken: a lost one is sent again by the sweeper, so that no broker's
        # redelivery rules matter.
        "task_acks_late": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_concurrency": 2,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        # How long the pool waits for the result of a process that is gone. We keep no results.
        "worker_lost_wait": 0.5,
        # A revoke by process id may hit another task; cancelling is a column of the job.
        "worker_enable_remote_control": False,
        "worker_consumer": "workers.celery:Consumer",
        "broker_connection_retry_on_startup": True,
        # Each of them is three connections to the database; the web's threads take turns.
        "broker_pool_limit": 2,
        "beat_scheduler": "workers.celery:Housekeeper",
        "beat_schedule": {
            # Often enough that an orphan has a new owner well within two leases.
            "sweep": {"task": "workers.sweep", "schedule": min(SWEEP_EVERY_S, settings.JOB_LEASE_SECONDS / 4)},
            "judge": {"task": "workers.judge", "schedule": JUDGE_EVERY_S},
            "watch": {"task": "workers.watch", "schedule": SWEEP_EVERY_S},
            "self_test": {"task": "workers.self_test", "schedule": SWEEP_EVERY_S},
            "advance": {"task": "workers.advance", "schedule": SWEEP_EVERY_S},
            "deliver": {"task": "workers.deliver", "schedule": SWEEP_EVERY_S},
            "detect": {"task": "workers.detect", "schedule": SWEEP_EVERY_S},
            "add_up": {"task": "workers.add_up", "schedule": ADD_UP_EVERY_S},
            "expire": {"task": "workers.expire", "schedule": EXPIRE_EVERY_S},
        },
    }
    # Nobody who clicks waits for a broker that is away: one attempt, and the sweeper comes later.
    patience = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    if settings.BROKER_URL:
        return {**common, "broker_url": settings.BROKER_URL, "broker_transport_options": patience}
    return {
        **common,
        "broker_url": "pgmq://database",
        "broker_transport_options": {
            **patience,
            "conn_string": _pgmq_conninfo(),
            "init_extension": False,
            "use_notify": True,
            "polling_interval": 0.2,
            "wait_time_seconds": 0,
            "pool_size": 2,
            "pool_timeout": 5,
        },
    }


def queue_of(label: str) -> str:
    """The queue of what only workers with devices of this label take; that of everybody where it is empty."""
    return f"{QUEUE}_{label}" if label else QUEUE


def conninfo() -> str:
    """The database in libpq's key=value form."""
    return make_conninfo(**_connection())


def install() -> None:
    """Make the message tables in the database when it is the broker. Does nothing when they are there."""
    if settings.BROKER_URL:
        return
    from pgmq.install import get_embedded_install_sql

    with psycopg.connect(conninfo()) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('flywheel.system.broker.install'))")
        if connection.execute("SELECT to_regnamespace('pgmq')").fetchone() == (None,):
            connection.execute(get_embedded_install_sql().encode())


def _connection() -> dict[str, Any]:
    database: dict[str, Any] = settings.DATABASES["default"]
    named = {
        "dbname": database["NAME"],
        "user": database["USER"],
        "password": database["PASSWORD"],
        "host": database["HOST"],
        "port": database["PORT"],
    }
    # Not the pool of the web's threads, which is Django's own option.
    options = {name: value for name, value in database["OPTIONS"].items() if name != "pool"}
    return {name: value for name, value in named.items() if value} | options


def _pgmq_conninfo() -> str:
    """The same for the package pgmq, which has two faults (1.1.4): it forgets every option but these five, and pastes
    them together unquoted. So each value goes in quoted already, and the options ride along with the last."""
    named = _connection()
    options = {name: named.pop(name) for name in list(named) if name not in _PGMQ_KNOWS}
    ends = f"-c idle_in_transaction_session_timeout={1000 * IDLE_FOR_S}"
    options["options"] = f"{options.get('options', '')} {ends}".strip()
    quoted = {name: make_conninfo(**{name: value}).partition("=")[2] for name, value in named.items()}
    # It fills in a host and a password when there are none; libpq takes an empty one for its own default.
    quoted = {**dict.fromkeys(_PGMQ_KNOWS, "''"), "port": "5432", **quoted}
    if options:
        quoted["password"] += " " + make_conninfo(**options)
    return make_conninfo(**quoted)


IDLE_FOR_S = 10
"""Of silence inside one of its transactions, which take milliseconds. A worker that was stopped there would keep all
others from starting, as each of them alters the table of messages (`use_notify`) when it begins."""
_PGMQ_KNOWS = ("host", "port", "dbname", "user", "password")
