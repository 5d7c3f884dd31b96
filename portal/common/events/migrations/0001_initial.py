import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('accounts', '__first__'),
        ('inventory', '0001_initial'),
        ('workspaces', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditSeal',
            fields=[
                ('number', models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ('first_id', models.PositiveBigIntegerField()),
                ('last_id', models.PositiveBigIntegerField()),
                ('count', models.PositiveIntegerField()),
                ('entries_digest', models.CharField(max_length=64)),
                ('digest', models.CharField(max_length=64)),
                ('newest_at', models.DateTimeField(help_text='Time of its newest entry.')),
                ('sealed_at', models.DateTimeField()),
                ('pruned_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['-number'],
            },
        ),
        migrations.CreateModel(
            name='AuditStream',
            fields=[
                ('last_id', models.PositiveBigIntegerField(default=0)),
                ('settled_id', models.PositiveBigIntegerField(default=0)),
                ('horizon_id', models.PositiveBigIntegerField(default=0)),
                ('horizon_at', models.DateTimeField(blank=True, null=True)),
                ('name', models.CharField(max_length=16, primary_key=True, serialize=False)),
                ('sent_at', models.DateTimeField(blank=True, null=True)),
                ('failures', models.PositiveIntegerField(default=0)),
                ('last_error', models.CharField(blank=True, max_length=30)),
                ('failed_at', models.DateTimeField(blank=True, null=True)),
                ('not_before', models.DateTimeField(blank=True, null=True)),
                ('busy_until', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_index=True, help_text='When it happened.')),
                ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='events', to=settings.AUTH_USER_MODEL)),
                ('actor_label', models.CharField(max_length=80)),
                ('kind', models.CharField(db_index=True, help_text='Type of the event, such as `workspace.started`.', max_length=60)),
                ('workspace', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='events', to='workspaces.workspace')),
                ('team', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='events', to='accounts.team')),
                ('pool', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='events', to='inventory.pool')),
                ('message', models.TextField()),
                ('reason', models.TextField(blank=True)),
                ('cause', models.JSONField(blank=True, default=dict)),
                ('data', models.JSONField(default=dict, help_text='Details of the event by name. Names are only added.')),
                ('address', models.GenericIPAddressField(blank=True, help_text='IP address of the client.', null=True)),
                ('user_agent', models.CharField(blank=True, help_text='User agent of the client.', max_length=200)),
                ('request_id', models.CharField(blank=True, help_text="Id of the HTTP request, as in the portal's log.", max_length=64)),
                ('token', models.CharField(blank=True, help_text='Name of the token that was used; empty for none.', max_length=16)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='Notification',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notifications', to=settings.AUTH_USER_MODEL)),
                ('at', models.DateTimeField(help_text='When it happened.')),
                ('kind', models.CharField(help_text='Subject of the notice, as a code.', max_length=60)),
                ('title', models.CharField(help_text='Title of the notice.', max_length=200)),
                ('body', models.TextField(blank=True, help_text='Text of the notice.')),
                ('url', models.CharField(blank=True, help_text='Path in the portal for the next action.', max_length=300)),
                ('read_at', models.DateTimeField(blank=True, help_text='When it was read.', null=True)),
                ('mail_due_at', models.DateTimeField(blank=True, db_index=True, null=True)),
                ('mail_attempts', models.PositiveSmallIntegerField(default=0)),
                ('repeats', models.PositiveIntegerField(default=0, help_text='Number of similar events included in this notice.')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['user', 'read_at'], name='notification_unread')],
            },
        ),
        migrations.CreateModel(
            name='EventTarget',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('event', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='targets', to='events.event')),
                ('kind', models.CharField(choices=[('device', 'Device'), ('node', 'Node'), ('quota_request', 'Quota request'), ('user', 'User')], max_length=16)),
                ('key', models.CharField(max_length=255)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('kind', 'key', 'event'), name='event_target_once')],
            },
        ),
    ]
