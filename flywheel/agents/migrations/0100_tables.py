import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import CreateModels


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0100_tables'),
    ]

    operations = [CreateModels([
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
                ('live', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
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
                ('form', models.CharField(blank=True, default='', max_length=16)),
            ],
            options={
                'ordering': ['agent', 'number'],
                'constraints': [
                    models.UniqueConstraint(fields=('agent', 'number'), name='version_number_once'),
                    models.UniqueConstraint(fields=('agent', 'digest'), name='version_content_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='AttemptKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public', models.CharField(max_length=32, unique=True)),
                ('hashed', models.CharField(max_length=64)),
                ('sampling', models.JSONField(default=dict)),
                ('deadline', models.DateTimeField()),
                ('calls', models.PositiveIntegerField(default=0)),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='agents.version')),
            ],
        ),
        migrations.CreateModel(
            name='AttemptSpan',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('span_id', models.CharField(max_length=32)),
                ('started_at', models.DateTimeField()),
                ('is_own', models.BooleanField(default=False)),
                ('content', models.JSONField()),
                ('key', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='spans', to='agents.attemptkey')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('key', 'span_id'), name='attemptspan_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RewardModel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=120)),
                ('number', models.PositiveIntegerField()),
                ('canaries', models.JSONField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('base', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reward_models', to='agents.version')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reward_models', to='accounts.project')),
                ('weights', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
            ],
            options={
                'ordering': ['-pk'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name', 'number'), name='rewardmodel_number_once'),
                    models.UniqueConstraint(fields=('project', 'weights'), name='rewardmodel_weights_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='MergedWeights',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('succeeded', 'Succeeded'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='queued', max_length=16)),
                ('idempotency_key', models.UUIDField(default=uuid.uuid4)),
                ('fence', models.PositiveIntegerField(default=0)),
                ('lease_until', models.DateTimeField(blank=True, null=True)),
                ('attempt', models.PositiveSmallIntegerField(default=0)),
                ('nudged_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('owner', models.CharField(blank=True, max_length=200)),
                ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                ('error_kind', models.CharField(blank=True, max_length=64)),
                ('error', models.TextField(blank=True)),
                ('done', models.PositiveIntegerField(default=0)),
                ('total', models.PositiveIntegerField(blank=True, null=True)),
                ('message', models.CharField(blank=True, max_length=300)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('dtype', models.CharField(choices=[('base', "in the base's type"), ('float32', 'in 32 bits')], default='base', max_length=16)),
                ('lost', models.FloatField(blank=True, null=True)),
                ('adapter', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
                ('artifact', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('weights', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='mergedweights_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='mergedweights_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='mergedweights_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='MergedWeightsEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='agents.mergedweights')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='HubVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('succeeded', 'Succeeded'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='queued', max_length=16)),
                ('idempotency_key', models.UUIDField(default=uuid.uuid4)),
                ('fence', models.PositiveIntegerField(default=0)),
                ('lease_until', models.DateTimeField(blank=True, null=True)),
                ('attempt', models.PositiveSmallIntegerField(default=0)),
                ('nudged_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('owner', models.CharField(blank=True, max_length=200)),
                ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                ('error_kind', models.CharField(blank=True, max_length=64)),
                ('error', models.TextField(blank=True)),
                ('done', models.PositiveIntegerField(default=0)),
                ('total', models.PositiveIntegerField(blank=True, null=True)),
                ('message', models.CharField(blank=True, max_length=300)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('name', models.CharField(max_length=201)),
                ('revision', models.CharField(default='main', max_length=100)),
                ('kind', models.CharField(default='model', max_length=16)),
                ('content', models.JSONField()),
                ('version_note', models.CharField(blank=True, max_length=300)),
                ('adapter', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='hub_versions', to='agents.agent')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('version', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
                ('weights', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.artifact')),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='hubversion_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='hubversion_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='hubversion_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='HubVersionEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='agents.hubversion')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Split',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('share', models.PositiveIntegerField(default=0)),
                ('salt', models.CharField(max_length=64)),
                ('generation', models.PositiveIntegerField(default=1)),
                ('served', models.JSONField(blank=True, default=dict)),
                ('lease_until', models.DateTimeField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('closed_at', models.DateTimeField(blank=True, null=True)),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='splits', to='agents.agent')),
                ('candidate', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='splits', to='agents.version')),
                ('live', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
                ('is_holdback', models.BooleanField(default=False)),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('closed_at', None)), fields=('agent',), name='split_one_open'),
                    models.CheckConstraint(condition=models.Q(('share__lte', 10000)), name='split_share_of_whole'),
                    models.CheckConstraint(condition=models.Q(('live', models.F('candidate')), _negated=True), name='split_two_versions'),
                ],
            },
        ),
        migrations.CreateModel(
            name='SplitUnit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('session', 'Session'), ('trace', 'Trace'), ('beginning', 'Beginning')], max_length=16)),
                ('name', models.CharField(max_length=200)),
                ('trace_id', models.CharField(blank=True, max_length=64)),
                ('is_candidate', models.BooleanField()),
                ('share', models.PositiveIntegerField()),
                ('is_assigned', models.BooleanField(default=False)),
                ('met_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('number', models.PositiveIntegerField(blank=True, null=True)),
                ('frozen_at', models.DateTimeField(blank=True, null=True)),
                ('look_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('mixed', models.CharField(blank=True, choices=[('two_versions', 'answered by both versions'), ('not_given', 'answered by another version than that of its arm'), ('claimed', 'its traces do not carry the token of its assignment'), ('earlier', 'begun before the ramp')], max_length=16)),
                ('parts', models.JSONField(blank=True, default=dict)),
                ('wealth', models.JSONField(blank=True, default=dict)),
                ('trajectories', models.PositiveIntegerField(default=0)),
                ('split', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='units', to='agents.split')),
            ],
            options={
                'indexes': [
                    models.Index(condition=models.Q(('frozen_at', None)), fields=['split', 'look_at'], name='split_unit_awaited'),
                    models.Index(condition=models.Q(('trace_id', ''), _negated=True), fields=['trace_id'], name='split_unit_trace'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('split', 'kind', 'name'), name='split_unit_once'),
                    models.UniqueConstraint(fields=('split', 'number'), name='split_unit_number_once'),
                ],
            },
        ),
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
                ('place', models.PositiveSmallIntegerField(default=0, unique=True)),
            ],
            options={
                'db_table': None,
            },
        ),
        migrations.CreateModel(
            name='Shadow',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('is_on', models.BooleanField(default=False)),
                ('calls', models.PositiveIntegerField()),
                ('tokens', models.PositiveBigIntegerField(blank=True, null=True)),
                ('dollars', models.FloatField(blank=True, null=True)),
                ('copies', models.PositiveIntegerField(default=0)),
                ('skipped', models.PositiveIntegerField(default=0)),
                ('tokens_used', models.PositiveBigIntegerField(default=0)),
                ('dollars_used', models.FloatField(default=0.0)),
                ('split', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='shadow', to='agents.split')),
            ],
        ),
        migrations.CreateModel(
            name='ShadowCopy',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('session', 'Session'), ('trace', 'Trace'), ('beginning', 'Beginning')], max_length=16)),
                ('name', models.CharField(max_length=200)),
                ('trace_id', models.CharField(max_length=64)),
                ('span_id', models.CharField(max_length=64)),
                ('copy_trace_id', models.CharField(max_length=64)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('state', models.CharField(choices=[('sent', 'on its way'), ('compared', 'compared'), ('lost', 'lost')], default='sent', max_length=16)),
                ('differs', models.BooleanField(default=False)),
                ('pair', models.JSONField(blank=True, default=dict)),
                ('split', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='copies', to='agents.split')),
            ],
            options={
                'verbose_name_plural': 'shadow copies',
                'indexes': [
                    models.Index(fields=['split', 'state', '-id'], name='shadow_copy_listed'),
                    models.Index(fields=['split', 'name'], name='shadow_copy_named'),
                    models.Index(fields=['trace_id'], name='shadow_copy_trace'),
                    models.Index(condition=models.Q(('differs', True)), fields=['split', '-id'], name='shadow_copy_differs'),
                ],
            },
        ),
    ])]
