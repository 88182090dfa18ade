import django.contrib.postgres.fields
import django.contrib.postgres.indexes
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('trajectories', '0006_derived_costs'),
    ]

    operations = [
        migrations.AddField(
            model_name='trajectory',
            name='attributes',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None),
        ),
        migrations.AddIndex(
            model_name='trajectory',
            index=django.contrib.postgres.indexes.GinIndex(fields=['attributes'], name='trajectory_attributes'),
        ),
    ]
