from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('evals', '0004_waiting_calls'),
    ]

    operations = [
        migrations.AddField(
            model_name='evalrun',
            name='simulator',
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
