import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='Revision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('template', 'Template'), ('flavor', 'Flavor'), ('pool', 'Pool'), ('team', 'Team'), ('reclaim', 'Reclaim policy')], max_length=12)),
                ('key', models.UUIDField()),
                ('number', models.PositiveIntegerField()),
                ('at', models.DateTimeField()),
                ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='revisions', to=settings.AUTH_USER_MODEL)),
                ('actor_label', models.CharField(max_length=80)),
                ('act', models.CharField(choices=[('found', 'Initial state'), ('created', 'Created'), ('changed', 'Changed'), ('restored', 'Restored'), ('deleted', 'Deleted')], max_length=10)),
                ('restored_from', models.PositiveIntegerField(blank=True, null=True)),
                ('data', models.JSONField()),
            ],
            options={
                'ordering': ['kind', 'key', '-number'],
                'constraints': [models.UniqueConstraint(fields=('kind', 'key', 'number'), name='revision_unique')],
            },
        ),
    ]
