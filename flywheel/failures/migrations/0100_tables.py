import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.text
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
        ('trajectories', '0100_tables'),
    ]

    operations = [CreateModels([
        migrations.CreateModel(
            name='Cluster',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(blank=True, max_length=100)),
                ('words', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=120), blank=True, default=list, size=None)),
                ('calls', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=400), blank=True, default=list, size=None)),
                ('cohesion', models.FloatField(blank=True, null=True)),
                ('size', models.PositiveIntegerField(default=0)),
                ('is_rest', models.BooleanField(default=False)),
                ('is_stale', models.BooleanField(default=False)),
                ('made_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('medoid', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='trajectories.trajectory')),
                ('clustering', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='clusters', to='failures.clustering')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['clustering', '-size', '-id'], name='cluster_largest'),
                    models.Index(condition=models.Q(('is_stale', True)), fields=['id'], name='cluster_stale'),
                ],
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('is_rest', True)), fields=('clustering',), name='cluster_one_rest'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Clustering',
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
                ('which', models.CharField(choices=[('both', 'confirmed and proposed'), ('confirmed', 'confirmed by people'), ('proposed', 'proposed and waiting')], default='both', max_length=16)),
                ('bucket', models.CharField(blank=True, max_length=64)),
                ('since', models.DateTimeField(blank=True, null=True)),
                ('q', models.TextField(blank=True)),
                ('by', models.CharField(choices=[('both', 'text and tool calls'), ('text', 'text alone'), ('calls', 'tool calls alone')], default='both', max_length=8)),
                ('fineness', models.CharField(choices=[('coarse', 'few and wide'), ('medium', 'medium'), ('fine', 'many and narrow')], default='medium', max_length=8)),
                ('up_to', models.PositiveBigIntegerField()),
                ('report', models.JSONField(blank=True, default=dict)),
                ('through', models.CharField(blank=True, max_length=120)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('within', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='splits', to='failures.cluster')),
            ],
            options={
                'abstract': False,
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['state', 'lease_until'], name='clustering_open'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'idempotency_key'), name='clustering_one_per_key'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'succeeded', 'failed', 'cancelled'])), name='clustering_state_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ClusteringEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(default='info', max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='failures.clustering')),
            ],
            options={
                'abstract': False,
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='DetectorSetting',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('detector', models.CharField(max_length=64)),
                ('is_on', models.BooleanField(default=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('bucket', models.CharField(blank=True, max_length=64)),
                ('bucket_since', models.DateTimeField(blank=True, null=True)),
                ('reads_all', models.BooleanField(default=False)),
                ('marked_to', models.PositiveBigIntegerField(default=0)),
                ('caught_up_at', models.DateTimeField(blank=True, null=True)),
                ('by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='detector_settings', to='accounts.project')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'detector'), name='detector_setting_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Failure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('decision', models.CharField(choices=[('confirmed', 'confirmed what was proposed'), ('changed', 'chose another category'), ('added', 'labelled without a proposal'), ('rejected', 'decided that nothing is wrong')], max_length=16)),
                ('bucket', models.CharField(blank=True, max_length=64)),
                ('step', models.CharField(blank=True, max_length=64)),
                ('corrected', models.JSONField(blank=True, null=True)),
                ('note', models.TextField(blank=True)),
                ('labelled_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('current', models.BooleanField(default=True)),
                ('taken_back_at', models.DateTimeField(blank=True, null=True)),
                ('labelled_by', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='failures', to='accounts.project')),
                ('trajectory', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='failures', to='trajectories.trajectory')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=models.Q(('current', True)), fields=['project', 'bucket', '-id'], name='failure_open'),
                    models.Index(fields=['labelled_by', '-labelled_at', '-id'], name='failure_by_person'),
                    models.Index(condition=models.Q(('current', True)), fields=['project', '-labelled_at', '-id'], name='failure_lately'),
                ],
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('current', True)), fields=('trajectory',), name='failure_one_current'),
                    models.CheckConstraint(condition=models.Q(('decision__in', ['confirmed', 'changed', 'added', 'rejected'])), name='failure_decision_is_known'),
                    models.CheckConstraint(condition=models.Q(models.Q(('bucket', ''), ('decision', 'rejected')), models.Q(models.Q(('decision', 'rejected'), _negated=True), models.Q(('bucket', ''), _negated=True)), _connector='OR'), name='failure_has_a_bucket_unless_rejected'),
                ],
            },
        ),
        migrations.CreateModel(
            name='BucketLife',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('bucket', models.CharField(max_length=64)),
                ('priority', models.CharField(choices=[('urgent', 'Urgent'), ('high', 'High'), ('normal', 'Normal'), ('low', 'Low')], default='normal', max_length=8)),
                ('severity', models.CharField(blank=True, choices=[('critical', 'Critical'), ('major', 'Major'), ('minor', 'Minor')], max_length=8)),
                ('closed_at', models.DateTimeField(blank=True, null=True)),
                ('closed_because', models.TextField(blank=True)),
                ('reopened_at', models.DateTimeField(blank=True, null=True)),
                ('closed_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='bucket_lives', to='accounts.project')),
                ('reopened_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('reopened_for', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='failures.failure')),
                ('reopened_by_watch', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='failures.recurrence')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'bucket'), name='bucket_life_once'),
                    models.CheckConstraint(condition=models.Q(('priority__in', ['urgent', 'high', 'normal', 'low'])), name='bucket_priority_is_known'),
                    models.CheckConstraint(condition=models.Q(('severity__in', ['', 'critical', 'major', 'minor'])), name='bucket_severity_is_known'),
                    models.CheckConstraint(condition=models.Q(('reopened_at', None), ('closed_at__isnull', False), _connector='OR'), name='bucket_reopened_after_closing'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Member',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('likeness', models.FloatField()),
                ('cluster', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='members', to='failures.cluster')),
                ('clustering', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='failures.clustering')),
                ('trajectory', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='trajectories.trajectory')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['cluster', '-likeness', '-id'], name='member_nearest'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('clustering', 'trajectory'), name='member_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ProjectBucket',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=64)),
                ('label', models.CharField(max_length=60)),
                ('description', models.TextField(blank=True)),
                ('parent', models.CharField(max_length=64)),
                ('shortcut', models.CharField(blank=True, max_length=1)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('archived_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='buckets', to='accounts.project')),
            ],
            options={
                'ordering': ['id'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'key'), name='bucket_once'),
                    models.UniqueConstraint(models.F('project'), django.db.models.functions.text.Lower('label'), condition=models.Q(('archived_at', None)), name='bucket_label_once'),
                    models.UniqueConstraint(condition=models.Q(('archived_at', None), models.Q(('shortcut', ''), _negated=True)), fields=('project', 'shortcut'), name='bucket_shortcut_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Proposal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('detector', models.CharField(max_length=64)),
                ('bucket', models.CharField(max_length=64)),
                ('step', models.CharField(blank=True, max_length=64)),
                ('score', models.FloatField()),
                ('evidence', models.TextField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('trajectory', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='proposals', to='trajectories.trajectory')),
                ('own_score', models.FloatField()),
            ],
            options={
                'ordering': ['-score', 'id'],
                'indexes': [
                    models.Index(fields=['project', 'bucket'], name='proposal_by_bucket'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Queue',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('instructions', models.TextField(blank=True)),
                ('rule', models.CharField(choices=[('hand', 'by hand'), ('detected', 'new failures that detectors propose'), ('sample', 'a sample of the traffic'), ('disagreed', 'where reviewers disagree')], default='hand', max_length=16)),
                ('bucket', models.CharField(blank=True, max_length=64)),
                ('detector', models.CharField(blank=True, max_length=64)),
                ('percent', models.FloatField(blank=True, null=True)),
                ('needed', models.PositiveSmallIntegerField(default=1)),
                ('minutes', models.PositiveSmallIntegerField(default=15)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('caught_up_at', models.DateTimeField(blank=True, null=True)),
                ('archived_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='queues', to='accounts.project')),
                ('assignees', models.ManyToManyField(blank=True, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name'), name='queue_once'),
                    models.CheckConstraint(condition=models.Q(('rule__in', ['hand', 'detected', 'sample', 'disagreed'])), name='queue_rule_is_known'),
                    models.CheckConstraint(condition=models.Q(('needed__gte', 1)), name='queue_needs_a_reviewer'),
                    models.CheckConstraint(condition=models.Q(('minutes__gte', 1)), name='queue_reserves_for_a_while'),
                ],
            },
        ),
        migrations.CreateModel(
            name='QueueItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('to_review', 'to review'), ('needs_another', 'needs another'), ('done', 'done'), ('declined', 'declined')], default='to_review', max_length=16)),
                ('queued_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('added_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('said_by', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), default=list, editable=False, size=None)),
                ('reserved_until', models.DateTimeField(blank=True, null=True)),
                ('closed_at', models.DateTimeField(blank=True, null=True)),
                ('added_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('outcome', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='items', to='failures.failure')),
                ('queue', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='items', to='failures.queue')),
                ('reserved_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('trajectory', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='queue_items', to='trajectories.trajectory')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['queue', 'state', '-id'], name='queue_item_by_state'),
                    models.Index(fields=['queue', '-id'], name='queue_item_newest'),
                    models.Index(condition=models.Q(('reserved_until', None), _negated=True), fields=['queue', 'reserved_by'], name='queue_item_reserved'),
                    models.Index(condition=models.Q(('state__in', ['to_review', 'needs_another'])), fields=['queue', 'said_by', 'queued_at', 'id'], name='queue_item_free'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('queue', 'trajectory'), name='queue_item_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='QueueTally',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(max_length=16)),
                ('n', models.IntegerField()),
                ('queue', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='tallies', to='failures.queue')),
            ],
        ),
        migrations.CreateModel(
            name='Review',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('declined', models.BooleanField(default=False)),
                ('bucket', models.CharField(blank=True, max_length=64)),
                ('step', models.CharField(blank=True, max_length=64)),
                ('corrected', models.JSONField(blank=True, null=True)),
                ('note', models.TextField(blank=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('is_blind', models.BooleanField(default=True)),
                ('settles', models.BooleanField(default=False)),
                ('current', models.BooleanField(default=True)),
                ('taken_back_at', models.DateTimeField(blank=True, null=True)),
                ('item', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reviews', to='failures.queueitem')),
                ('reviewer', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['id'],
                'indexes': [
                    models.Index(fields=['reviewer', '-at', '-id'], name='review_by_person'),
                ],
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('current', True)), fields=('item', 'reviewer'), name='review_one_current'),
                    models.CheckConstraint(condition=models.Q(('declined', False), ('bucket', ''), _connector='OR'), name='review_declined_has_no_bucket'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Sketch',
            fields=[
                ('trajectory', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='trajectories.trajectory')),
                ('read_at', models.DateTimeField()),
                ('method', models.PositiveSmallIntegerField()),
                ('asked', models.BinaryField()),
                ('wrong', models.BinaryField()),
                ('calls', models.BinaryField()),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['project', '-trajectory'], name='sketch_newest'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Recurrence',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('bucket', models.CharField(max_length=64)),
                ('claim', models.FloatField()),
                ('sessions', models.PositiveIntegerField()),
                ('failed', models.FloatField()),
                ('path', models.JSONField()),
                ('trajectories', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), default=list, size=None)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('answer', models.CharField(blank=True, choices=[('', 'not confirmed yet'), ('same', 'confirmed'), ('not_same', 'not the same')], default='', max_length=16)),
                ('answered_at', models.DateTimeField(blank=True, null=True)),
                ('answered_because', models.TextField(blank=True)),
                ('answered_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='recurrences', to='accounts.project')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [
                    models.Index(fields=['project', 'bucket', '-id'], name='recurrence_of_bucket'),
                ],
            },
        ),
    ])]
