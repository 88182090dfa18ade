from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('trajectories', '0007_attributes'),
    ]

    operations = [
        migrations.AddField(
            model_name='reread',
            name='is_of_costs',
            field=models.BooleanField(default=False),
        ),
    ]
