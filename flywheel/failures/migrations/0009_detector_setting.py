from django.db import migrations, models
import django.db.models.deletion


class Migration(migrations.Migration):
    dependencies = [("failures", "0008_queue_tallies"), ("accounts", "0005_audit_of_subject")]

    operations = [
        migrations.RemoveConstraint(model_name="detectorswitch", name="detector_switch_once"),
        migrations.RenameModel(old_name="DetectorSwitch", new_name="DetectorSetting"),
        migrations.AlterField(
            model_name="detectorsetting",
            name="project",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="detector_settings", to="accounts.project"
            ),
        ),
        migrations.AlterField(
            model_name="detectorsetting", name="is_on", field=models.BooleanField(default=True)
        ),
        migrations.AddField(
            model_name="detectorsetting", name="bucket", field=models.CharField(blank=True, max_length=64, default=""), preserve_default=False
        ),
        migrations.AddField(
            model_name="detectorsetting", name="bucket_since", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="detectorsetting", name="reads_all", field=models.BooleanField(default=False)
        ),
        migrations.AddConstraint(
            model_name="detectorsetting",
            constraint=models.UniqueConstraint(fields=["project", "detector"], name="detector_setting_once"),
        ),
        # Detectors that were switched on and not caught up with yet.
        migrations.RunSQL(
            "UPDATE failures_detectorsetting SET reads_all = true WHERE is_on AND caught_up_at IS NULL",
            migrations.RunSQL.noop,
        ),
    ]
