import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

TRIGGER = """
CREATE TRIGGER environments_rewardrecipe_never_changes BEFORE UPDATE ON environments_rewardrecipe FOR EACH ROW
EXECUTE FUNCTION flywheel_refuse_change()
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0003_prices"),
        ("environments", "0003_unproved_tasks"),
        ("promotions", "0002_immutable_rows"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="RewardRecipe",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(max_length=100)),
                ("number", models.PositiveIntegerField()),
                ("parts", models.JSONField()),
                ("digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="reward_recipes",
                        to="accounts.project",
                    ),
                ),
            ],
            options={
                "verbose_name": "reward recipe",
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(fields=("project", "name", "number"), name="reward_recipe_once")
                ],
            },
        ),
        migrations.RunSQL(
            TRIGGER, "DROP TRIGGER environments_rewardrecipe_never_changes ON environments_rewardrecipe"
        ),
    ]
