"""`ChosenBase` is a model of agents now."""

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('agents', '0009_chosen_bases'),
        ('evals', '0008_chosen_base'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel(name='ChosenBase')]),
    ]
