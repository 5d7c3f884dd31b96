import django.db.models.deletion
from django.db import migrations, models

BATCH = 500


def move(apps, schema_editor):
    """The history of each row becomes rows of its own; what was active last stays with it."""
    from datetime import UTC, datetime

    Activity = apps.get_model("reclaim", "WorkspaceActivity")
    Change = apps.get_model("reclaim", "ActivityChange")
    made = []
    for row in Activity.objects.only("workspace_id", "generation", "history").iterator(chunk_size=BATCH):
        joined = [(minute, None if kinds is None else ",".join(kinds)) for minute, kinds in row.history]
        made += [
            Change(
                workspace_id=row.workspace_id,
                generation=row.generation,
                at=datetime.fromtimestamp(60 * minute, UTC),
                active=active,
            )
            for minute, active in joined
        ]
        if joined:
            Activity.objects.filter(pk=row.pk).update(active=joined[-1][1])
        if len(made) >= BATCH:
            Change.objects.bulk_create(made, batch_size=BATCH)
            made = []
    Change.objects.bulk_create(made, batch_size=BATCH)


class Migration(migrations.Migration):
    # PostgreSQL changes no table that has pending events of its own transaction.
    atomic = False

    dependencies = [
        ('reclaim', '0002_activity'),
        ('workspaces', '0020_ends'),
    ]

    operations = [
        migrations.CreateModel(
            name='ActivityChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('generation', models.PositiveIntegerField()),
                ('at', models.DateTimeField(db_index=True)),
                ('active', models.CharField(blank=True, max_length=80, null=True)),
                ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='activity_changes', to='workspaces.workspace')),
            ],
            options={
                'indexes': [models.Index(fields=['workspace', 'at'], name='activity_change_workspace')],
            },
        ),
        migrations.CreateModel(
            name='IdleSpell',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('generation', models.PositiveIntegerField()),
                ('kind', models.CharField(choices=[('all', 'The whole workspace'), ('gpu', 'Its GPUs')], max_length=3)),
                ('began_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(db_index=True)),
                ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='idle_spells', to='workspaces.workspace')),
            ],
            options={
                'indexes': [models.Index(fields=['workspace', 'generation'], name='idle_spell_start')],
            },
        ),
        migrations.AddField('lastpass', 'recorded_since', models.DateTimeField(blank=True, null=True)),
        migrations.AddField('workspaceactivity', 'active', models.CharField(blank=True, max_length=80, null=True)),
        migrations.RunPython(move, migrations.RunPython.noop),
        migrations.RemoveField('workspaceactivity', 'history'),
        migrations.AlterField('workspaceactivity', 'report', models.TextField(default='{}')),
        migrations.AlterField('workspaceactivity', 'signals', models.TextField(default='[]')),
    ]
