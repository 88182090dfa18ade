
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import in_groups


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_tables'),
        ('agents', '0001_tables'),
        ('evals', '0001_tables'),
        ('training', '0001_tables'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
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
                ('state', models.CharField(choices=[('waiting', 'waiting for an approver'), ('promoted', 'Promoted'), ('rejected', 'Rejected'), ('void', 'Void')], default='waiting', max_length=16)),
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
    ]
    operations = in_groups(operations)
