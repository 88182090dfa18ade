from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("environments", "0011_sealed_split"),
    ]

    operations = [
        migrations.AddField(
            model_name="task",
            name="is_synthetic",
            field=models.BooleanField(default=False),
        ),
        migrations.RunSQL(
            "UPDATE environments_task SET is_synthetic = true WHERE generation_id IS NOT NULL;",
            migrations.RunSQL.noop,
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.CheckConstraint(
                condition=models.Q(("generation", None), ("is_synthetic", True), _connector="OR"),
                name="task_made_up",
            ),
        ),
        migrations.RunSQL(
            "CREATE TRIGGER environments_task_keeps_synthetic BEFORE UPDATE OF is_synthetic ON environments_task "
            "FOR EACH ROW WHEN (OLD.is_synthetic IS DISTINCT FROM NEW.is_synthetic) "
            "EXECUTE FUNCTION flywheel_refuse_change();",
            "DROP TRIGGER environments_task_keeps_synthetic ON environments_task;",
        ),
    ]
