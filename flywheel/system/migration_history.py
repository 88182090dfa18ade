"""Databases that were made before the migrations were squashed into one or two for each app.

The squashed migrations make the same tables, indexes, constraints and triggers. A database that the former ones brought
to their end therefore needs nothing but another record of them; one that they left earlier is refused.
"""

from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

LAST = {
    "accounts": "0005_audit_of_subject",
    "agents": "0002_served",
    "environments": "0013_trial_trajectories",
    "evals": "0008_sealed_split",
    "failures": "0010_said_by",
    "promotions": "0004_sealed_part",
    "training": "0004_reward_audits",
    "trajectories": "0023_search_rollouts",
}
"""The last of the former migrations of each app."""
SQUASHED = dict.fromkeys(LAST, "0001_tables") | {
    "failures": "0002_triggers",
    "promotions": "0002_immutable_rows",
    "trajectories": "0002_triggers",
}
"""The last of the squashed ones that stand for them; what came since is still to be done."""


class UnfinishedHistory(Exception):
    """The former migrations did not reach their end here."""


@transaction.atomic
def adopt() -> bool:
    """Record the squashed migrations where the former ones have come to their end; whether that was so.

    Nothing happens in a new database, or in one that has the squashed ones. Raises UnfinishedHistory.
    """
    recorder = MigrationRecorder(connection)
    present = {key for key in MigrationLoader(connection).disk_migrations if key[0] in LAST}
    squashed = {(app, name) for app, name in present if name <= SQUASHED[app]}
    former = {key for key in recorder.applied_migrations() if key[0] in LAST} - present
    if not former:
        return False
    if missing := sorted(f"{app}.{name}" for app, name in LAST.items() if (app, name) not in former):
        raise UnfinishedHistory(
            f"This database was made by an older Flywheel, which had not got to {', '.join(missing)}. Start the last "
            "commit before the migrations were squashed once with it, or begin with an empty FLYWHEEL_HOME."
        )
    recorder.migration_qs.filter(app__in=LAST).delete()
    for app, name in sorted(squashed):
        recorder.record_applied(app, name)
    return True
