import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("environments", "0004_reward_recipes"),
        ("training", "0017_devices"),
    ]

    operations = [
        migrations.AddField(
            model_name=name,
            name="reward_recipe",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="environments.rewardrecipe",
            ),
        )
        for name in ("trainingrun", "pipelinestage")
    ]
