from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('training', '0015_teachers'),
    ]

    operations = [
        migrations.AddField(
            model_name='trainingrun',
            name='outside_calls',
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
