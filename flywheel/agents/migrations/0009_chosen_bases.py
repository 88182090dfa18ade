"""The vLLM server's base belongs to agents, whose gateway asks for it; the table stays, and a base has a place."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


def only_the_first(apps, schema_editor):
    """On the way back: there was one server."""
    apps.get_model("agents", "ChosenBase").objects.filter(place__gt=0).delete()


class Migration(migrations.Migration):

    dependencies = [
        ('agents', '0008_shadows'),
        ('evals', '0008_chosen_base'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(state_operations=[
            migrations.CreateModel(
                name='ChosenBase',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('generation', models.PositiveIntegerField(default=1)),
                    ('chosen_at', models.DateTimeField(default=django.utils.timezone.now)),
                    ('state', models.CharField(choices=[('waiting', 'waiting for its keeper'), ('starting', 'Starting'), ('ready', 'Ready'), ('down', 'Down')], default='waiting', max_length=16)),
                    ('state_at', models.DateTimeField(default=django.utils.timezone.now)),
                    ('problem', models.TextField(blank=True)),
                    ('failures', models.PositiveIntegerField(default=0)),
                    ('again_at', models.DateTimeField(blank=True, null=True)),
                    ('chosen_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                    ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='agents.version')),
                ],
                options={'db_table': 'evals_chosenbase'},
            ),
        ]),
        migrations.AlterModelTable(name='chosenbase', table=None),
        migrations.AddField(model_name='chosenbase', name='place', field=models.PositiveSmallIntegerField(default=0, unique=True)),
        migrations.RunPython(migrations.RunPython.noop, only_the_first),
    ]
