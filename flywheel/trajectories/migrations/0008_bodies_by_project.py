from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0007_events_and_feedback")]

    operations = [
        migrations.RemoveIndex(
            model_name="body",
            name="body_oldest",
        ),
        migrations.AddIndex(
            model_name="body",
            index=models.Index(fields=["project", "received_at"], name="body_oldest"),
        ),
    ]
