# What a row costs to write: no index twice, no lookup of the trajectory for every step, no compression of small bodies.

import django.db.models.deletion
from django.db import migrations, models

TAKE_STEPS = """
CREATE FUNCTION trajectories_take_steps() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM trajectories_step WHERE trajectory_id IN (SELECT id FROM gone);
    RETURN NULL;
END $$;
CREATE TRIGGER trajectories_take_steps AFTER DELETE ON trajectories_trajectory
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION trajectories_take_steps();
"""
"""In place of the foreign key. Who writes steps holds the trajectory's row, so a deletion waits, and then sees them."""

LEAVE_STEPS = """
DROP TRIGGER trajectories_take_steps ON trajectories_trajectory;
DROP FUNCTION trajectories_take_steps();
"""

STORE = """
ALTER TABLE trajectories_step SET (toast_tuple_target = 4080);
ALTER TABLE trajectories_body ALTER COLUMN content SET STORAGE EXTERNAL;
"""
"""Two steps to a page at the least before bodies are compressed and moved out; a raw request is compressed already."""

STORE_AS_BEFORE = """
ALTER TABLE trajectories_step RESET (toast_tuple_target);
ALTER TABLE trajectories_body ALTER COLUMN content SET STORAGE EXTENDED;
"""


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0010_import_job")]

    operations = [
        migrations.AlterField(
            model_name="step",
            name="trajectory",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="steps",
                to="trajectories.trajectory",
            ),
        ),
        migrations.AlterField(
            model_name="trajectory",
            name="project",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="trajectories",
                to="accounts.project",
            ),
        ),
        migrations.AlterField(
            model_name="batch",
            name="project",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="batches",
                to="accounts.project",
            ),
        ),
        migrations.AlterField(
            model_name="body",
            name="project",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="accounts.project",
            ),
        ),
        migrations.AlterField(
            model_name="event",
            name="project",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="accounts.project",
            ),
        ),
        migrations.AlterField(
            model_name="feedback",
            name="project",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="accounts.project",
            ),
        ),
        migrations.AlterField(
            model_name="trajectory",
            name="version",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="trajectories",
                to="agents.version",
            ),
        ),
        migrations.RemoveIndex(model_name="trajectory", name="trajectory_by_bucket"),
        migrations.RemoveIndex(model_name="trajectory", name="trajectory_by_version"),
        migrations.RemoveIndex(model_name="trajectory", name="trajectory_by_session"),
        migrations.AddIndex(
            model_name="trajectory",
            index=models.Index(
                condition=models.Q(("proposed_bucket", ""), _negated=True),
                fields=["project", "proposed_bucket", "-started_at"],
                name="trajectory_by_bucket",
            ),
        ),
        migrations.AddIndex(
            model_name="trajectory",
            index=models.Index(
                condition=models.Q(("version", None), _negated=True),
                fields=["version", "-started_at"],
                name="trajectory_by_version",
            ),
        ),
        migrations.AddIndex(
            model_name="trajectory",
            index=models.Index(
                condition=models.Q(("session_id", ""), _negated=True),
                fields=["project", "session_id"],
                name="trajectory_by_session",
            ),
        ),
        migrations.RunSQL(TAKE_STEPS, LEAVE_STEPS),
        migrations.RunSQL(STORE, STORE_AS_BEFORE),
    ]
