from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('trajectories', '0016_list_index'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='trajectory',
            index=models.Index(condition=models.Q(('label', ''), models.Q(('proposed_bucket', ''), _negated=True), models.Q(('source', 'rollout'), _negated=True)), fields=['project', '-proposed_score', '-id'], name='trajectory_surest'),
        ),
    ]
