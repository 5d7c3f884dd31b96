import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('accounts', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='Channel',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='channels', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='channels', to='accounts.team')),
                ('name', models.CharField(max_length=80)),
                ('service', models.CharField(help_text='Name of the service, such as “Slack”.', max_length=60)),
                ('url', models.TextField(editable=False)),
                ('kinds', models.JSONField(default=list)),
                ('enabled', models.BooleanField(default=True)),
                ('disabled_at', models.DateTimeField(blank=True, null=True)),
                ('failing_since', models.DateTimeField(blank=True, null=True)),
                ('failures', models.PositiveIntegerField(default=0)),
                ('not_before', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name', 'pk'],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('team__isnull', False), ('user__isnull', True)), models.Q(('team__isnull', True), ('user__isnull', False)), _connector='OR'), name='channel_of_a_user_or_a_team')],
            },
        ),
        migrations.CreateModel(
            name='TeamFeed',
            fields=[
                ('last_id', models.PositiveBigIntegerField(default=0)),
                ('settled_id', models.PositiveBigIntegerField(default=0)),
                ('horizon_id', models.PositiveBigIntegerField(default=0)),
                ('horizon_at', models.DateTimeField(blank=True, null=True)),
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('busy_until', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='Message',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('channel', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='messages', to='channels.channel')),
                ('kind', models.CharField(help_text='Type of the event that it is about; `test` for a test.', max_length=60)),
                ('title', models.CharField(help_text='Title of the message.', max_length=200)),
                ('body', models.TextField(blank=True)),
                ('url', models.CharField(blank=True, max_length=300)),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('sent', 'Sent'), ('failed', 'Given up')], default='pending', max_length=10)),
                ('attempts', models.PositiveSmallIntegerField(default=0, help_text='Number of attempts.')),
                ('due_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('status_code', models.PositiveSmallIntegerField(blank=True, help_text='HTTP status of the response; null without a response.', null=True)),
                ('error', models.CharField(blank=True, help_text='Response to the last failed attempt; empty once delivered.', max_length=20)),
                ('answer', models.TextField(blank=True)),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(condition=models.Q(('due_at__isnull', False)), fields=['due_at'], name='channel_message_due')],
            },
        ),
    ]
