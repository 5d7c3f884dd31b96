"""Allocations come here from the room of workspaces; the model of checks has left for its own."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ('inventory', '0005_tables_renamed'),
        ('workspaces', '0005_tables_renamed'),
        ('gpu_checks', '0001_initial'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name='Allocation',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('generation', models.PositiveIntegerField()),
                        ('cpu_milli', models.PositiveIntegerField()),
                        ('memory_mib', models.PositiveIntegerField()),
                        ('disk_mib', models.PositiveIntegerField(default=0)),
                        ('granted_at', models.DateTimeField()),
                        ('released_at', models.DateTimeField(blank=True, null=True)),
                        ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='inventory.node')),
                        ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='workspaces.workspace')),
                    ],
                ),
                migrations.CreateModel(
                    name='AllocatedDevice',
                    fields=[
                        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                        ('milli', models.PositiveIntegerField(default=1000)),
                        ('memory_mib', models.PositiveIntegerField(default=0, help_text='Set where a share asked for memory.')),
                        ('active', models.BooleanField(default=True)),
                        ('device', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocated', to='inventory.device')),
                        ('allocation', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='devices', to='inventory.allocation')),
                    ],
                ),
                migrations.AddIndex(
                    model_name='allocation',
                    index=models.Index(condition=models.Q(('released_at', None)), fields=['node'], name='allocation_active_node'),
                ),
                migrations.AddConstraint(
                    model_name='allocation',
                    constraint=models.UniqueConstraint(condition=models.Q(('released_at', None)), fields=('workspace', 'node'), name='allocation_active_unique'),
                ),
                migrations.AddConstraint(
                    model_name='allocateddevice',
                    constraint=models.UniqueConstraint(condition=models.Q(('active', True), ('milli', 1000)), fields=('device',), name='device_whole_once'),
                ),
                migrations.DeleteModel(name='GpuCheckRun'),
            ],
        ),
        migrations.CreateModel(
            name='PlacementLock',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='placement_lock_single')],
            },
        ),
    ]
