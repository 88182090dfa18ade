from typing import Any

from django.db import migrations

AT_ONCE = 5_000

_SOME = """
WITH chosen AS (
    SELECT id FROM trajectories_trajectory
    WHERE source = 'rollout' AND detected_at IS NOT NULL AND id > %s ORDER BY id LIMIT %s
), marked AS (
    UPDATE trajectories_trajectory AS kept SET detected_at = NULL FROM chosen WHERE kept.id = chosen.id
)
SELECT max(id) FROM chosen
"""


def read_rollouts(apps: Any, schema_editor: Any) -> None:
    """Some at a time: there may be millions, and nobody else could write them before the last is done."""
    last: int | None = 0
    while last is not None:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(_SOME, [last, AT_ONCE])
            (last,) = cursor.fetchone()


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("trajectories", "0022_bulk_keys")]

    operations = [
        # Rollouts are made searchable like everything else: let those be read that are there already.
        migrations.RunPython(read_rollouts, migrations.RunPython.noop),
    ]
