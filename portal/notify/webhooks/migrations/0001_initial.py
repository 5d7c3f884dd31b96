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
            name='Endpoint',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='webhooks', to='accounts.team')),
                ('name', models.CharField(max_length=80)),
                ('url', models.CharField(max_length=1000)),
                ('types', models.JSONField(default=list)),
                ('sensitive', models.BooleanField(default=False)),
                ('secret', models.TextField(editable=False)),
                ('previous_secret', models.TextField(blank=True, editable=False)),
                ('previous_until', models.DateTimeField(blank=True, null=True)),
                ('enabled', models.BooleanField(default=True)),
                ('disabled_at', models.DateTimeField(blank=True, null=True)),
                ('failing_since', models.DateTimeField(blank=True, null=True)),
                ('timeouts', models.PositiveIntegerField(default=0)),
                ('slow', models.BooleanField(default=False)),
                ('not_before', models.DateTimeField(blank=True, null=True)),
                ('served_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name', 'pk'],
            },
        ),
        migrations.CreateModel(
            name='Outbox',
            fields=[
                ('last_id', models.PositiveBigIntegerField(default=0)),
                ('settled_id', models.PositiveBigIntegerField(default=0)),
                ('horizon_id', models.PositiveBigIntegerField(default=0)),
                ('horizon_at', models.DateTimeField(blank=True, null=True)),
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('busy_until', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name_plural': 'outboxes',
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('endpoint', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='webhooks.endpoint')),
                ('entry_id', models.PositiveBigIntegerField(blank=True, null=True)),
                ('type', models.CharField(help_text='Type of the event, such as `workspace.started`.', max_length=60)),
                ('payload', models.JSONField(help_text='The JSON that is sent.')),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('delivered', 'Delivered'), ('failed', 'Given up')], default='pending', max_length=10)),
                ('attempt_count', models.PositiveSmallIntegerField(default=0)),
                ('due_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'ordering': ['-created_at', '-pk'],
                'indexes': [models.Index(condition=models.Q(('due_at__isnull', False)), fields=['due_at'], name='delivery_due'), models.Index(fields=['endpoint', '-created_at'], name='delivery_log')],
                'constraints': [models.UniqueConstraint(fields=('endpoint', 'entry_id'), name='delivery_once_for_an_entry')],
            },
        ),
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('delivery', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='webhooks.delivery')),
                ('number', models.PositiveSmallIntegerField(help_text='Which attempt it is, from 1.')),
                ('at', models.DateTimeField(help_text='When it was sent.')),
                ('duration_ms', models.PositiveIntegerField(help_text='Duration in milliseconds.')),
                ('status_code', models.PositiveSmallIntegerField(blank=True, help_text='HTTP status of the response; null without a response.', null=True)),
                ('answer', models.TextField(blank=True)),
                ('error', models.CharField(blank=True, help_text='Why it failed, in words; empty if it did not.', max_length=20)),
            ],
            options={
                'ordering': ['at', 'pk'],
            },
        ),
    ]
