from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('trajectories', '0005_model_calls'),
    ]

    operations = [
        migrations.AddField(
            model_name='step',
            name='priced_by',
            field=models.CharField(blank=True, max_length=300, null=True),
        ),
    ]
