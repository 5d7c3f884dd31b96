import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '__first__'),
        ('inventory', '0001_initial'),
        ('workspaces', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='GpuCheckRun',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('device', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='checks', to='inventory.device')),
                ('kind', models.CharField(choices=[('check', 'GPU check'), ('scrub', 'Scrub'), ('repartition', 'Change of MIG layout'), ('reset', 'Reset'), ('pair', 'Link to another node'), ('joint', 'All GPUs of a node at once')], default='check', max_length=12)),
                ('level', models.CharField(choices=[('quick', 'Quick, seconds'), ('standard', 'Standard, 1 minute'), ('extended', 'Extended, many minutes')], default='quick', max_length=10)),
                ('cause', models.CharField(choices=[('schedule', 'On schedule'), ('new', 'New device'), ('returned', 'Device returned'), ('hand_out', 'Before a start'), ('reclaim', 'After reclaim'), ('operator', 'Requested'), ('recheck', 'Repeat')], max_length=10)),
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('done', 'Done'), ('lost', 'Lost')], default='queued', max_length=8)),
                ('verdict', models.CharField(blank=True, choices=[('pass', 'Passed'), ('degraded', 'Degraded'), ('fail', 'Failed'), ('inconclusive', 'Inconclusive'), ('hung', 'Hung')], max_length=14)),
                ('recovery', models.CharField(blank=True, max_length=20)),
                ('summary', models.TextField(blank=True, help_text='Result in a sentence; empty until the run is done.')),
                ('simulated', models.BooleanField(default=False)),
                ('requester', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('workspace', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='checks', to='workspaces.workspace')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('started_at', models.DateTimeField(blank=True, help_text='When it began.', null=True)),
                ('finished_at', models.DateTimeField(blank=True, help_text='When it ended.', null=True)),
                ('plan', models.JSONField(blank=True, default=dict)),
                ('unjudged', models.BooleanField(default=False)),
                ('progress', models.JSONField(blank=True, default=dict)),
                ('report', models.JSONField(blank=True, default=dict)),
                ('measures', models.JSONField(blank=True, default=dict)),
                ('partner', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='gpu_checks.gpucheckrun')),
                ('lease', models.CharField(blank=True, max_length=32)),
                ('lease_expires_at', models.DateTimeField(blank=True, null=True)),
                ('attempts', models.PositiveSmallIntegerField(default=0)),
                ('peers', models.ManyToManyField(blank=True, related_name='peer_checks', to='inventory.device')),
            ],
            options={
                'ordering': ['-created_at'],
                'indexes': [models.Index(fields=['device', '-created_at'], name='check_by_device'), models.Index(condition=models.Q(('state__in', ['queued', 'running'])), fields=['lease_expires_at'], name='check_open')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ['queued', 'running'])), fields=('device',), name='one_open_check_per_device')],
            },
        ),
    ]
