from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("failures", "0004_failures_lately")]

    operations = [
        migrations.AddField("proposal", "own_score", models.FloatField(default=0), preserve_default=False),
        # What stands there was read with the record of its time; reading again brings the detector's own.
        migrations.RunSQL("UPDATE failures_proposal SET own_score = score", migrations.RunSQL.noop),
    ]
