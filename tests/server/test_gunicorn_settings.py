"""How the web's processes keep their connections to the database."""

import psycopg
import pytest
from django.db import connection
from psycopg_pool import ConnectionPool

from flywheel.server import gunicorn_settings
from flywheel.system import broker


@pytest.mark.django_db
def test_a_connection_that_its_server_has_left_is_noticed_and_no_other_is_asked() -> None:
    with psycopg.connect(broker.conninfo(), autocommit=True) as held:
        asked = "SELECT query FROM pg_stat_activity WHERE pid = %s"
        held.execute("SELECT 'the last question'")
        gunicorn_settings.check(held)
        with connection.cursor() as cursor:
            cursor.execute(asked, [held.info.backend_pid])
            assert cursor.fetchone() == ("SELECT 'the last question'",)
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [held.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            gunicorn_settings.check(held)


def test_the_connection_that_was_given_back_last_is_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectionPool, "_get_ready_connection", gunicorn_settings.latest)
    with ConnectionPool(broker.conninfo(), min_size=3, max_size=3, open=True) as pool:
        pool.wait()
        first, second, third = (pool.getconn() for _ in range(3))
        for each in (third, first, second):
            pool.putconn(each)
        assert pool.getconn() is second
        pool.putconn(second)
        assert [pool.getconn() for _ in range(3)] == [second, first, third]
        for each in (first, second, third):
            pool.putconn(each)
