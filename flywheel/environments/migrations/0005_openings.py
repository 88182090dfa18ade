import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

KINDS = [
    ("eval", "Eval"),
    ("training", "evaluation while training"),
    ("page", "page with its rollouts"),
    ("export", "Export"),
]

BEFORE_THE_LEDGER = [
    """
    INSERT INTO environments_opening (task_set_id, kind, subject, actor_id, times, first_at, last_at)
    SELECT task_set_id, 'eval', 'eval ' || id, created_by_id, 1, created_at, COALESCE(finished_at, created_at)
    FROM evals_evalrun run
    WHERE split = 'held_out' AND EXISTS (SELECT FROM evals_result WHERE run_id = run.id)
    """,
    """
    INSERT INTO environments_opening (task_set_id, kind, subject, actor_id, times, first_at, last_at)
    SELECT run.task_set_id, 'training', 'r-' || run.id, run.created_by_id, count(*), min(at), max(at)
    FROM training_trainingrun run JOIN training_point point ON point.run_id = run.id AND point.kind = 'eval'
    GROUP BY run.id
    """,
]


class Migration(migrations.Migration):
    dependencies = [
        ("environments", "0004_generated_tasks"),
        ("evals", "0001_initial"),
        ("training", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Opening",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=KINDS, max_length=16)),
                ("subject", models.CharField(max_length=100)),
                ("times", models.PositiveIntegerField(default=1)),
                ("first_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("last_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "task_set",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="openings",
                        to="environments.taskset",
                    ),
                ),
            ],
            options={"ordering": ["-last_at", "-id"]},
        ),
        migrations.AddConstraint(
            model_name="opening",
            constraint=models.UniqueConstraint(
                fields=("task_set", "kind", "subject", "actor"), name="opening_once", nulls_distinct=False
            ),
        ),
        migrations.AddConstraint(
            model_name="opening",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["eval", "training", "page", "export"])), name="opening_kind_is_known"
            ),
        ),
        *[migrations.RunSQL(statement, migrations.RunSQL.noop) for statement in BEFORE_THE_LEDGER],
    ]
