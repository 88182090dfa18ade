"""A database from before the squash is taken over whole, or refused."""

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from flywheel.system.migration_history import FIRST, LAST, SQUASHED, UnfinishedHistory, adopt

pytestmark = pytest.mark.django_db


def recorded() -> set[tuple[str, str]]:
    return {key for key in MigrationRecorder(connection).applied_migrations() if key[0] in LAST}


def record_instead(*migrations: tuple[str, str]) -> None:
    recorder = MigrationRecorder(connection)
    recorder.migration_qs.filter(app__in=LAST).delete()
    for app, name in migrations:
        recorder.record_applied(app, name)


def test_a_database_at_the_end_of_the_former_migrations_has_the_squashed_ones() -> None:
    record_instead(*[(app, "0001_tables") for app in LAST], *LAST.items())
    assert adopt()
    assert recorded() == set(SQUASHED)
    assert not adopt(), "once is enough"


def test_a_database_that_is_taken_over_goes_on_from_there() -> None:
    now = recorded()
    record_instead(*LAST.items())
    adopt()
    executor = MigrationExecutor(connection)
    executor.loader.check_consistent_history(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    assert {(migration.app_label, migration.name) for migration, _ in plan} == now - set(SQUASHED)


def test_prepare_takes_a_database_over_before_it_migrates() -> None:
    now = recorded()
    record_instead(*LAST.items(), *now - set(SQUASHED))  # the tables are there: what came since is done
    call_command("prepare")
    assert recorded() == now


@pytest.mark.parametrize(
    ("former", "missing"),
    [
        ([*(LAST | {"evals": "0008_chosen_base"}).items()], r"to evals\.0009_chosen_base_moves\. Start"),
        ([(app, "0001_tables") for app in LAST], r"accounts\.0006_notices, .*, trajectories\.0014_shadow_source\."),
        ([("accounts", "0005_audit_of_subject"), ("trajectories", "0023_search_rollouts")], r"accounts\.0006_notices"),
    ],
    ids=["one short of the end", "at the first squash", "of the very first history"],
)
def test_a_database_that_is_not_at_the_end_of_the_former_migrations_is_refused(
    former: list[tuple[str, str]], missing: str
) -> None:
    record_instead(*former)
    with pytest.raises(UnfinishedHistory, match=missing):
        adopt()
    with pytest.raises(CommandError, match=r"Start commit e6bb5d2c .* once with it, .*; or .* empty FLYWHEEL_HOME"):
        call_command("prepare")
    assert recorded() == set(former)


def test_a_new_database_is_left_alone() -> None:
    before = recorded()
    assert not adopt()
    assert recorded() == before


def test_no_migration_could_be_taken_for_a_former_one() -> None:
    assert all(name >= FIRST for _, name in recorded())
