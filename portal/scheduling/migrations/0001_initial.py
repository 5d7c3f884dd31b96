import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('inventory', '0001_initial'),
        ('workspaces', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='LearntMix',
            fields=[
                ('pool', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='learnt_mix', serialize=False, to='inventory.pool')),
                ('shapes', models.JSONField(default=list)),
                ('requests', models.PositiveIntegerField(default=0)),
                ('learnt_until', models.DateTimeField(blank=True, null=True)),
                ('looked_until', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Move',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='moves', to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='inventory.pool')),
                ('source', models.JSONField()),
                ('target', models.JSONField()),
                ('asked_at', models.DateTimeField(db_index=True)),
                ('left_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('outcome', models.CharField(blank=True, choices=[('', 'In progress'), ('arrived', 'Moved'), ('elsewhere', 'Started elsewhere'), ('stayed', 'Not moved')], default='', max_length=9)),
            ],
            options={
                'constraints': [models.UniqueConstraint(condition=models.Q(('ended_at', None)), fields=('workspace',), name='move_under_way_once')],
            },
        ),
        migrations.CreateModel(
            name='QueueState',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ('last_reservation_seq', models.PositiveBigIntegerField(default=0)),
                ('seen_generation', models.PositiveBigIntegerField(default=0)),
                ('decided_at', models.DateTimeField(blank=True, null=True)),
                ('took_ms', models.PositiveIntegerField(default=0)),
                ('shown_generation', models.PositiveBigIntegerField(default=0)),
                ('shown_at', models.DateTimeField(blank=True, null=True)),
                ('shown_ms', models.PositiveIntegerField(default=0)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='queue_state_single')],
            },
        ),
        migrations.CreateModel(
            name='SnapshotChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('workload', 'One workload'), ('node', 'One node and its devices'), ('capacity', 'Pools, and which nodes and devices there are'), ('limits', 'Teams, cohorts, quotas, budgets and reservations'), ('mix', 'The requests that pools expect')], max_length=8)),
                ('key', models.UUIDField(blank=True, null=True)),
                ('at', models.DateTimeField(auto_now_add=True, db_index=True)),
            ],
        ),
    ]
