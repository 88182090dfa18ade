"""Which broker carries wake-ups, as Celery settings for both the web (which sends) and the workers (which receive)."""

from typing import Any

import psycopg
from django.conf import settings
from psycopg.conninfo import make_conninfo

QUEUE = "flywheel"


def celery_settings() -> dict[str, Any]:
    """Celery's configuration."""
    common = {
        "task_default_queue": QUEUE,
        "task_ignore_result": True,
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "broker_connection_retry_on_startup": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "beat_schedule": {"sweep": {"task": "workers.sweep", "schedule": 5.0}},
        "beat_schedule_filename": str(settings.HOME / "celerybeat"),
    }
    if settings.BROKER_URL:
        return {**common, "broker_url": settings.BROKER_URL}
    return {
        **common,
        "broker_url": "pgmq://",
        "broker_transport_options": {
            # The URL form drops a socket directory, so the connection is said in libpq's own words.
            "conn_string": conninfo(),
            "init_extension": False,
            "use_notify": True,
            "polling_interval": 0.2,
            "wait_time_seconds": 0,
            "pool_size": 2,
        },
    }


def conninfo() -> str:
    """The database in libpq's key=value form."""
    database = settings.DATABASES["default"]
    return make_conninfo(
        dbname=database["NAME"],
        user=database["USER"] or None,
        password=database["PASSWORD"] or None,
        host=database["HOST"] or None,
        port=database["PORT"] or None,
        **database["OPTIONS"],
    )


def install() -> None:
    """Make the message tables in the database when it is the broker. Does nothing when they are there."""
    if settings.BROKER_URL:
        return
    from pgmq.install import install_pgmq_from_sql

    with psycopg.connect(conninfo(), autocommit=True) as connection:
        if connection.execute("SELECT to_regnamespace('pgmq')").fetchone() != (None,):
            return
    install_pgmq_from_sql(dsn=conninfo())
