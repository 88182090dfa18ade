from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_login_attempts")]

    operations = [
        migrations.AddField(
            model_name="project",
            name="upstream",
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
