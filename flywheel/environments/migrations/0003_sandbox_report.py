import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("environments", "0002_task_also")]

    operations = [
        migrations.CreateModel(
            name="SandboxReport",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("host", models.CharField(max_length=200, unique=True)),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("report", models.JSONField()),
            ],
            options={"ordering": ["host"]},
        ),
    ]
