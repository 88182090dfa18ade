import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

VERDICTS = [("clean", "Clean"), ("warned", "Warned"), ("contaminated", "Contaminated")]


class Migration(migrations.Migration):
    dependencies = [
        ("environments", "0002_task_also"),
        ("training", "0001_initial"),
        ("promotions", "0002_guards"),  # its function refuses changes
    ]

    operations = [
        migrations.CreateModel(
            name="ContaminationCheck",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("method", models.PositiveSmallIntegerField()),
                ("verdict", models.CharField(choices=VERDICTS, max_length=16)),
                ("report", models.JSONField()),
                ("made_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "dataset",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="contamination_checks",
                        to="training.dataset",
                    ),
                ),
                (
                    "task_set",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="contamination_checks",
                        to="environments.taskset",
                    ),
                ),
            ],
            options={"ordering": ["-task_set_id", "-dataset_id"]},
        ),
        migrations.AddConstraint(
            model_name="contaminationcheck",
            constraint=models.UniqueConstraint(
                fields=("dataset", "task_set", "method"), name="contamination_check_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="contaminationcheck",
            constraint=models.CheckConstraint(
                condition=models.Q(("verdict__in", ["clean", "warned", "contaminated"])),
                name="contamination_verdict_is_known",
            ),
        ),
        migrations.RunSQL(
            "CREATE TRIGGER training_contaminationcheck_never_changes BEFORE UPDATE ON training_contaminationcheck "
            "FOR EACH ROW EXECUTE FUNCTION flywheel_refuse_change();",
            "DROP TRIGGER training_contaminationcheck_never_changes ON training_contaminationcheck;",
        ),
    ]
