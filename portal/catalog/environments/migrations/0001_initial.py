import django.core.validators
import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('accounts', '__first__'),
        ('inventory', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='StoredContent',
            fields=[
                ('digest', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('unused_since', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Environment',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('slug', models.CharField(max_length=40, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens. Start and end with a letter or digit.')])),
                ('name', models.CharField(max_length=80)),
                ('description', models.CharField(blank=True, max_length=200)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='environments', to='accounts.team')),
                ('kind', models.CharField(choices=[('built', 'Built from packages'), ('node', 'Installed on each node')], default='built', max_length=5)),
                ('python', models.CharField(default='3.12', help_text='Requested Python version, such as `3.12`.', max_length=5)),
                ('notebook', models.BooleanField(default=True, help_text='Whether JupyterLab can use it.')),
                ('enabled', models.BooleanField(default=True)),
                ('deprecated', models.BooleanField(default=False, help_text='Whether new workspaces should use another one.')),
                ('successor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='predecessors', to='environments.environment')),
                ('curated', models.BooleanField(default=False, help_text='Whether operators maintain it for all teams.')),
                ('position', models.PositiveIntegerField(default=100)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('updated_at', models.DateTimeField()),
                ('updated_by', models.CharField(blank=True, help_text='Who last changed it.', max_length=150)),
            ],
            options={
                'ordering': ['position', 'slug'],
            },
        ),
        migrations.CreateModel(
            name='EnvironmentVersion',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('environment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='environments.environment')),
                ('number', models.PositiveIntegerField(help_text='Number of the version, from 1.')),
                ('source_kind', models.CharField(choices=[('packages', 'List of packages'), ('requirements', 'requirements.txt'), ('pyproject', 'pyproject.toml'), ('lock', 'Lock with hashes'), ('folder', 'Folder on the nodes')], max_length=12)),
                ('source', models.TextField(blank=True, help_text='Requested packages, as written.')),
                ('source_digest', models.CharField(db_index=True, max_length=64)),
                ('python', models.CharField(help_text='Requested Python version, such as `3.12`.', max_length=5)),
                ('lock', models.TextField(blank=True, help_text='Lock file: packages with exact versions and hashes.')),
                ('digest', models.CharField(blank=True, db_index=True, max_length=32)),
                ('packages', models.JSONField(blank=True, default=list)),
                ('size_mib', models.PositiveBigIntegerField(default=0, help_text='Size in MiB.')),
                ('programs', models.JSONField(blank=True, default=list)),
                ('python_version', models.CharField(blank=True, help_text='Installed Python version, such as `3.12.4`; empty until it is built.', max_length=20)),
                ('cuda', models.CharField(blank=True, max_length=20)),
                ('state', models.CharField(choices=[('new', 'Not built yet'), ('building', 'Building'), ('ready', 'Ready'), ('failed', 'Build failed')], default='building', max_length=8)),
                ('failure', models.JSONField(blank=True, default=dict)),
                ('retry_at', models.DateTimeField(blank=True, help_text='Time of the next attempt.', null=True)),
                ('builds_failed', models.PositiveIntegerField(default=0)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('ready_at', models.DateTimeField(blank=True, help_text='When it was ready.', null=True)),
            ],
            options={
                'ordering': ['environment', '-number'],
                'constraints': [models.UniqueConstraint(fields=('environment', 'number'), name='environment_version_number'), models.CheckConstraint(condition=models.Q(models.Q(('state', 'ready'), _negated=True), models.Q(('digest', ''), _negated=True), _connector='OR'), name='environment_ready_has_digest')],
            },
        ),
        migrations.CreateModel(
            name='EnvironmentBuild',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='builds', to='environments.environmentversion')),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='environment_builds', to='inventory.node')),
                ('state', models.CharField(choices=[('queued', 'Queued'), ('building', 'Building'), ('ready', 'Ready'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='queued', max_length=9)),
                ('priority', models.SmallIntegerField(default=0)),
                ('stage', models.CharField(blank=True, choices=[('waiting', 'Waiting'), ('resolving', 'Resolving versions'), ('downloading', 'Downloading'), ('installing', 'Installing'), ('compiling', 'Compiling'), ('checking', 'Checking')], max_length=11)),
                ('done', models.PositiveIntegerField(default=0)),
                ('total', models.PositiveIntegerField(default=0, help_text='Number of packages in this stage.')),
                ('lease', models.CharField(blank=True, max_length=32)),
                ('lease_expires_at', models.DateTimeField(blank=True, null=True)),
                ('attempts', models.PositiveSmallIntegerField(default=0)),
                ('requester', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('started_at', models.DateTimeField(blank=True, help_text='When it began.', null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('retry_at', models.DateTimeField(blank=True, help_text='Time of the next attempt.', null=True)),
                ('failure', models.JSONField(blank=True, default=dict)),
                ('log', models.TextField(blank=True)),
                ('log_dropped', models.PositiveBigIntegerField(default=0)),
                ('log_received', models.PositiveBigIntegerField(default=0)),
            ],
            options={
                'ordering': ['-created_at'],
                'indexes': [models.Index(fields=['version', '-created_at'], name='build_by_version'), models.Index(condition=models.Q(('state__in', ('queued', 'building'))), fields=['node', '-priority', 'created_at'], name='build_open'), models.Index(fields=['ended_at'], name='build_ended')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ('queued', 'building'))), fields=('version', 'node'), name='one_open_build_of_a_version'), models.UniqueConstraint(condition=models.Q(('state', 'building')), fields=('node',), name='one_build_at_a_time_on_a_node')],
            },
        ),
        migrations.AddField(
            model_name='environment',
            name='current',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='environments.environmentversion'),
        ),
    ]
