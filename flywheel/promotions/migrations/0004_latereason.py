"""Why a live version was rolled back, said after it; as the promotion itself, it never changes."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

TRIGGER = """
CREATE TRIGGER promotions_latereason_never_changes BEFORE UPDATE OR DELETE ON promotions_latereason FOR EACH ROW
EXECUTE FUNCTION flywheel_refuse_change()
"""


class Migration(migrations.Migration):
    dependencies = [
        ("promotions", "0003_harmless"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="LateReason",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("text", models.TextField()),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "promotion",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="late_reason",
                        to="promotions.promotion",
                    ),
                ),
            ],
        ),
        migrations.RunSQL(TRIGGER, "DROP TRIGGER promotions_latereason_never_changes ON promotions_latereason"),
    ]
