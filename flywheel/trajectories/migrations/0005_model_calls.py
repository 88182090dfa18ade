import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_tables'),
        ('trajectories', '0004_reported_versions'),
    ]

    operations = [
        migrations.CreateModel(
            name='ModelCall',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('trace_id', models.CharField(max_length=64)),
                ('span_id', models.CharField(max_length=64)),
                ('reaches', models.UUIDField(null=True)),
                ('passes', django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('trajectory', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='model_calls', to='trajectories.trajectory')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('reaches__isnull', False)), fields=['reaches', '-id'], name='model_call_end'), django.contrib.postgres.indexes.GinIndex(fastupdate=False, fields=['passes'], name='model_call_points')],
                'constraints': [models.UniqueConstraint(fields=('trace_id', 'span_id', 'project'), name='model_call_once')],
            },
        ),
    ]
