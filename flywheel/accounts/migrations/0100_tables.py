import django.contrib.auth.models
import django.contrib.auth.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import CreateModels


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [CreateModels([
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.SlugField(unique=True)),
                ('name', models.CharField(max_length=100)),
                ('is_demo', models.BooleanField(default=False)),
                ('upstream', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        migrations.CreateModel(
            name='Pulse',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=32, unique=True)),
                ('at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('must_change_password', models.BooleanField(default=False)),
                ('is_mailed_notices', models.BooleanField(default=False)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'abstract': False,
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='LoginAttempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('username', models.CharField(max_length=150)),
                ('address', models.CharField(max_length=64)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                'indexes': [
                    models.Index(fields=['username', 'address'], name='attempt_by_name'),
                    models.Index(fields=['address', 'at'], name='attempt_by_address'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('public', models.CharField(max_length=16, unique=True)),
                ('hashed', models.CharField(max_length=64)),
                ('scopes', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to='accounts.project')),
            ],
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('reviewer', 'Reviewer'), ('builder', 'Builder'), ('trainer', 'Trainer'), ('approver', 'Approver'), ('admin', 'Admin')], max_length=16)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='accounts.project')),
            ],
            options={
                'constraints': [
                    models.UniqueConstraint(fields=('user', 'project', 'role'), name='membership_once'),
                    models.CheckConstraint(condition=models.Q(('role__in', ['viewer', 'reviewer', 'builder', 'trainer', 'approver', 'admin'])), name='membership_role_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('through', models.CharField(blank=True, max_length=120)),
                ('action', models.CharField(max_length=64)),
                ('subject', models.CharField(max_length=200)),
                ('reason', models.TextField(blank=True)),
                ('data', models.JSONField(default=dict)),
                ('actor', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='audit', to='accounts.project')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [
                    models.Index(fields=['project', '-id'], name='audit_newest'),
                    models.Index(fields=['project', 'subject', '-id'], name='audit_of_subject'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RedactionPolicy',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('mode', models.CharField(choices=[('off', 'off'), ('secrets', 'secrets'), ('strict', 'strict')], max_length=8)),
                ('rules', models.JSONField(blank=True, default=list)),
                ('made_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('made_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='redaction_policies', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'redaction policies',
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'number'), name='redaction_policy_once'),
                    models.CheckConstraint(condition=models.Q(('mode__in', ['off', 'secrets', 'strict'])), name='redaction_mode_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ProviderKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('base_url', models.CharField(max_length=500)),
                ('sealed', models.TextField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='provider_keys', to='accounts.project')),
            ],
            options={
                'ordering': ['project', 'name'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name'), name='provider_key_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='ModelPrice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model', models.CharField(max_length=200)),
                ('price_in', models.FloatField()),
                ('price_out', models.FloatField()),
                ('price_cached', models.FloatField(blank=True, null=True)),
                ('valid_from', models.DateField(blank=True, null=True)),
                ('source', models.CharField(blank=True, max_length=500)),
                ('set_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('removed_at', models.DateTimeField(blank=True, null=True)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='prices', to='accounts.project')),
                ('set_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['project', 'model', '-valid_from', '-id'],
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('removed_at', None)), fields=('project', 'model', 'valid_from'), name='model_price_once', nulls_distinct=False),
                ],
            },
        ),
        migrations.CreateModel(
            name='DevicePrice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('usd_per_hour', models.FloatField()),
                ('source', models.CharField(blank=True, max_length=500)),
                ('set_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='device_price', to='accounts.project')),
                ('set_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='WorkerDevice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(max_length=200)),
                ('label', models.CharField(max_length=8)),
                ('name', models.CharField(max_length=100)),
                ('at', models.DateTimeField()),
                ('modes', models.JSONField(default=list)),
            ],
            options={
                'ordering': ['host', 'label', 'name'],
                'constraints': [
                    models.UniqueConstraint(fields=('host', 'label', 'name'), name='workerdevice_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Notice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, unique=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('event', models.CharField(choices=[('candidate.waits', 'a candidate waits for approval'), ('ramp.stage_reached', 'a ramp reaches a stage'), ('ramp.held', 'a ramp is held'), ('ramp.taken_back', 'a ramp is taken back'), ('ramp.finished', 'a ramp is finished'), ('bucket.recurred', 'a fixed category reopens'), ('promotion.claim_broken', "a promotion's claim is broken"), ('run.ended', 'a training run succeeds'), ('run.failed', 'a training run or an eval fails'), ('comment.mention', 'a comment mentions somebody'), ('queue.assigned', 'a queue is assigned to somebody')], max_length=32)),
                ('subject', models.CharField(max_length=200)),
                ('title', models.CharField(max_length=300)),
                ('text', models.TextField(blank=True)),
                ('url', models.CharField(blank=True, max_length=500)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notices', to='accounts.project')),
            ],
            options={
                'indexes': [
                    models.Index(fields=['at'], name='notice_oldest'),
                ],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(('event__in', ['candidate.waits', 'ramp.stage_reached', 'ramp.held', 'ramp.taken_back', 'ramp.finished', 'bucket.recurred', 'promotion.claim_broken', 'run.ended', 'run.failed', 'comment.mention', 'queue.assigned'])), name='notice_event_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='InboxEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('read_at', models.DateTimeField(null=True)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='inbox', to=settings.AUTH_USER_MODEL)),
                ('notice', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='entries', to='accounts.notice')),
            ],
            options={
                'verbose_name_plural': 'inbox entries',
                'indexes': [
                    models.Index(fields=['user', 'project', '-id'], name='inbox_newest'),
                    models.Index(condition=models.Q(('read_at', None)), fields=['user', 'project'], name='inbox_unread'),
                    models.Index(fields=['project'], name='inbox_of_project'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('notice', 'user'), name='inbox_entry_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='NoticeTarget',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=60)),
                ('kind', models.CharField(choices=[('slack', 'Slack'), ('webhook', 'Webhook')], max_length=8)),
                ('host', models.CharField(max_length=260)),
                ('sealed_url', models.TextField()),
                ('sealed_secret', models.TextField(blank=True)),
                ('events', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notice_targets', to='accounts.project')),
            ],
            options={
                'ordering': ['project', 'name'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'name'), name='notice_target_once'),
                    models.CheckConstraint(condition=models.Q(('kind__in', ['slack', 'webhook'])), name='notice_target_kind_is_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='NoticeDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('subject', models.CharField(max_length=200)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('sent', 'Sent'), ('dead', 'Dead')], default='waiting', max_length=8)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('due_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('give_up_at', models.DateTimeField()),
                ('error', models.TextField(blank=True)),
                ('sent_at', models.DateTimeField(null=True)),
                ('notice', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='accounts.notice')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('target', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='accounts.noticetarget')),
            ],
            options={
                'verbose_name_plural': 'notice deliveries',
                'indexes': [
                    models.Index(condition=models.Q(('state', 'waiting')), fields=['due_at'], name='notice_delivery_due'),
                    models.Index(condition=models.Q(('state', 'waiting')), fields=['subject', 'id'], name='notice_delivery_order'),
                    models.Index(condition=models.Q(('state', 'dead')), fields=['project', '-id'], name='notice_delivery_dead'),
                ],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(models.Q(('target', None), ('user__isnull', False)), models.Q(('target__isnull', False), ('user', None)), _connector='OR'), name='notice_delivery_goes_to_one'),
                ],
            },
        ),
    ])]
