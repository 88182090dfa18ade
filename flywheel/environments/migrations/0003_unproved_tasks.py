from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("environments", "0002_worlds")]
    operations = [
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                fields=["project"], name="task_unproved", condition=Q(is_proved=False, retired_at=None)
            ),
        ),
    ]
