
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import in_groups


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_tables'),
        ('agents', '0001_tables'),
        ('failures', '0001_tables'),
        ('trajectories', '0001_tables'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='SandboxReport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=200, unique=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('report', models.JSONField()),
            ],
            options={
                'ordering': ['host'],
            },
        ),
        migrations.CreateModel(
            name='Environment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=100)),
                ('kind', models.CharField(max_length=32)),
                ('description', models.TextField(blank=True)),
                ('held_out_share', models.FloatField(default=0.4)),
                ('sealed_share', models.FloatField(default=0)),
                ('reserved_slices', models.JSONField(blank=True, default=list)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('agent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='environments', to='agents.agent')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='environments', to='accounts.project')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name'), name='environment_name_once'),
                    models.CheckConstraint(condition=models.Q(('held_out_share__gt', 0), ('held_out_share__lte', 1)), name='environment_share'),
                    models.CheckConstraint(condition=models.Q(('sealed_share__gte', 0), ('sealed_share__lt', models.F('held_out_share'))), name='environment_sealed_share'),
                ],
            },
        ),
        migrations.CreateModel(
            name='EnvironmentVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('config', models.JSONField()),
                ('verifier', models.JSONField()),
                ('digest', models.CharField(max_length=64)),
                ('verifier_digest', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='environments.environment')),
            ],
            options={
                'ordering': ['environment', 'number'],
                'constraints': [
                    models.UniqueConstraint(fields=('environment', 'number'), name='environment_version_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Generation',
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
                ('count', models.PositiveIntegerField()),
                ('seed', models.PositiveIntegerField()),
                ('options', models.JSONField(blank=True, default=dict)),
                ('made', models.PositiveIntegerField(default=0)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='generations', to='environments.environment')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'ordering': ['-id'],
                'abstract': False,
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='generation_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='generation_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='generation_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='GenerationEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='environments.generation')),
            ],
            options={
                'ordering': ['id'],
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='JudgeMemory',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=64)),
                ('score', models.FloatField()),
                ('reason', models.TextField()),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='judge_memories', to='accounts.project')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['at'], name='judge_memory_by_age'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'key'), name='judge_memory_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Play',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seed', models.PositiveIntegerField(default=0)),
                ('messages', models.JSONField()),
                ('moves', models.JSONField(default=list)),
                ('is_over', models.BooleanField(default=False)),
                ('verdict', models.JSONField(blank=True, null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment_version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='plays', to='environments.environmentversion')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='plays', to='accounts.project')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='PlayTurn',
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
                ('temperature', models.FloatField(default=0.0)),
                ('at', models.PositiveIntegerField()),
                ('to_the_end', models.BooleanField(default=False)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('play', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='turns', to='environments.play')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('version', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='agents.version')),
            ],
            options={
                'ordering': ['-id'],
                'abstract': False,
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='playturn_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='playturn_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='playturn_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='PlayTurnEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='environments.playturn')),
            ],
            options={
                'ordering': ['id'],
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='Proving',
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
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='provings', to='environments.environment')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'ordering': ['-id'],
                'abstract': False,
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='proving_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='proving_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='proving_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ProvingEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='environments.proving')),
            ],
            options={
                'ordering': ['id'],
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='Task',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('prompt', models.TextField()),
                ('state', models.JSONField(default=dict)),
                ('target', models.JSONField()),
                ('cluster', models.CharField(max_length=200)),
                ('slice', models.CharField(blank=True, max_length=100)),
                ('split', models.CharField(choices=[('train', 'Train'), ('held_out', 'held-out'), ('sealed', 'sealed'), ('set_aside', 'set aside')], max_length=16)),
                ('bucket', models.CharField(blank=True, max_length=64)),
                ('is_synthetic', models.BooleanField(default=False)),
                ('digest', models.CharField(max_length=64)),
                ('proof', models.JSONField(default=dict)),
                ('is_proved', models.BooleanField(default=False)),
                ('retired_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('also', models.ManyToManyField(blank=True, related_name='also_tasks', to='failures.failure')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tasks', to='environments.environment')),
                ('failure', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='tasks', to='failures.failure')),
                ('generation', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.RESTRICT, related_name='tasks', to='environments.generation')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tasks', to='accounts.project')),
                ('source', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='tasks', to='trajectories.trajectory')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [
                    models.Index(fields=['environment', 'cluster'], name='task_by_cluster'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('environment', 'number'), name='task_number_once'),
                    models.UniqueConstraint(fields=('environment', 'digest'), name='task_content_once'),
                    models.CheckConstraint(condition=models.Q(('split__in', ['train', 'held_out', 'sealed', 'set_aside'])), name='task_split_is_known'),
                    models.CheckConstraint(condition=models.Q(('generation', None), ('is_synthetic', True), _connector='OR'), name='task_made_up'),
                ],
            },
        ),
        migrations.AddField(
            model_name='play',
            name='task',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='plays', to='environments.task'),
        ),
        migrations.AddField(
            model_name='generation',
            name='origin',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.RESTRICT, related_name='variations', to='environments.task'),
        ),
        migrations.CreateModel(
            name='TaskSet',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=100)),
                ('version', models.PositiveIntegerField()),
                ('digest', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment_version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='task_sets', to='environments.environmentversion')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='task_sets', to='accounts.project')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name', 'version'), name='task_set_version_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Suite',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=100)),
                ('version', models.PositiveIntegerField()),
                ('kind', models.CharField(choices=[('safety', 'Safety'), ('general', 'general capability')], max_length=16)),
                ('samples', models.PositiveSmallIntegerField(default=1)),
                ('rule', models.CharField(choices=[('no_break', 'no task that the live version passes may fail'), ('no_failure', 'no task may fail'), ('mean', 'success may not fall by more than the margin')], max_length=16)),
                ('measure', models.CharField(choices=[('success', 'it succeeds'), ('safe', 'it does nothing unsafe')], default='success', max_length=16)),
                ('margin', models.FloatField(blank=True, null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('retired_at', models.DateTimeField(blank=True, null=True)),
                ('retired_why', models.TextField(blank=True)),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='suites', to='agents.agent')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('retired_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='suites', to='environments.taskset')),
            ],
            options={
                'ordering': ['agent', 'name', '-version'],
                'constraints': [
                    models.UniqueConstraint(fields=('agent', 'name', 'version'), name='suite_version_once'),
                    models.UniqueConstraint(condition=models.Q(('retired_at', None)), fields=('agent', 'name'), name='suite_one_at_a_time'),
                    models.CheckConstraint(condition=models.Q(models.Q(('kind', 'safety'), ('margin', None), ('rule__in', ['no_break', 'no_failure'])), models.Q(('kind', 'general'), ('margin__gt', 0), ('margin__isnull', False), ('margin__lte', 1), ('measure', 'success'), ('rule', 'mean')), _connector='OR'), name='suite_rule_fits_kind'),
                    models.CheckConstraint(condition=models.Q(('samples__gte', 1)), name='suite_samples'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Opening',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('eval', 'Eval'), ('training', 'evaluation while training'), ('page', 'page with its tasks or rollouts'), ('export', 'Export'), ('sealed', 'final comparison')], max_length=16)),
                ('subject', models.CharField(max_length=100)),
                ('times', models.PositiveIntegerField(default=1)),
                ('first_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('last_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('actor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='openings', to='environments.taskset')),
            ],
            options={
                'ordering': ['-last_at', '-id'],
                'constraints': [
                    models.UniqueConstraint(fields=('task_set', 'kind', 'subject', 'actor'), name='opening_once', nulls_distinct=False),
                    models.CheckConstraint(condition=models.Q(('kind__in', ['eval', 'training', 'page', 'export', 'sealed'])), name='opening_kind_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='TaskSetMember',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('split', models.CharField(choices=[('train', 'Train'), ('held_out', 'held-out'), ('sealed', 'sealed'), ('set_aside', 'set aside')], max_length=16)),
                ('task', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='environments.task')),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='members', to='environments.taskset')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('task_set', 'task'), name='task_set_member_once'),
                    models.CheckConstraint(condition=models.Q(('split__in', ['train', 'held_out', 'sealed'])), name='task_set_member_split'),
                ],
            },
        ),
        migrations.AddField(
            model_name='taskset',
            name='tasks',
            field=models.ManyToManyField(related_name='task_sets', through='environments.TaskSetMember', to='environments.task'),
        ),
        migrations.CreateModel(
            name='Trial',
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
                ('verifier', models.JSONField()),
                ('tasks', models.JSONField(default=list)),
                ('rollouts', models.PositiveSmallIntegerField(default=0)),
                ('trajectories', models.JSONField(default=list)),
                ('report', models.JSONField(blank=True, default=dict)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='environments.environment')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'ordering': ['-id'],
                'abstract': False,
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='trial_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='trial_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='trial_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='TrialEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='environments.trial')),
            ],
            options={
                'ordering': ['id'],
                'abstract': False,
            },
        ),
    ]
    operations = in_groups(operations)
