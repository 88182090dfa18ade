
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import in_groups


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_tables'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Artifact',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('manifest', models.JSONField()),
                ('kind', models.CharField(max_length=16)),
                ('size', models.PositiveBigIntegerField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        migrations.CreateModel(
            name='Agent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=100)),
                ('description', models.TextField(blank=True)),
                ('generation', models.PositiveIntegerField(default=0)),
                ('served', models.CharField(blank=True, default='', max_length=200)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='agents', to='accounts.project')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name'), name='agent_name_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Version',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('base_model', models.CharField(max_length=300)),
                ('endpoint', models.JSONField(default=dict)),
                ('system_prompt', models.TextField(blank=True)),
                ('tools', models.JSONField(default=list)),
                ('sampling', models.JSONField(default=dict)),
                ('digest', models.CharField(max_length=64)),
                ('note', models.CharField(blank=True, max_length=300)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('adapter', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='agents.agent')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='agents.version')),
                ('weights', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
            ],
            options={
                'ordering': ['agent', 'number'],
                'constraints': [
                    models.UniqueConstraint(fields=('agent', 'number'), name='version_number_once'),
                    models.UniqueConstraint(fields=('agent', 'digest'), name='version_content_once'),
                ],
            },
        ),
        migrations.AddField(
            model_name='agent',
            name='live',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version'),
        ),
    ]
    operations = in_groups(operations)
