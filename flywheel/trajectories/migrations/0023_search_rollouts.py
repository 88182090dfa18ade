from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0022_bulk_keys")]

    operations = [
        # Rollouts are made searchable like everything else: let those be read that are there already.
        migrations.RunSQL(
            "UPDATE trajectories_trajectory SET detected_at = NULL WHERE source = 'rollout' AND detected_at IS NOT NULL",
            migrations.RunSQL.noop,
        ),
    ]
