"""A database from before the squash is taken over whole, or refused."""

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from flywheel.system.migration_history import LAST, SQUASHED, UnfinishedHistory, adopt

pytestmark = pytest.mark.django_db


def recorded() -> set[tuple[str, str]]:
    return {key for key in MigrationRecorder(connection).applied_migrations() if key[0] in LAST}


def record_instead(*migrations: tuple[str, str]) -> None:
    recorder = MigrationRecorder(connection)
    recorder.migration_qs.filter(app__in=LAST).delete()
    for app, name in migrations:
        recorder.record_applied(app, name)


def test_a_database_at_the_end_of_the_former_migrations_has_the_squashed_ones() -> None:
    squashed = {(app, name) for app, name in recorded() if name <= SQUASHED[app]}
    record_instead(*[(app, "0001_initial") for app in LAST], *LAST.items())
    assert adopt()
    assert recorded() == squashed, "what came since is still to be done"
    assert not adopt(), "once is enough"


def test_a_database_that_is_taken_over_goes_on_from_there() -> None:
    now = recorded()
    MigrationExecutor(connection).migrate(list(SQUASHED.items()))  # in one plan: each alone takes its time
    assert recorded() < now, "as a database that the former ones have left"
    record_instead(*LAST.items())
    call_command("prepare")
    assert recorded() == now
    assert not adopt()


def test_a_database_in_the_middle_of_the_former_migrations_is_refused() -> None:
    former = [*LAST.items(), ("evals", "0001_initial")]
    former.remove(("evals", LAST["evals"]))
    record_instead(*former)
    with pytest.raises(UnfinishedHistory, match=r"had not got to evals\.0008_sealed_split\. Start"):
        adopt()
    with pytest.raises(CommandError, match="empty FLYWHEEL_HOME"):
        call_command("prepare")
    assert recorded() == set(former)


def test_a_new_database_is_left_alone() -> None:
    before = recorded()
    assert not adopt()
    assert recorded() == before
