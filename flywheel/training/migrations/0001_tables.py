
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
        ('environments', '0001_tables'),
        ('evals', '0001_tables'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Dataset',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=100)),
                ('version', models.PositiveIntegerField()),
                ('kind', models.CharField(choices=[('sft', 'demonstrations'), ('pairs', 'preference pairs'), ('tasks', 'tasks to practise')], max_length=8)),
                ('digest', models.CharField(max_length=64)),
                ('rows', models.PositiveIntegerField()),
                ('recipe', models.JSONField(default=dict)),
                ('file', models.CharField(max_length=300)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='datasets', to='accounts.project')),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='datasets', to='environments.taskset')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name', 'version'), name='dataset_version_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ContaminationCheck',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('method', models.PositiveSmallIntegerField()),
                ('verdict', models.CharField(choices=[('clean', 'Clean'), ('warned', 'Warned'), ('contaminated', 'Contaminated')], max_length=16)),
                ('report', models.JSONField()),
                ('made_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='contamination_checks', to='environments.taskset')),
                ('dataset', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='contamination_checks', to='training.dataset')),
            ],
            options={
                'ordering': ['-task_set_id', '-dataset_id'],
                'constraints': [
                    models.UniqueConstraint(fields=('dataset', 'task_set', 'method'), name='contamination_check_once'),
                    models.CheckConstraint(condition=models.Q(('verdict__in', ['clean', 'warned', 'contaminated'])), name='contamination_verdict_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Dropped',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reason', models.CharField(max_length=300)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('actor', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('result', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='dropped', to='evals.result')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(('reason', ''), _negated=True), name='dropped_says_why'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Recommendation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('evidence', models.JSONField()),
                ('ladder', models.JSONField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('eval_run', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='recommendations', to='evals.evalrun')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='recommendations', to='accounts.project')),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='recommendations', to='environments.taskset')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='recommendations', to='agents.version')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='TrainingRun',
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
                ('algorithm', models.CharField(max_length=16)),
                ('tuning', models.JSONField()),
                ('settings', models.JSONField()),
                ('seed', models.PositiveIntegerField(default=1)),
                ('slot', models.CharField(default='local-0', max_length=32)),
                ('spec_digest', models.CharField(max_length=64)),
                ('override_reason', models.TextField(blank=True)),
                ('events_read', models.PositiveBigIntegerField(default=0)),
                ('checkpoint_step', models.PositiveIntegerField(blank=True, null=True)),
                ('audit_override', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='training_runs', to='evals.auditoverride')),
                ('base', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='training_runs', to='agents.version')),
                ('baseline', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='evals.evalrun')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('dataset', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='training_runs', to='training.dataset')),
                ('evaluation', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='evals.evalrun')),
                ('produced', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='produced_by', to='agents.version')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('recommendation', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='training_runs', to='training.recommendation')),
                ('reward_audit', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='training_runs', to='evals.rewardaudit')),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='training_runs', to='environments.taskset')),
            ],
            options={
                'ordering': ['-id'],
                'abstract': False,
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='trainingrun_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='trainingrun_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='trainingrun_state_is_known'),
                    models.UniqueConstraint(condition=models.Q(('state', 'running')), fields=('slot',), name='trainingrun_one_per_slot'),
                ],
            },
        ),
        migrations.CreateModel(
            name='TrainingEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='training.trainingrun')),
            ],
            options={
                'ordering': ['id'],
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='Point',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('step', 'Step'), ('eval', 'Eval'), ('samples', 'Samples')], max_length=8)),
                ('step', models.PositiveIntegerField()),
                ('at', models.DateTimeField()),
                ('values', models.JSONField()),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='points', to='training.trainingrun')),
            ],
            options={
                'ordering': ['run', 'kind', 'step'],
                'constraints': [
                    models.UniqueConstraint(fields=('run', 'kind', 'step'), name='point_once'),
                ],
            },
        ),
    ]
    operations = in_groups(operations)
