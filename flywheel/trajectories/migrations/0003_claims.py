from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0002_triggers")]

    operations = [migrations.RenameField("trajectory", "said", "claims")]
