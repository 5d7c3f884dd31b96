import django.db.models.deletion
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('inventory', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Orphan',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='inventory.pool')),
                ('node', models.CharField(max_length=120)),
                ('kind', models.CharField(choices=[('workspace', 'Workspace'), ('process', 'Process'), ('control_group', 'Control group'), ('folder', 'Folder'), ('home', 'Home folder')], help_text='What was found on the node.', max_length=16)),
                ('name', models.CharField(max_length=200)),
                ('detail', models.CharField(blank=True, help_text='Description from the node.', max_length=400)),
                ('size_mib', models.PositiveBigIntegerField(blank=True, null=True)),
                ('state', models.CharField(choices=[('found', 'Orphaned'), ('removing', 'Deleting'), ('removed', 'Deleted'), ('gone', 'Gone')], default='found', max_length=8)),
                ('first_seen_at', models.DateTimeField(help_text='When it was first seen.')),
                ('seen_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('removed_by', models.CharField(blank=True, max_length=150)),
                ('lease', models.CharField(blank=True, max_length=32)),
                ('lease_expires_at', models.DateTimeField(blank=True, null=True)),
                ('problem', models.CharField(blank=True, max_length=1000)),
            ],
            options={
                'ordering': ['-first_seen_at', '-id'],
                'indexes': [models.Index(fields=['state', 'seen_at'], name='orphan_state_seen')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ['found', 'removing'])), fields=('pool', 'node', 'kind', 'name'), name='orphan_there_unique')],
            },
        ),
    ]
