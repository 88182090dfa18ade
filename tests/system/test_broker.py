"""The broker in the database: found wherever the database is, and made once."""

from collections.abc import Callable

import psycopg
import pytest
from django.db import connection
from pgmq.base import PGMQConfig
from psycopg.conninfo import conninfo_to_dict

from flywheel.system import broker
from tests.worker import Worker


def as_pgmq_sees_it(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What libpq gets of a database after the package pgmq has had its way with it."""
    monkeypatch.setattr("django.conf.settings.DATABASES", {"default": settings})
    monkeypatch.delenv("DATABASE_URL", raising=False)
    options = broker.celery_settings()["broker_transport_options"]
    found = conninfo_to_dict(PGMQConfig(conn_string=options["conn_string"], init_extension=False).dsn)
    return {name: str(value) for name, value in found.items() if value}


@pytest.mark.parametrize(
    "database",
    [
        {"NAME": "flywheel", "USER": "flywheel", "PASSWORD": "", "HOST": "/srv/Fly Wheel/it's", "PORT": "5432"},
        {"NAME": "n", "USER": "u", "PASSWORD": "p w'x\\y=z", "HOST": "db.example", "PORT": "5433"},
        {"NAME": "n", "USER": "", "PASSWORD": "", "HOST": "", "PORT": ""},
    ],
)
def test_every_address_of_a_database_arrives_whole(database: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = as_pgmq_sees_it({**database, "OPTIONS": {"sslmode": "require", "pool": {"max_size": 4}}}, monkeypatch)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    expected = {names[key]: value for key, value in database.items() if value} | {"sslmode": "require"}
    assert {name: seen.get(name) for name in expected} == expected
    assert set(seen) <= set(expected) | {"port", "options"}


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_message_is_sent_and_stays_for_a_worker(broker_installed: None) -> None:
    broker.install()
    broker.app().send_task("workers.detect", [1], retry=False)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM pgmq.q_{broker.QUEUE}")
        assert cursor.fetchone() == (1,)


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_worker_that_was_stopped_while_it_looks_for_messages_keeps_no_other_from_starting(
    start_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in a transaction, and each worker alters the table when it begins."""
    monkeypatch.setattr(broker, "IDLE_FOR_S", 2)
    broker.app().send_task("workers.detect", [1], retry=False)
    options = broker.celery_settings()["broker_transport_options"]
    with psycopg.connect(PGMQConfig(conn_string=options["conn_string"], init_extension=False).dsn) as stopped:
        stopped.execute("SELECT * FROM pgmq.read(%s, 1, 1)", [broker.QUEUE])
        start_worker("-c", "1")
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            stopped.execute("SELECT 1")


@pytest.mark.parametrize("url", ["redis://db:6379/0", "amqp://db//"])
def test_another_broker_is_taken_by_its_url(url: str, settings: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.conf.settings.BROKER_URL", url)
    assert broker.celery_settings()["broker_url"] == url
    broker.install()
