from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('training', '0013_pipelines'),
    ]

    operations = [
        migrations.AlterField(
            model_name='dataset',
            name='kind',
            field=models.CharField(choices=[('sft', 'demonstrations'), ('pairs', 'preference pairs'), ('tasks', 'tasks to practise'), ('thumbs', 'answers with a thumb'), ('prompts', 'prompts'), ('scored', 'scored attempts')], max_length=8),
        ),
    ]
