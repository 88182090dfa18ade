import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.fields.json
import django.db.models.functions.comparison
import django.db.models.functions.text
import django.utils.timezone
import flywheel.trajectories.models.steps
import uuid
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import CreateModels


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0100_tables'),
        ('agents', '0100_tables'),
    ]

    operations = [CreateModels([
        migrations.CreateModel(
            name='Bulk',
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
                ('action', models.CharField(max_length=16)),
                ('options', models.JSONField(blank=True, default=dict)),
                ('q', models.TextField(blank=True)),
                ('ids', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), blank=True, default=list, size=None)),
                ('up_to', models.PositiveBigIntegerField()),
                ('at', models.PositiveBigIntegerField(default=0)),
                ('report', models.JSONField(blank=True, default=dict)),
                ('through', models.CharField(blank=True, max_length=120)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='bulk_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='bulk_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='bulk_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Batch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('format', models.CharField(max_length=32)),
                ('sha256', models.CharField(max_length=64)),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('trajectories', models.PositiveIntegerField(default=0)),
                ('received', models.PositiveIntegerField()),
                ('inserted', models.PositiveIntegerField()),
                ('updated', models.PositiveIntegerField()),
                ('duplicate', models.PositiveIntegerField()),
                ('rejected', models.PositiveIntegerField()),
                ('problems', models.JSONField(blank=True, default=list)),
                ('warnings', models.JSONField(blank=True, default=list)),
                ('redactions', models.JSONField(blank=True, default=dict)),
                ('redactor', models.CharField(blank=True, max_length=64)),
                ('key', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.apikey')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='batches', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'batches',
                'indexes': [
                    models.Index(fields=['project', '-id'], name='batch_newest'),
                ],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(('received', django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(models.F('inserted'), '+', models.F('updated')), '+', models.F('duplicate')), '+', models.F('rejected')))), name='batch_adds_up'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Blob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sha256', models.CharField(max_length=64)),
                ('content', models.TextField()),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'sha256'), name='blob_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Body',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sha256', models.CharField(max_length=64)),
                ('media_type', models.CharField(max_length=64)),
                ('encoding', models.CharField(max_length=16)),
                ('content', models.BinaryField()),
                ('trace_ids', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), default=list, size=None)),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'bodies',
                'indexes': [
                    models.Index(fields=['project', 'received_at'], name='body_oldest'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'sha256'), name='body_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='BulkKeys',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='trajectories.bulk')),
                ('keys', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
            ],
        ),
        migrations.CreateModel(
            name='BulkEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='trajectories.bulk')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Comment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.CharField(blank=True, max_length=64)),
                ('text', models.TextField(blank=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('edited_at', models.DateTimeField(blank=True, null=True)),
                ('deleted_at', models.DateTimeField(blank=True, null=True)),
                ('key', models.UUIDField(default=uuid.uuid4)),
                ('author', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('deleted_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('trajectory', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='comments', to='trajectories.trajectory')),
            ],
            options={
                'ordering': ['id'],
                'indexes': [
                    models.Index(fields=['trajectory', 'id'], name='comment_in_order'),
                    models.Index(condition=models.Q(('deleted_at', None)), fields=['project', 'trajectory'], name='comment_stands'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('author', 'key'), name='comment_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('trace_id', models.CharField(max_length=64)),
                ('span_id', models.CharField(blank=True, max_length=64)),
                ('name', models.CharField(max_length=64)),
                ('at', models.DateTimeField(blank=True, null=True)),
                ('body', flywheel.trajectories.models.steps.Json(default=dict)),
                ('digest', models.BinaryField()),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'trace_id', 'span_id', 'digest'), name='event_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Feedback',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('trace_id', models.CharField(max_length=64)),
                ('span_id', models.CharField(blank=True, max_length=64)),
                ('key', models.CharField(max_length=100)),
                ('value', models.JSONField(null=True)),
                ('score', models.FloatField(blank=True, null=True)),
                ('comment', models.TextField(blank=True)),
                ('source', models.CharField(choices=[('human', 'a person of the team'), ('end_user', 'an end user'), ('model', 'a model'), ('code', 'code')], max_length=16)),
                ('by', models.CharField(blank=True, max_length=200)),
                ('at', models.DateTimeField()),
                ('identity', models.CharField(max_length=64)),
                ('digest', models.CharField(max_length=64)),
                ('current', models.BooleanField(default=True)),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'feedback',
                'indexes': [
                    models.Index(fields=['project', 'trace_id', 'key'], name='feedback_of'),
                    models.Index(django.db.models.functions.text.Upper('key'), models.F('project'), models.F('score'), name='feedback_said'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'identity'), name='feedback_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Import',
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
                ('name', models.CharField(max_length=300)),
                ('upload', models.CharField(max_length=32)),
                ('format', models.CharField(default='auto', max_length=32)),
                ('mapping', models.JSONField(blank=True, null=True)),
                ('at', models.PositiveBigIntegerField(default=0)),
                ('batches', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), blank=True, default=list, size=None)),
                ('report', models.JSONField(blank=True, default=dict)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='import_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='import_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='import_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ImportEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='trajectories.import')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Item',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('field', models.CharField(max_length=16)),
                ('name', models.CharField(max_length=200)),
                ('is_doubted', models.BooleanField(default=False)),
                ('project', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['project', 'field', 'name', 'is_doubted'], name='item_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Mention',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('read_at', models.DateTimeField(blank=True, null=True)),
                ('comment', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='mentions', to='trajectories.comment')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'indexes': [
                    models.Index(fields=['user', 'project', '-id'], name='mention_newest'),
                    models.Index(condition=models.Q(('read_at', None)), fields=['user', 'project'], name='mention_unread'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('comment', 'user'), name='mention_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='MetricsDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('kind', models.CharField(max_length=8)),
                ('key', models.TextField(blank=True)),
                ('count', models.PositiveIntegerField(default=0)),
                ('scored', models.PositiveIntegerField(default=0)),
                ('succeeded', models.PositiveIntegerField(default=0)),
                ('confirmed', models.PositiveIntegerField(default=0)),
                ('proposed', models.PositiveIntegerField(default=0)),
                ('intervened', models.PositiveIntegerField(default=0)),
                ('costed', models.PositiveIntegerField(default=0)),
                ('counted', models.PositiveIntegerField(default=0)),
                ('tokens_in', models.BigIntegerField(null=True)),
                ('tokens_out', models.BigIntegerField(null=True)),
                ('cost', models.FloatField(null=True)),
                ('latencies', models.BinaryField(default=bytes)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'kind', 'day', 'key'), name='metrics_day_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='MetricsStale',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('project', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
        ),
        migrations.CreateModel(
            name='Quarantined',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.CharField(max_length=64)),
                ('reason', models.CharField(max_length=500)),
                ('kind', models.GeneratedField(db_persist=True, expression=models.Func(models.F('reason'), models.Value('"([^"\\\\]|\\\\.)*("|…|$)|[0-9]+'), models.Value('…'), models.Value('g'), function='regexp_replace', output_field=models.TextField()), output_field=models.TextField())),
                ('format', models.CharField(max_length=32)),
                ('media_type', models.CharField(max_length=64)),
                ('content', models.BinaryField()),
                ('state', models.CharField(choices=[('open', 'Open'), ('replayed', 'Replayed'), ('dismissed', 'Dismissed')], default='open', max_length=16)),
                ('decided_at', models.DateTimeField(blank=True, null=True)),
                ('trace_id', models.CharField(blank=True, max_length=64)),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('batch', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quarantined', to='trajectories.batch')),
                ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quarantined', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'quarantined',
                'indexes': [
                    models.Index(fields=['project', 'state', '-id'], name='quarantined_newest'),
                ],
                'constraints': [
                    models.UniqueConstraint(models.F('project'), django.db.models.functions.text.MD5('content'), condition=models.Q(('state', 'open')), name='quarantined_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Reread',
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
                ('at', models.PositiveBigIntegerField(default=0)),
                ('changed', models.PositiveIntegerField(default=0)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('is_of_costs', models.BooleanField(default=False)),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='reread_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='reread_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='reread_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RereadEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='trajectories.reread')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Retention',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('bodies_days', models.PositiveSmallIntegerField(default=7)),
                ('quarantine_days', models.PositiveSmallIntegerField(default=30)),
                ('ledger_days', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('production_days', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('import_days', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('rollout_days', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('takes_used', models.BooleanField(default=False)),
                ('project', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='retention', to='accounts.project')),
                ('set_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Trajectory',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('trace_id', models.CharField(max_length=64)),
                ('source', models.CharField(choices=[('production', 'production'), ('import', 'import'), ('rollout', 'rollout'), ('training', 'training'), ('shadow', 'shadow')], default='production', max_length=16)),
                ('agent_name', models.CharField(blank=True, max_length=200)),
                ('version_label', models.CharField(blank=True, max_length=100)),
                ('session_id', models.CharField(blank=True, max_length=200)),
                ('user_id', models.CharField(blank=True, max_length=200)),
                ('environment', models.CharField(blank=True, max_length=100)),
                ('title', models.CharField(blank=True, max_length=300)),
                ('started_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('detected_at', models.DateTimeField(blank=True, null=True)),
                ('latency_ms', models.FloatField(blank=True, null=True)),
                ('step_count', models.PositiveIntegerField(default=0)),
                ('tool_names', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None)),
                ('error_count', models.PositiveIntegerField(default=0)),
                ('tokens_in', models.PositiveBigIntegerField(blank=True, null=True)),
                ('tokens_out', models.PositiveBigIntegerField(blank=True, null=True)),
                ('cost_usd', models.FloatField(blank=True, null=True)),
                ('outcome', models.CharField(blank=True, choices=[('success', 'Success'), ('failed', 'Failed')], max_length=16, null=True)),
                ('interventions', models.JSONField(blank=True, default=list)),
                ('tools', models.JSONField(blank=True, default=list)),
                ('tags', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=100), blank=True, default=list, size=None)),
                ('metadata', models.JSONField(blank=True, default=dict)),
                ('claims', models.JSONField(blank=True, default=dict)),
                ('event_count', models.PositiveIntegerField(default=0)),
                ('feedback_count', models.PositiveIntegerField(default=0)),
                ('proposed_bucket', models.CharField(blank=True, max_length=64)),
                ('proposed_score', models.FloatField(blank=True, null=True)),
                ('label', models.CharField(blank=True, choices=[('failure', 'Failure'), ('pass', 'Pass')], max_length=16)),
                ('label_bucket', models.CharField(blank=True, max_length=64)),
                ('agent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='trajectories', to='agents.agent')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='trajectories', to='accounts.project')),
                ('version', models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='trajectories', to='agents.version')),
                ('attributes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None)),
            ],
            options={
                'verbose_name_plural': 'trajectories',
                'indexes': [
                    models.Index(condition=models.Q(('detected_at', None), ('detected_at__lt', models.F('changed_at')), _connector='OR'), fields=['project', 'id'], name='trajectory_undetected'),
                    django.contrib.postgres.indexes.GinIndex(fields=['tool_names'], name='trajectory_tools'),
                    models.Index(condition=models.Q(('label', ''), _negated=True), fields=['project', 'label', '-started_at'], name='trajectory_labelled'),
                    django.contrib.postgres.indexes.BrinIndex(fields=['received_at'], name='trajectory_oldest'),
                    models.Index(condition=models.Q(('version', None), _negated=True), fields=['version', '-started_at'], name='trajectory_by_version'),
                    models.Index(fields=['project', '-started_at', '-id'], include=('source', 'outcome', 'version', 'agent', 'agent_name', 'version_label', 'environment', 'proposed_bucket', 'proposed_score', 'label', 'label_bucket', 'latency_ms', 'cost_usd', 'tokens_in', 'tokens_out', 'step_count', 'error_count', 'feedback_count'), name='trajectory_listed'),
                    models.Index(condition=models.Q(('interventions', []), _negated=True), fields=['project', '-started_at', '-id'], name='trajectory_intervened'),
                    django.contrib.postgres.indexes.GinIndex(fields=['tags'], name='trajectory_tags'),
                    models.Index(fields=['outcome', 'project', 'source', 'environment', 'version', 'agent', 'version_label', 'agent_name'], name='trajectory_kinds'),
                    models.Index(condition=models.Q(('latency_ms__isnull', False)), fields=['project', 'latency_ms'], name='trajectory_by_latency'),
                    models.Index(condition=models.Q(('cost_usd__isnull', False)), fields=['project', 'cost_usd'], name='trajectory_by_cost'),
                    models.Index(fields=['step_count', 'error_count', 'project'], name='trajectory_by_steps'),
                    models.Index(django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.Coalesce(models.F('tokens_in'), 0), '+', django.db.models.functions.comparison.Coalesce(models.F('tokens_out'), 0)), models.F('project'), name='trajectory_by_tokens'),
                    models.Index(condition=models.Q(('proposed_score__isnull', False)), fields=['project', 'proposed_score'], name='trajectory_by_score'),
                    models.Index(fields=['user_id', 'project', '-started_at'], name='trajectory_by_user'),
                    models.Index(fields=['session_id', 'project'], name='trajectory_by_session'),
                    models.Index(condition=models.Q(('source', 'production'), _negated=True), fields=['project', 'source', '-started_at', '-id'], name='trajectory_by_source'),
                    django.contrib.postgres.indexes.GinIndex(models.Func(models.F('attributes'), function='array_to_tsvector', output_field=django.contrib.postgres.search.SearchVectorField()), name='trajectory_attributes'),
                    models.Index(django.db.models.fields.json.KeyTransform('answered_by', 'claims'), models.F('project'), models.OrderBy(models.F('started_at'), descending=True), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('claims__answered_by__1__isnull', True), ('claims__has_key', 'answered_by'), ('source__in', ('production', 'import'))), name='trajectory_answered'),
                    django.contrib.postgres.indexes.GinIndex(django.db.models.fields.json.KeyTransform('answered_by', 'claims'), condition=models.Q(('claims__answered_by__1__isnull', False), ('source__in', ('production', 'import'))), name='trajectory_answered_in_part'),
                    models.Index(condition=models.Q(('source__in', ('production', 'import')), models.Q(('version', None), _negated=True), models.Q(('claims__has_key', 'answered_by'), _negated=True)), fields=['version', '-started_at', '-id'], name='trajectory_reported'),
                    models.Index(condition=models.Q(('label', ''), models.Q(('proposed_bucket', ''), _negated=True), models.Q(('source__in', ('rollout', 'training', 'shadow')), _negated=True)), fields=['project', 'proposed_bucket', '-started_at'], name='trajectory_waiting'),
                    models.Index(condition=models.Q(('label', ''), models.Q(('proposed_bucket', ''), _negated=True), models.Q(('source__in', ('rollout', 'training', 'shadow')), _negated=True)), fields=['project', '-proposed_score', '-id'], name='trajectory_surest'),
                    models.Index(condition=models.Q(('label', 'failure'), models.Q(('source__in', ('rollout', 'training', 'shadow')), _negated=True)), fields=['project', 'label_bucket', '-started_at'], name='trajectory_failed'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Step',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('span_id', models.CharField(max_length=64)),
                ('parent_id', models.CharField(blank=True, max_length=64)),
                ('position', models.PositiveIntegerField()),
                ('place', models.PositiveIntegerField(default=0)),
                ('kind', models.CharField(max_length=16)),
                ('name', models.CharField(blank=True, max_length=300)),
                ('status', models.CharField(default='unset', max_length=8)),
                ('error', models.TextField(blank=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('model', models.CharField(blank=True, max_length=200)),
                ('tool_name', models.CharField(blank=True, max_length=200)),
                ('tool_call_id', models.CharField(blank=True, max_length=200)),
                ('finish_reason', models.CharField(blank=True, max_length=64)),
                ('tokens_in', models.PositiveIntegerField(blank=True, null=True)),
                ('tokens_out', models.PositiveIntegerField(blank=True, null=True)),
                ('tokens_cached', models.PositiveIntegerField(blank=True, null=True)),
                ('cost_usd', models.FloatField(blank=True, null=True)),
                ('is_span', models.BooleanField(default=False)),
                ('body', flywheel.trajectories.models.steps.Json(default=dict)),
                ('blobs', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), blank=True, null=True, size=None)),
                ('size', models.PositiveIntegerField(default=0)),
                ('digest', models.BinaryField(default=bytes)),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('trajectory', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='trajectories.trajectory')),
                ('priced_by', models.CharField(blank=True, max_length=300, null=True)),
                ('answered_by', models.CharField(blank=True, max_length=200, null=True)),
            ],
            options={
                'ordering': ['trajectory', 'position'],
                'indexes': [
                    models.Index(fields=['trajectory', 'position'], name='step_in_order'),
                    django.contrib.postgres.indexes.GinIndex(condition=models.Q(('blobs__isnull', False)), fields=['blobs'], name='step_blobs'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('trajectory', 'span_id'), name='step_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='View',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('q', models.TextField(blank=True)),
                ('columns', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=100), blank=True, default=list, size=None)),
                ('is_shared', models.BooleanField(default=False)),
                ('made_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='views', to='accounts.project')),
            ],
            options={
                'ordering': ['name', 'id'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'owner', 'name'), name='view_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Taste',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('columns', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=100), blank=True, default=list, size=None)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('view', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='trajectories.view')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'user'), name='taste_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Words',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('part', models.PositiveIntegerField()),
                ('words', django.contrib.postgres.search.SearchVectorField()),
                ('trajectory', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='words', to='trajectories.trajectory')),
            ],
            options={
                'indexes': [
                    django.contrib.postgres.indexes.GinIndex(fastupdate=True, fields=['words'], name='words_found'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('trajectory', 'part'), name='words_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('status', models.PositiveSmallIntegerField()),
                ('reason', models.CharField(max_length=300)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('count', models.PositiveIntegerField(default=1)),
                ('key', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.apikey')),
                ('project', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['project', '-at'], name='attempt_newest'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'key', 'status', 'reason'), name='attempt_once', nulls_distinct=False),
                ],
            },
        ),
        migrations.CreateModel(
            name='ReportedVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('label', models.CharField(blank=True, max_length=100)),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reported_versions', to='agents.agent')),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reported_as', to='agents.version')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('agent', 'label'), name='reported_version_once'),
                ],
            },
        ),
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
                'indexes': [
                    models.Index(condition=models.Q(('reaches__isnull', False)), fields=['reaches', '-id'], name='model_call_end'),
                    django.contrib.postgres.indexes.GinIndex(fastupdate=False, fields=['passes'], name='model_call_points'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('trace_id', 'span_id', 'project'), name='model_call_once'),
                ],
            },
        ),
    ])]
