"""Databases that were made before the migrations were squashed into one or two for each app.

The squashed migrations make what the former ones made. A database that these brought to their end therefore needs
nothing but another record of them; one that they left earlier is refused.
"""

from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder

FIRST = "0100"
"""The number of the first squashed migration of each app. No former one had so high a number, in this history or the
one before it, so a name tells which history it is of.
"""
LAST = {
    "accounts": "0006_notices",
    "agents": "0009_chosen_bases",
    "environments": "0004_reward_recipes",
    "evals": "0009_chosen_base_moves",
    "failures": "0005_own_scores",
    "promotions": "0008_shadows",
    "training": "0022_dataset_indexes",
    "trajectories": "0014_shadow_source",
}
"""The last of the former migrations of each app."""
LAST_COMMIT = "e6bb5d2c"
"""It brings a database to their end, and takes over one of the history before them."""
SQUASHED = [(app, "0100_tables") for app in LAST] + [
    ("failures", "0101_triggers"),
    ("promotions", "0101_immutable_rows"),
    ("trajectories", "0101_triggers"),
]
"""The migrations that stand for the former ones; what came since is still to be done."""


class UnfinishedHistory(Exception):
    """The former migrations did not reach their end here."""


@transaction.atomic
def adopt() -> bool:
    """Record the squashed migrations where the former ones have come to their end; whether that was so.

    Nothing happens in a new database, or in one that has the squashed ones. Raises UnfinishedHistory.
    """
    recorder = MigrationRecorder(connection)
    former = {(app, name) for app, name in recorder.applied_migrations() if app in LAST and name < FIRST}
    if not former:
        return False
    if missing := sorted(f"{app}.{name}" for app, name in LAST.items() if (app, name) not in former):
        raise UnfinishedHistory(
            f"This database was made by an older Flywheel, which had not got to {', '.join(missing)}. Start commit "
            f"{LAST_COMMIT} of Flywheel once with it, then this one; or begin with an empty FLYWHEEL_HOME."
        )
    for app, name in former:
        recorder.record_unapplied(app, name)
    for app, name in SQUASHED:
        recorder.record_applied(app, name)
    return True
