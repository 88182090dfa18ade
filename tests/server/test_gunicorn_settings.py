"""How the web's processes keep their connections to the database."""

import psycopg
import pytest
from django.db import connection

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
