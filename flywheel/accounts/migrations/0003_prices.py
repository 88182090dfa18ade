import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

from flywheel.system.migration_operations import in_groups


def move_prices(apps, schema_editor):
    """The lines of the gateway's upstream become rows of the table."""
    project_rows = apps.get_model("accounts", "Project").objects
    price_rows = apps.get_model("accounts", "ModelPrice").objects
    for project in project_rows.filter(upstream__has_key="prices"):
        prices = project.upstream.pop("prices")
        price_rows.bulk_create(
            price_rows.model(
                project=project,
                model=model[:200],
                price_in=price_in,
                price_out=price_out,
                source="the prices of Settings › Gateway, before they had a page of their own",
            )
            for model, (price_in, price_out) in prices.items()
        )
        project.save(update_fields=["upstream"])


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_provider_keys'),
    ]

    operations = [
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
                'constraints': [models.UniqueConstraint(condition=models.Q(('removed_at', None)), fields=('project', 'model', 'valid_from'), name='model_price_once', nulls_distinct=False)],
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
        migrations.RunPython(move_prices, migrations.RunPython.noop),
    ]
    operations = in_groups(operations)
