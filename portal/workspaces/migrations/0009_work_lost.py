"""Whether a workspace loses its work when it has to make room. Of what is there already it is presumed."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('workspaces', '0008_old_columns_removed'),
    ]

    operations = [
        migrations.AddField(
            model_name='workspace',
            name='checkpointed',
            field=models.BooleanField(blank=True, default=None, null=True),
        ),
        migrations.AddField(
            model_name='workspace',
            name='loses_work',
            field=models.BooleanField(default=True),
        ),
    ]
