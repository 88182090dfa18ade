# What is kept and for how long: retention, groups of what was rejected, reading again.

import uuid

import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.text
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_login_attempts"),
        ("agents", "0001_initial"),
        ("trajectories", "0004_keep_spans_as_they_came"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Reread",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="queued",
                        max_length=16,
                    ),
                ),
                ("idempotency_key", models.UUIDField(default=uuid.uuid4)),
                ("fence", models.PositiveIntegerField(default=0)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("attempt", models.PositiveSmallIntegerField(default=0)),
                ("nudged_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("owner", models.CharField(blank=True, max_length=200)),
                ("cancel_requested_at", models.DateTimeField(blank=True, null=True)),
                ("error_kind", models.CharField(blank=True, max_length=64)),
                ("error", models.TextField(blank=True)),
                ("done", models.PositiveIntegerField(default=0)),
                ("total", models.PositiveIntegerField(blank=True, null=True)),
                ("message", models.CharField(blank=True, max_length=300)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("at", models.PositiveBigIntegerField(default=0)),
                ("changed", models.PositiveIntegerField(default=0)),
            ],
            options={
                "ordering": ["-id"],
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RereadEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("level", models.CharField(default="info", max_length=8)),
                ("text", models.TextField()),
            ],
            options={
                "ordering": ["id"],
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Retention",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("bodies_days", models.PositiveSmallIntegerField(default=7)),
                ("quarantine_days", models.PositiveSmallIntegerField(default=30)),
                ("ledger_days", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("production_days", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("import_days", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("rollout_days", models.PositiveSmallIntegerField(blank=True, null=True)),
                ("takes_used", models.BooleanField(default=False)),
            ],
        ),
        migrations.AddField(
            model_name="quarantined",
            name="kind",
            field=models.GeneratedField(
                db_persist=True,
                expression=models.Func(
                    models.F("reason"),
                    models.Value('"([^"\\\\]|\\\\.)*("|…|$)|[0-9]+'),
                    models.Value("…"),
                    models.Value("g"),
                    function="regexp_replace",
                    output_field=models.TextField(),
                ),
                output_field=models.TextField(),
            ),
        ),
        migrations.AddField(
            model_name="quarantined",
            name="trace_id",
            field=models.CharField(blank=True, max_length=64),
        ),
        migrations.AddIndex(
            model_name="trajectory",
            index=django.contrib.postgres.indexes.BrinIndex(fields=["received_at"], name="trajectory_oldest"),
        ),
        migrations.AddConstraint(
            model_name="quarantined",
            constraint=models.UniqueConstraint(
                models.F("project"),
                django.db.models.functions.text.MD5("content"),
                condition=models.Q(("state", "open")),
                name="quarantined_once",
            ),
        ),
        migrations.AddField(
            model_name="reread",
            name="created_by",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="reread",
            name="project",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.project"
            ),
        ),
        migrations.AddField(
            model_name="rereadevent",
            name="job",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="events", to="trajectories.reread"
            ),
        ),
        migrations.AddField(
            model_name="retention",
            name="project",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE, related_name="retention", to="accounts.project"
            ),
        ),
        migrations.AddField(
            model_name="retention",
            name="set_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddIndex(
            model_name="reread",
            index=models.Index(
                condition=models.Q(("state__in", ["queued", "running"])),
                fields=["state", "lease_until"],
                name="reread_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="reread",
            constraint=models.UniqueConstraint(fields=("project", "idempotency_key"), name="reread_one_per_key"),
        ),
        migrations.AddConstraint(
            model_name="reread",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["queued", "running", "succeeded", "failed", "cancelled"])),
                name="reread_state_is_known",
            ),
        ),
    ]
