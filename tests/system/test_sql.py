"""Statements by hand: what `planned` hands to PostgreSQL, and what it makes of its refusals."""

from datetime import UTC, datetime

import psycopg
import pytest
from django.db import DataError, NotSupportedError, OperationalError, connection, transaction

from flywheel.system.sql import bound, patience, planned

pytestmark = pytest.mark.django_db(transaction=True)
WORDS = ["plain", "null", "", 'a "quoted" word', "back\\slash", "{a,b}", "ä, ö", " ", "%s $1"]


def test_values_arrive_as_they_are() -> None:
    now = datetime(2026, 11, 21, 22, 1, 2, 345678, tzinfo=UTC)
    given = [7, None, "it's", now, b"\x00\xff", 0.5, True]
    types = ("int", "text", "text", "timestamptz", "bytea", "float8", "bool")
    (row,) = planned(f"SELECT {', '.join(f'%s::{name}' for name in types)}", given)
    assert list(row) == given


def test_lists_are_taken_apart_nowhere_but_between_their_members() -> None:
    assert [word for (word,) in planned("SELECT unnest(%s::text[])", [WORDS])] == WORDS
    assert [list(row) for row in planned("SELECT unnest(%s::int[]), unnest(%s::bool[])", [[1, -2], [True, False]])] == [
        [1, True],
        [-2, False],
    ]
    assert planned("SELECT unnest(%s::text[])", [[]]) == []


def test_text_with_nul_is_refused_and_not_cut_off() -> None:
    for value in ("a\x00b", ["a\x00b"]):
        with pytest.raises(DataError):
            planned("SELECT %s::text", [value])


def test_it_belongs_to_the_transaction_that_is_open_and_begins_one() -> None:
    with transaction.atomic():
        planned("SELECT set_config('flywheel.word', 'within', true)", [])
        assert planned("SELECT current_setting('flywheel.word', true)", []) == [("within",)]
    assert planned("SELECT current_setting('flywheel.word', true)", []) == [("",)]


def test_a_plan_outlives_a_transaction_that_failed() -> None:
    statement = "SELECT 10 / %s::int"

    @transaction.atomic
    def fail() -> None:
        assert planned(statement, [5]) == [(2,)]
        bound("SELECT %s::int", [1])
        planned(statement, [0])

    for _ in range(3):
        with pytest.raises(DataError):
            fail()
        assert planned(statement, [2]) == [(5,)]


def test_a_column_that_has_another_type_by_now_is_planned_anew() -> None:
    statement, retype = "SELECT word FROM changing", "ALTER TABLE changing ALTER word TYPE {0} USING word::{0}"
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE changing AS SELECT '7'::text AS word")
        assert planned(statement, []) == [("7",)]
        cursor.execute(retype.format("integer"))
        assert planned(statement, []) == [(7,)]
        cursor.execute(retype.format("text"))
        with pytest.raises(NotSupportedError), transaction.atomic():
            planned(statement, [])
        assert planned(statement, []) == [("7",)]
        cursor.execute("DROP TABLE changing")


def test_an_error_has_the_cause_that_psycopg_names() -> None:
    @transaction.atomic
    def sleep() -> None:
        planned("SELECT set_config('statement_timeout', '1ms', true)", [])
        planned("SELECT pg_sleep(%s::float8)", [5])

    with pytest.raises(OperationalError) as caught:
        sleep()
    assert isinstance(caught.value.__cause__, psycopg.errors.QueryCanceled)


def test_a_connection_that_is_gone_says_so_and_the_next_one_plans_anew() -> None:
    statement = "SELECT pg_backend_pid(), %s::text"
    ((pid, _),) = planned(statement, ["a"])
    with psycopg.connect(**connection.get_connection_params() | {"context": None}) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
    with pytest.raises(OperationalError):
        planned(statement, ["b"])
    connection.close()
    ((new, word),) = planned(statement, ["c"])
    assert new != pid
    assert word == "c"


def test_patience_holds_in_its_transaction_and_begins_it() -> None:
    ask = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
    before = planned(ask, [])
    for _ in range(2):
        with transaction.atomic():
            patience(30, 10)
            assert planned(ask, []) == [("30s", "10s")]
            with transaction.atomic():
                patience(20, 5)
            assert planned(ask, []) == [("20s", "5s")]
            assert planned("SELECT now() = statement_timestamp()", []) == [(False,)]
        assert planned(ask, []) == before
