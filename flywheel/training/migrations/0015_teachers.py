import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('agents', '0003_attempts'),
        ('training', '0014_scored_attempts'),
    ]

    operations = [
        migrations.AddField(
            model_name='trainingrun',
            name='teacher',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version'),
        ),
        migrations.AddField(
            model_name='pipelinestage',
            name='teacher',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version'),
        ),
    ]
