import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('inventory', '0001_initial'),
        ('workspaces', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
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
                ('granted_at', models.DateTimeField(null=True)),
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
        migrations.CreateModel(
            name='Maintenance',
            fields=[
                ('key', models.UUIDField(default=uuid.UUID('00000000-0000-0000-0000-000000000000'), editable=False, primary_key=True, serialize=False)),
                ('begins_at', models.DateTimeField(help_text='Start. No new work starts from then on.')),
                ('ends_at', models.DateTimeField(help_text='Planned end. New work is accepted again from then on.')),
                ('reason', models.CharField(help_text='Why, in words. Shown to all users.', max_length=300)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, help_text='When it was set or changed last.')),
                ('pool', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='maintenance', to='inventory.pool')),
                ('set_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['begins_at', 'key'],
                'constraints': [models.CheckConstraint(condition=models.Q(('ends_at__gt', models.F('begins_at'))), name='maintenance_ends_after_it_begins')],
            },
        ),
    ]
