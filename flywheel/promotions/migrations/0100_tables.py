import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import CreateModels


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0100_tables'),
        ('agents', '0100_tables'),
        ('evals', '0100_tables'),
        ('training', '0100_tables'),
    ]

    operations = [CreateModels([
        migrations.CreateModel(
            name='Policy',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField()),
                ('rules', models.JSONField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='policies', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'policies',
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'version'), name='policy_version_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Candidate',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('report', models.JSONField()),
                ('report_digest', models.CharField(max_length=64)),
                ('verdict', models.CharField(choices=[('eligible', 'Eligible'), ('not_shown', 'not shown to be better'), ('regressed', 'Regressed'), ('invalid', 'Invalid')], max_length=16)),
                ('state', models.CharField(choices=[('waiting', 'waiting for an approver'), ('ramping', 'being released by steps'), ('promoted', 'Promoted'), ('rejected', 'Rejected'), ('taken_back', 'taken back'), ('stopped', 'ramp stopped'), ('void', 'Void')], default='waiting', max_length=16)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='candidates', to='agents.agent')),
                ('baseline', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
                ('baseline_eval', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='evals.evalrun')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='candidates', to='accounts.project')),
                ('proposed_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('run', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='candidates', to='training.trainingrun')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='candidates', to='agents.version')),
                ('version_eval', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='evals.evalrun')),
                ('policy', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='promotions.policy')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(fields=('version_eval', 'baseline_eval', 'policy'), name='candidate_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Promotion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('first', 'first version'), ('promote', 'Promote'), ('rollback', 'Rollback')], max_length=16)),
                ('generation', models.PositiveIntegerField()),
                ('against_the_gate', models.BooleanField(default=False)),
                ('suites', models.JSONField(blank=True, default=list)),
                ('sealed', models.JSONField(blank=True, default=dict)),
                ('reason', models.TextField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('after', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='promotions', to='agents.version')),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='promotions', to='agents.agent')),
                ('approved_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('before', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='agents.version')),
                ('candidate', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='promotion', to='promotions.candidate')),
                ('proposed_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(fields=('agent', 'generation'), name='promotion_one_per_generation'),
                    models.CheckConstraint(condition=models.Q(models.Q(('kind', 'promote'), _negated=True), models.Q(('proposed_by__isnull', False), models.Q(('proposed_by', models.F('approved_by')), _negated=True)), _connector='OR'), name='promotion_needs_four_eyes'),
                    models.CheckConstraint(condition=models.Q(models.Q(('kind', 'promote'), _negated=True), ('candidate__isnull', False), _connector='OR'), name='promotion_needs_evidence'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Harmless',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reason', models.TextField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('result', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='harmless', to='evals.result')),
            ],
            options={
                'verbose_name_plural': 'harmless',
            },
        ),
        migrations.CreateModel(
            name='LateReason',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('text', models.TextField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('promotion', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='late_reason', to='promotions.promotion')),
            ],
        ),
        migrations.CreateModel(
            name='Ramp',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('plan', models.JSONField()),
                ('state', models.CharField(choices=[('waiting', 'about to begin'), ('shadow', 'in the shadow'), ('running', 'running'), ('holding', 'on hold'), ('finished', 'finished'), ('taken_back', 'taken back'), ('stopped', 'stopped')], default='waiting', max_length=16)),
                ('stage', models.IntegerField(default=0)),
                ('stage_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('generation', models.PositiveIntegerField(default=1)),
                ('agent_generation', models.PositiveIntegerField()),
                ('override', models.BooleanField(default=False)),
                ('reason', models.TextField()),
                ('judgement', models.JSONField(blank=True, default=dict)),
                ('finding', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('after', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='promotions.ramp')),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='ramps', to='agents.agent')),
                ('approved_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('candidate', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='ramps', to='promotions.candidate')),
                ('promotion', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='ramp', to='promotions.promotion')),
                ('split', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='ramp', to='agents.split')),
                ('probes', models.JSONField(blank=True, default=list)),
                ('test_wanted_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('state__in', ['waiting', 'shadow', 'running', 'holding'])), fields=('agent',), name='ramp_one_open'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RampChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('generation', models.PositiveIntegerField()),
                ('state', models.CharField(choices=[('waiting', 'about to begin'), ('shadow', 'in the shadow'), ('running', 'running'), ('holding', 'on hold'), ('finished', 'finished'), ('taken_back', 'taken back'), ('stopped', 'stopped')], max_length=16)),
                ('stage', models.IntegerField()),
                ('share', models.PositiveIntegerField()),
                ('reason', models.TextField()),
                ('data', models.JSONField(blank=True, default=dict)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('ramp', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='changes', to='promotions.ramp')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(fields=('ramp', 'generation'), name='ramp_change_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Watch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('running', 'watching'), ('over', 'over')], default='running', max_length=16)),
                ('claims', models.JSONField()),
                ('detectors', models.CharField(max_length=64)),
                ('sums', models.JSONField(blank=True, default=dict)),
                ('sessions', models.PositiveIntegerField(default=0)),
                ('broken', models.JSONField(blank=True, default=dict)),
                ('read_to', models.DateTimeField()),
                ('began_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='watches', to='agents.agent')),
                ('promotion', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='watch', to='promotions.promotion')),
            ],
            options={
                'verbose_name_plural': 'watches',
                'indexes': [
                    models.Index(condition=models.Q(('state', 'running')), fields=['agent'], name='watch_running'),
                ],
            },
        ),
        migrations.CreateModel(
            name='WatchedSession',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200)),
                ('number', models.PositiveIntegerField()),
                ('parts', models.JSONField()),
                ('evidence', models.JSONField()),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('watch', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='rows', to='promotions.watch')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['watch', '-id'], name='watched_session_newest'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('watch', 'name'), name='watched_session_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='SelfTest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('stage', models.IntegerField()),
                ('verdict', models.CharField(choices=[('passed', 'Passed'), ('failed', 'Failed'), ('not_tested', 'not tested')], max_length=16)),
                ('arms', models.JSONField()),
                ('ramp', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='self_tests', to='promotions.ramp')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [
                    models.Index(fields=['ramp', '-at'], name='self_test_newest'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ShadowVerdict',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('verdict', models.CharField(choices=[('candidate', "the candidate's is better"), ('live', "the live version's is better"), ('both', 'both are fine'), ('wrong', "the candidate's is wrong")], max_length=16)),
                ('note', models.TextField(blank=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('copy', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='verdicts', to='agents.shadowcopy')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
    ])]
