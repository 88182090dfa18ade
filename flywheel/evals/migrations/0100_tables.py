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
        ('agents', '0100_tables'),
        ('environments', '0100_tables'),
        ('trajectories', '0100_tables'),
    ]

    operations = [CreateModels([
        migrations.CreateModel(
            name='AuditOverride',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('verifier_digest', models.CharField(max_length=64)),
                ('reason', models.TextField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment_version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='environments.environmentversion')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='audit_overrides', to='accounts.project')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='EvalRun',
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
                ('split', models.CharField(choices=[('train', 'Train'), ('held_out', 'held-out'), ('sealed', 'sealed'), ('set_aside', 'set aside')], default='held_out', max_length=16)),
                ('samples', models.PositiveSmallIntegerField(default=4)),
                ('sampling', models.JSONField(default=dict)),
                ('seed', models.PositiveIntegerField(default=1)),
                ('verifier_digest', models.CharField(max_length=64)),
                ('engine', models.CharField(blank=True, choices=[('', 'what its endpoint names'), ('vllm', "this installation's vLLM")], default='', max_length=16)),
                ('isolation', models.JSONField(blank=True, default=dict)),
                ('judges', models.JSONField(blank=True, default=dict)),
                ('budget', models.JSONField(blank=True, default=dict)),
                ('summary', models.JSONField(blank=True, default=dict)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('task_set', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='eval_runs', to='environments.taskset')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='eval_runs', to='agents.version')),
                ('first_request', models.JSONField(blank=True, default=dict)),
                ('simulator', models.JSONField(blank=True, default=dict)),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='evalrun_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='evalrun_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='evalrun_state_is_known'),
                    models.CheckConstraint(condition=models.Q(('samples__gte', 1)), name='evalrun_samples'),
                ],
            },
        ),
        migrations.CreateModel(
            name='EvalEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='evals.evalrun')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Comparison',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('report', models.JSONField()),
                ('revision', models.PositiveSmallIntegerField()),
                ('made_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('baseline', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='evals.evalrun')),
                ('candidate', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='evals.evalrun')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('candidate', 'baseline'), name='comparison_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Rescore',
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
                ('verifier_digest', models.CharField(max_length=64)),
                ('judges', models.JSONField(blank=True, default=dict)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('environment_version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='rescores', to='environments.environmentversion')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rescores', to='evals.evalrun')),
                ('recipe', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='rescores', to='environments.rewardrecipe')),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='rescore_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='rescore_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='rescore_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RescoreEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='evals.rescore')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Result',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sample', models.PositiveSmallIntegerField()),
                ('seed', models.PositiveBigIntegerField()),
                ('score', models.FloatField(null=True)),
                ('success', models.BooleanField(null=True)),
                ('parts', models.JSONField(default=dict)),
                ('reason', models.TextField(blank=True)),
                ('error', models.TextField(blank=True)),
                ('cause', models.CharField(blank=True, max_length=16)),
                ('tokens_in', models.PositiveIntegerField(null=True)),
                ('tokens_out', models.PositiveIntegerField(null=True)),
                ('cost_usd', models.FloatField(null=True)),
                ('latency_ms', models.FloatField(null=True)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='results', to='evals.evalrun')),
                ('task', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='results', to='environments.task')),
                ('trajectory', models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='result', to='trajectories.trajectory')),
            ],
            options={
                'ordering': ['run', 'task', 'sample'],
                'constraints': [
                    models.UniqueConstraint(fields=('run', 'task', 'sample'), name='result_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Rescored',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('score', models.FloatField(null=True)),
                ('success', models.BooleanField(null=True)),
                ('parts', models.JSONField(default=dict)),
                ('reason', models.TextField(blank=True)),
                ('cause', models.CharField(blank=True, max_length=16)),
                ('rescore', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='scores', to='evals.rescore')),
                ('result', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rescored', to='evals.result')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('rescore', 'result'), name='rescored_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RewardAudit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seed', models.PositiveIntegerField()),
                ('result', models.JSONField(blank=True, default=dict)),
                ('is_green', models.BooleanField(null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('finished_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reward_audits', to='accounts.project')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reward_audits', to='evals.evalrun')),
                ('renews', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='renewals', to='evals.rewardaudit')),
                ('rescore', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='reward_audits', to='evals.rescore')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(models.Q(('finished_at', None), ('is_green', None)), models.Q(('finished_at__isnull', False), ('is_green__isnull', False)), _connector='OR'), name='reward_audit_has_a_verdict_once_finished'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RewardAuditItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('place', models.PositiveSmallIntegerField()),
                ('answer', models.CharField(blank=True, choices=[('pass', 'pass'), ('fail', 'fail'), ('cannot_tell', 'cannot tell')], max_length=16)),
                ('note', models.TextField(blank=True)),
                ('judged_at', models.DateTimeField(blank=True, null=True)),
                ('audit', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='items', to='evals.rewardaudit')),
                ('judged_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('result', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='audit_items', to='evals.result')),
                ('rescored', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='audit_items', to='evals.rescored')),
            ],
            options={
                'ordering': ['audit', 'place'],
                'constraints': [
                    models.UniqueConstraint(fields=('audit', 'place'), name='reward_audit_place_once'),
                    models.UniqueConstraint(fields=('audit', 'result'), name='reward_audit_result_once'),
                    models.CheckConstraint(condition=models.Q(models.Q(('answer', ''), ('judged_at', None)), models.Q(models.Q(('answer', ''), _negated=True), ('judged_at__isnull', False)), _connector='OR'), name='reward_audit_item_judged_at'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ProgramAttempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sample', models.PositiveSmallIntegerField()),
                ('seed', models.PositiveBigIntegerField()),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('claimed', 'Claimed'), ('answered', 'Answered'), ('ended', 'Ended')], default='waiting', max_length=16)),
                ('goes', models.PositiveSmallIntegerField(default=0)),
                ('messages', models.JSONField(default=list)),
                ('taken', models.JSONField(default=list)),
                ('uses', models.JSONField(default=list)),
                ('output', models.JSONField(null=True)),
                ('error', models.TextField(blank=True)),
                ('is_away', models.BooleanField(default=False)),
                ('code', models.CharField(blank=True, max_length=300)),
                ('claimed_at', models.DateTimeField(null=True)),
                ('lease_s', models.FloatField(null=True)),
                ('lease_until', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('key', models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='attempt', to='agents.attemptkey')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='evals.evalrun')),
                ('task', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='environments.task')),
                ('open_call', models.JSONField(null=True)),
            ],
            options={
                'ordering': ['id'],
                'indexes': [
                    models.Index(fields=['run', 'state'], name='program_attempt_state'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('run', 'task', 'sample'), name='program_attempt_once'),
                ],
            },
        ),
    ])]
