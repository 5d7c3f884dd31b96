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
            name='Allocation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='workspaces.workspace')),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='inventory.node')),
                ('generation', models.PositiveIntegerField()),
                ('flavor', models.CharField(max_length=60)),
                ('cpu_milli', models.PositiveIntegerField()),
                ('memory_mib', models.PositiveIntegerField()),
                ('disk_mib', models.PositiveIntegerField(default=0)),
                ('granted_at', models.DateTimeField()),
                ('released_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('released_at', None)), fields=['node'], name='allocation_active_node')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('released_at', None)), fields=('workspace', 'node'), name='allocation_active_unique')],
            },
        ),
        migrations.CreateModel(
            name='AllocatedDevice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('allocation', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='devices', to='inventory.allocation')),
                ('device', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocated', to='inventory.device')),
                ('milli', models.PositiveIntegerField(default=1000)),
                ('memory_mib', models.PositiveIntegerField(default=0, help_text='Memory limit of a share.')),
                ('active', models.BooleanField(default=True)),
            ],
            options={
                'constraints': [models.UniqueConstraint(condition=models.Q(('active', True), ('milli', 1000)), fields=('device',), name='device_whole_once')],
            },
        ),
    ]
