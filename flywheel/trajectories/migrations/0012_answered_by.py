from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('trajectories', '0011_training_attempts_apart'),
    ]

    operations = [
        migrations.AddField(
            model_name='step',
            name='answered_by',
            field=models.CharField(blank=True, max_length=200, null=True),
        ),
    ]
